"""Naive self-normalised resets (Farias and Jozefiak 2025): reset a unit whose silence is long for its own history.

After the forward pass of a batch of B examples, for unit i with age a_i (the examples since it last fired):

    all h_i <= 0      a_i <- a_i + B
    else              record a_i in the unit's histogram, a_i <- 0

After the optimizer's step a unit with a_i >= tau_i is recorded, reset, and a_i <- 0. At a recalibration, with q the
smallest age >= 1 whose cumulative share of the recorded ages >= 1 reaches 1 - eta:

    tau_i <- q if q < tau_i else 2 tau_i, then clamped to [B, longest]; the histogram is cleared.

Decided: a unit with no recorded age >= 1 (it fires in every batch) keeps its threshold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from . import mlp
from .cbp import Optimizer
from .learner import Fresh
from .redo import NaiveReDo


def quantile_age(recorded: Counter[int], share: float) -> int | None:
    """The smallest age >= 1 at which the cumulative share of ages >= 1 reaches `share`; None if there are none."""
    total = sum(count for age, count in recorded.items() if age >= 1)
    if total == 0:
        return None
    cumulative = 0
    for age in sorted(age for age in recorded if age >= 1):
        cumulative += recorded[age]
        if cumulative >= share * total:
            return age
    raise AssertionError("the cumulative share ends at 1")


def new_threshold(threshold: int, recorded: Counter[int], rejection: float, batch: int, longest: int) -> int:
    """A unit's threshold after a recalibration."""
    age = quantile_age(recorded, 1.0 - rejection)
    if age is None:
        return threshold
    proposed = age if age < threshold else 2 * threshold
    return min(max(proposed, batch), longest)


class NaiveSNR(NaiveReDo):
    """A learner with self-normalised resets.

    Attributes:
        ages, thresholds, histograms: for each hidden layer one per unit.
    """

    def __init__(
        self,
        layers: mlp.Layers,
        activations: str | Sequence[str],
        optimizer: Optimizer,
        *,
        fresh: Fresh,
        rejection: float,
        first_threshold: int,
        longest: int,
        period: int = 0,
        loss: str = "squared_error",
    ) -> None:
        """
        Args:
            longest: the upper bound of thresholds, in examples.
            period: updates between two recalibrations; 0 for one at each `task_boundary`.
        """
        super().__init__(layers, activations, optimizer, fresh=fresh, loss=loss)
        sizes = [len(bias) for _, bias in layers[:-1]]
        self.rejection, self.longest, self.recalibrates_every = rejection, longest, period
        self.ages = [[0] * size for size in sizes]
        self.thresholds = [[first_threshold] * size for size in sizes]
        self.histograms: list[list[Counter[int]]] = [[Counter() for _ in range(size)] for size in sizes]
        self.batch = 0

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        """One update with its resets; returns the loss from before."""
        self.updates += 1
        self.batch = len(x)
        loss, hidden, gradients = self.differentiate(x, target)
        self.optimizer.update(self.layers, gradients)
        chosen: list[tuple[int, int]] = []
        for layer, h in enumerate(hidden):
            for unit in range(h.shape[1]):
                if all(value <= 0 for value in h[:, unit]):
                    self.ages[layer][unit] += self.batch
                else:
                    self._record(layer, unit)
                if self.ages[layer][unit] >= self.thresholds[layer][unit]:
                    self._record(layer, unit)
                    chosen.append((layer, unit))
        self.recycle(chosen)
        self.reset.append(chosen)
        if self.recalibrates_every and self.updates % self.recalibrates_every == 0:
            self.recalibrate()
        return loss

    def task_boundary(self) -> None:
        """A new task begins."""
        if not self.recalibrates_every:
            self.recalibrate()

    def recalibrate(self) -> None:
        """New thresholds, from the histograms, which start again."""
        for layer, histograms in enumerate(self.histograms):
            for unit, recorded in enumerate(histograms):
                self.thresholds[layer][unit] = new_threshold(
                    self.thresholds[layer][unit], recorded, self.rejection, self.batch, self.longest
                )
                recorded.clear()

    def _record(self, layer: int, unit: int) -> None:
        self.histograms[layer][unit][self.ages[layer][unit]] += 1
        self.ages[layer][unit] = 0
