"""Naive FIRE (2026): at a boundary every weight matrix moves to the nearest isometry, by Newton-Schulz iteration.

X = W / |W|_F; k times X = 1.5 X - 0.5 X (X' X), of the transpose where W is wide; W = sqrt(out / in) X
a convolution: each tap (out, in) by itself, and the result divided by the number of taps
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from . import mlp
from .cbp import Optimizer
from .learner import WEIGHT, Learner


def newton_schulz(matrix: np.ndarray, iterations: int) -> np.ndarray:
    """The iterate itself, before it is scaled by the shape."""
    if matrix.shape[0] < matrix.shape[1]:
        return newton_schulz(matrix.T, iterations).T
    x = matrix / math.sqrt(float((matrix * matrix).sum()))
    for _ in range(iterations):
        x = 1.5 * x - 0.5 * np.dot(x, np.dot(x.T, x))
    return x


def orthogonalised(weight: np.ndarray, iterations: int) -> np.ndarray:
    """A weight (out, in) or (out, in, height, width)."""
    scale = math.sqrt(weight.shape[0] / weight.shape[1])
    if weight.ndim == 2:
        return scale * newton_schulz(weight, iterations)
    height, width = weight.shape[2:]
    new = np.zeros_like(weight)
    for i in range(height):
        for j in range(width):
            new[:, :, i, j] = scale * newton_schulz(weight[:, :, i, j], iterations) / (height * width)
    return new


class NaiveFIRE(Learner):
    """A learner whose weights are orthogonalised when a task begins, with a new optimizer; biases are kept."""

    def __init__(
        self,
        layers: mlp.Layers,
        activations: str | Sequence[str],
        optimizer: Optimizer,
        *,
        iterations: int,
        loss: str = "squared_error",
    ) -> None:
        super().__init__(layers, activations, optimizer, loss=loss)
        self.iterations = iterations

    def task_boundary(self) -> None:
        for layer in self.layers:
            layer[WEIGHT][...] = orthogonalised(layer[WEIGHT], self.iterations)
        self.optimizer.start(self.layers)
