"""Naive TRAC: a parameter-free scale for what any base optimizer has learned since the start.

theta_ref are the weights at the start, S the sum of the scales s, g the gradient that the base optimizer is given:

    D = (theta - theta_ref) / (S + eps)
    h = <D, g> over all weights and biases of the network
    D = D + (theta after the base optimizer's update - theta before it)
    for each beta:  v = beta^2 v + h^2,  sigma = beta sigma - h
                    s = s_0 erfi(sigma / (sqrt(2 v) + eps)) / erfi(1 / sqrt 2)
    theta = theta_ref + max(S, 0) D

sigma starts at 1e-8 (`start`), v at 0; s_0 = eps = 1e-8; beta is 0.9, 0.99, ..., 0.999999. S is 0 before the first
update.

A weight that another method resets gets theta_ref = its new value and D = 0, so that it does not count as learned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import mlp
from .learner import Learner, copied

BETAS = (0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999)


def erfi(x: float) -> float:
    """2 / sqrt(pi) times the sum of x^(2k+1) / (k! (2k+1)); all terms have one sign."""
    total, power, k = 0.0, x, 0
    while abs(power) > 1e-18 * abs(total):
        total += power / (2 * k + 1)
        k += 1
        power *= x * x / k
    return 2.0 / math.sqrt(math.pi) * total


class Tuner:
    """The scales of one network."""

    def __init__(
        self, s_0: float = 1e-8, eps: float = 1e-8, betas: Sequence[float] = BETAS, start: float = 1e-8
    ) -> None:
        self.s_0, self.eps, self.betas = s_0, eps, list(betas)
        self.sigma = [start] * len(self.betas)
        self.v = [0.0] * len(self.betas)
        self.total = 0.0

    def update(self, h: float) -> float:
        """S after one update."""
        self.total = 0.0
        for number, beta in enumerate(self.betas):
            self.v[number] = beta**2 * self.v[number] + h**2
            self.sigma[number] = beta * self.sigma[number] - h
            x = self.sigma[number] / (math.sqrt(2.0 * self.v[number]) + self.eps)
            self.total += self.s_0 * erfi(x) / erfi(1.0 / math.sqrt(2.0))
        return self.total


class NaiveTRAC(Learner):
    """A learner whose optimizer TRAC wraps.

    Attributes:
        reference: theta_ref.
        totals: S after every update.
    """

    def __init__(
        self,
        layers: mlp.Layers,
        activations: Any,
        optimizer: Any,
        *,
        s_0: float = 1e-8,
        eps: float = 1e-8,
        betas: Sequence[float] = BETAS,
        start: float = 1e-8,
    ) -> None:
        super().__init__(layers, activations, optimizer)
        self.reference = copied(self.layers)
        self.tuner = Tuner(s_0, eps, betas, start)
        self.totals: list[float] = []

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        """One update from a batch x (B, in); returns the loss from before it."""
        self.updates += 1
        loss, _, gradients = self.differentiate(x, target)
        before = copied(self.layers)
        self.optimizer.update(self.layers, gradients)
        h = 0.0
        moved: list[tuple[int, int, np.ndarray]] = []
        for layer in range(len(self.layers)):
            for part in (0, 1):
                start, reference = before[layer][part], self.reference[layer][part]
                displacement = (start - reference) / (self.tuner.total + self.tuner.eps)
                h += float(np.sum(displacement * gradients[layer][part]))
                moved.append((layer, part, displacement + (self.layers[layer][part] - start)))
        total = self.tuner.update(h)
        self.totals.append(total)
        for layer, part, displacement in moved:
            self.layers[layer][part][...] = self.reference[layer][part] + max(total, 0.0) * displacement
        return loss
