"""Naive ReDo (Sokar et al. 2023): every F updates, reset the units that hardly respond.

For unit i of a hidden layer, with E the mean over the batch and h its activation after the nonlinearity,

    s_i = E|h_i| / (mean_k E|h_k| + 1e-9)

and every unit with s_i <= threshold is reset: fresh incoming weights, bias 0, outgoing weights 0, and the optimizer's
state of all these elements 0. The units of all layers are chosen from one forward pass, before anything is written.

A weight between a reset unit and a reset unit of the next layer is at once an outgoing and an incoming one. The authors
leave it at zero; the other order keeps the fresh draw. `shared_weights` says which.

The scheduled variant has no threshold: at update t of T it resets the lowest round(n * share * cos(pi t / 2T)) units of
a layer of n, at least 1, and every unit that ties with the last of them. After T it goes on as at T.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from . import mlp
from .cbp import Optimizer
from .learner import BIAS, WEIGHT, Fresh, Learner

EPSILON = 1e-9


def scores(h: np.ndarray) -> np.ndarray:
    """The scores (U,) of one layer from its activations (B, U)."""
    batch, units = h.shape
    mean_magnitude = np.zeros(units)
    for i in range(units):
        total = 0.0
        for example in range(batch):
            total += abs(h[example, i])
        mean_magnitude[i] = total / batch
    layer_mean = sum(mean_magnitude) / units
    return np.array([mean_magnitude[i] / (layer_mean + EPSILON) for i in range(units)])


def dormant_units(h: np.ndarray, threshold: float) -> list[int]:
    """The units of one layer to reset, lowest index first."""
    found = scores(h)
    return [i for i in range(len(found)) if found[i] <= threshold]


def scheduled_number(units: int, update: int, total: int, share: float = 0.3) -> int:
    """How many units of a layer the scheduled variant resets."""
    angle = math.pi * min(update, total) / (2.0 * total)
    return max(1, round(units * share * math.cos(angle)))


def lowest_units(h: np.ndarray, number: int) -> list[int]:
    """The units of one layer with the `number` lowest scores, ties included."""
    found = scores(h)
    limit = sorted(found)[number - 1]
    return [i for i in range(len(found)) if found[i] <= limit]


class NaiveReDo(Learner):
    """A learner that resets dormant units after every `period`-th update.

    The activations are those of the update's own forward pass, from before it.

    Attributes:
        reset: for each update the list of (layer, unit) that were reset after it.
    """

    def __init__(
        self,
        layers: mlp.Layers,
        activations: str | Sequence[str],
        optimizer: Optimizer,
        *,
        fresh: Fresh,
        period: int = 1000,
        threshold: float = 0.025,
        schedule: int = 0,
        share: float = 0.3,
        shared_weights: Literal["zero", "fresh"] = "zero",
        loss: str = "squared_error",
    ) -> None:
        super().__init__(layers, activations, optimizer, loss=loss)
        self.fresh = fresh
        self.period = period
        self.threshold = threshold
        self.schedule = schedule
        self.share = share
        self.shared_weights = shared_weights
        self.reset: list[list[tuple[int, int]]] = []

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        """One update, and the resets if they are due; returns the loss from before."""
        self.updates += 1
        loss, hidden, gradients = self.differentiate(x, target)
        self.optimizer.update(self.layers, gradients)
        chosen: list[tuple[int, int]] = []
        if self.updates % self.period == 0:
            for layer, h in enumerate(hidden):
                if self.schedule:
                    number = scheduled_number(h.shape[1], self.updates, self.schedule, self.share)
                    units = lowest_units(h, number)
                else:
                    units = dormant_units(h, self.threshold)
                chosen.extend((layer, unit) for unit in units)
            self.recycle(chosen)
        self.reset.append(chosen)
        return loss

    def recycle(self, chosen: list[tuple[int, int]]) -> None:
        """Reset the chosen (layer, unit) pairs."""
        sides = [self._redraw_incoming, self._cut_outgoing]  # what is written last stands
        if self.shared_weights == "fresh":
            sides.reverse()
        for write in sides:
            for layer, unit in chosen:
                write(layer, unit)
        for state in self.optimizer.state.values():
            for layer, unit in chosen:
                state[layer][WEIGHT][unit, :] = 0.0
                state[layer][BIAS][unit] = 0.0
                state[layer + 1][WEIGHT][:, unit] = 0.0

    def _redraw_incoming(self, layer: int, unit: int) -> None:
        self.layers[layer][WEIGHT][unit, :] = self.fresh(self.updates, layer, unit)
        self.layers[layer][BIAS][unit] = 0.0

    def _cut_outgoing(self, layer: int, unit: int) -> None:
        self.layers[layer + 1][WEIGHT][:, unit] = 0.0
