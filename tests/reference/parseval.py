"""Naive Parseval regularisation (Chung et al. 2024): pull the rows of every hidden weight to an orthogonal set.

    penalty   lambda (64 / rows)^2 |W W' - s I|^2   for each hidden layer, the first included and the output excluded
    gradient  lambda (64 / rows)^2 4 (W W' - s I) W

Both the factor (64 / rows)^2 and the exclusion of the output can be left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import mlp
from .cbp import Optimizer
from .learner import WEIGHT, Learner


def excess(weight: np.ndarray, scale: float) -> np.ndarray:
    """W W' - s I, (rows, rows)."""
    rows, columns = weight.shape
    found = np.zeros((rows, rows))
    for i in range(rows):
        for j in range(rows):
            found[i, j] = sum(weight[i, k] * weight[j, k] for k in range(columns)) - (scale if i == j else 0.0)
    return found


def penalty(weight: np.ndarray, scale: float) -> float:
    """|W W' - s I|^2."""
    return float(sum(value**2 for value in excess(weight, scale).ravel()))


def gradient(weight: np.ndarray, scale: float) -> np.ndarray:
    """4 (W W' - s I) W."""
    rows, columns = weight.shape
    difference = excess(weight, scale)
    found = np.zeros_like(weight)
    for i in range(rows):
        for k in range(columns):
            found[i, k] = 4.0 * sum(difference[i, j] * weight[j, k] for j in range(rows))
    return found


class NaiveParseval(Learner):
    """A learner with the term in its loss."""

    def __init__(
        self,
        layers: mlp.Layers,
        activations: str | Sequence[str],
        optimizer: Optimizer,
        *,
        strength: float,
        scale: float = 2.0,
        reference_width: int | None = 64,
        with_output: bool = False,
    ) -> None:
        super().__init__(layers, activations, optimizer)
        self.strength = strength
        self.scale = scale
        self.reference_width = reference_width
        self.with_output = with_output

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        """One update; returns the loss from before it, without the term."""
        self.updates += 1
        loss, _, gradients = self.differentiate(x, target)
        last = len(self.layers) if self.with_output else len(self.layers) - 1
        for layer in range(last):
            weight = self.layers[layer][WEIGHT]
            factor = 1.0 if self.reference_width is None else (self.reference_width / len(weight)) ** 2
            gradients[layer][WEIGHT][...] += self.strength * factor * gradient(weight, self.scale)
        self.optimizer.update(self.layers, gradients)
        return loss
