"""Naive weight clipping (Elsayed et al. 2024) and normalize-and-project (Lyle et al. 2024).

clipping     after every update |w| <= bound / sqrt(fan in), and the same bound for the bias of that weight
projection   after every update W = W |W_0| / |W|, Frobenius norms, per weight matrix; biases are left
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from . import mlp
from .cbp import Optimizer
from .learner import BIAS, WEIGHT, Learner


def clipped(array: np.ndarray, bound: float, fan_in: int) -> np.ndarray:
    """The array with every element in [-bound / sqrt(fan_in), bound / sqrt(fan_in)]."""
    limit = bound / math.sqrt(fan_in)
    new = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        new[index] = min(max(array[index], -limit), limit)
    return new


def frobenius(array: np.ndarray) -> float:
    total = 0.0
    for value in array.ravel():
        total += value * value
    return math.sqrt(total)


class NaiveWeightClipping(Learner):
    """A learner whose weights and biases are clipped after every update; the last layer may be spared."""

    def __init__(
        self,
        layers: mlp.Layers,
        activations: str | Sequence[str],
        optimizer: Optimizer,
        *,
        bound: float,
        spare_output: bool = False,
        loss: str = "squared_error",
    ) -> None:
        super().__init__(layers, activations, optimizer, loss=loss)
        self.bound, self.spare_output = bound, spare_output
        self.touched = 0

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        loss = super().step(x, target)
        for weight, bias in self.layers[:-1] if self.spare_output else self.layers:
            for array in (weight, bias):
                new = clipped(array, self.bound, weight.shape[1])
                self.touched += int((new != array).sum())
                array[...] = new
        return loss


class NaiveNormalizeAndProject(Learner):
    """A learner whose weight matrices keep their first Frobenius norm; the output layer is left unless told."""

    def __init__(
        self,
        layers: mlp.Layers,
        activations: str | Sequence[str],
        optimizer: Optimizer,
        *,
        project_output: bool = False,
        loss: str = "squared_error",
    ) -> None:
        super().__init__(layers, activations, optimizer, loss=loss)
        self.norms = [frobenius(weight) for weight, _ in layers]
        self.projected = len(layers) - (0 if project_output else 1)

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        loss = super().step(x, target)
        for number in range(self.projected):
            weight = self.layers[number][WEIGHT]
            weight[...] = weight * (self.norms[number] / frobenius(weight))
        return loss

    def biases(self) -> list[np.ndarray]:
        return [layer[BIAS] for layer in self.layers]
