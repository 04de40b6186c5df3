"""Naive regenerative regularisation, L2-init (Kumar et al. 2023): pull every weight and bias to its initial value.

    penalty   (lambda / 2) sum (w - w0)^2
    gradient  lambda (w - w0), added before the optimizer
    decoupled w -= alpha lambda (w - w0) beside the optimizer's update, with w from before it (alpha: the step size)

Two other norms: "l1" has the penalty lambda sum |w - w0|, and "huber" lambda sum h(w - w0), where h(d) = d^2 / 2 up to
|d| = 1 and |d| - 1/2 beyond.

w0, the anchor, is taken before the first update. A unit that another method replaces gets its new weights as anchor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from . import mlp
from .cbp import Optimizer
from .learner import Learner, copied

Norm = Literal["l2", "l1", "huber"]


def cost(distance: float, norm: Norm) -> float:
    """The penalty of one weight without the strength."""
    if norm == "l1":
        return abs(distance)
    if norm == "huber" and abs(distance) > 1.0:
        return abs(distance) - 0.5
    return 0.5 * distance**2


def slope(distance: float, norm: Norm) -> float:
    """The derivative of `cost`; of an absolute value at 0 it is 0."""
    sign = (distance > 0.0) - (distance < 0.0)
    if norm == "l1" or (norm == "huber" and abs(distance) > 1.0):
        return float(sign)
    return distance


def penalty(layers: mlp.Layers, anchor: mlp.Layers, strength: float, norm: Norm = "l2") -> float:
    """The loss term of a network."""
    total = 0.0
    for pair, start in zip(layers, anchor, strict=True):
        for part in (0, 1):
            for index in np.ndindex(pair[part].shape):
                total += strength * cost(float(pair[part][index] - start[part][index]), norm)
    return float(total)


def gradient(w: np.ndarray, anchor: np.ndarray, strength: float, norm: Norm = "l2") -> np.ndarray:
    """The term's gradient for one array."""
    found = np.zeros_like(w)
    for index in np.ndindex(w.shape):
        found[index] = strength * slope(float(w[index] - anchor[index]), norm)
    return found


class NaiveL2Init(Learner):
    """A learner with the term in its loss, or decoupled from the optimizer when `decoupled_step_size` is given.

    Attributes:
        anchor: the initial (weight, bias) pairs, copies.
    """

    def __init__(
        self,
        layers: mlp.Layers,
        activations: str | Sequence[str],
        optimizer: Optimizer,
        *,
        strength: float,
        decoupled_step_size: float | None = None,
        norm: Norm = "l2",
        loss: str = "squared_error",
    ) -> None:
        super().__init__(layers, activations, optimizer, loss=loss)
        self.strength = strength
        self.decoupled_step_size = decoupled_step_size
        self.norm: Norm = norm
        self.anchor = copied(layers)

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        """One update; returns the loss from before it, without the term."""
        self.updates += 1
        loss, _, gradients = self.differentiate(x, target)
        pulls = self.pulls()
        if self.decoupled_step_size is None:
            for found, pull in zip(gradients, pulls, strict=True):
                for part in (0, 1):
                    found[part][...] += pull[part]
        self.optimizer.update(self.layers, gradients)
        if self.decoupled_step_size is not None:
            for pair, pull in zip(self.layers, pulls, strict=True):
                for part in (0, 1):
                    pair[part][...] -= self.decoupled_step_size * pull[part]
        return loss

    def pulls(self) -> mlp.Layers:
        """The term's gradient for every (weight, bias)."""
        return [
            (
                gradient(weight, start[0], self.strength, self.norm),
                gradient(bias, start[1], self.strength, self.norm),
            )
            for (weight, bias), start in zip(self.layers, self.anchor, strict=True)
        ]
