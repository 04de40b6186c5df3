"""Naive spectral regularisation (Lewandowski et al. 2025): pull the largest singular value of every weight to 1.

    penalty = strength * (sum over layers of [(sigma^k - 1)^2 + bias term] + sum over norm gains of (gain - 1)^2)

A variant has another target than 1 for sigma^k. sigma = u^T W v is the largest singular value as one step of power
iteration per update (or several) finds it, from the vector v that is kept between updates:

    u = W v / |W v|,  v = W^T u / |W^T u|,  sigma = u^T W v

u and v are constants in the gradient, so d sigma / d W = u v^T. A bias b has one of two terms: the squared norm
|b|^2, or |b|^(2k).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from . import mlp
from .cbp import Optimizer
from .learner import BIAS, WEIGHT, Learner

BiasTerm = Literal["squared_norm", "power"]


def unit_vector(vector: np.ndarray) -> np.ndarray:
    """The vector divided by its length; a zero vector stays as it is."""
    length = math.sqrt(sum(float(value) ** 2 for value in vector))
    return vector / length if length > 0.0 else vector


def power_iteration(weight: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """New (u, v) after one step, for a weight (out, in) and v (in,)."""
    u = np.zeros(weight.shape[0])
    for row in range(weight.shape[0]):
        u[row] = sum(weight[row, column] * v[column] for column in range(weight.shape[1]))
    u = unit_vector(u)
    new = np.zeros(weight.shape[1])
    for column in range(weight.shape[1]):
        new[column] = sum(weight[row, column] * u[row] for row in range(weight.shape[0]))
    return u, unit_vector(new)


def singular_value(weight: np.ndarray, u: np.ndarray, v: np.ndarray) -> float:
    """u^T W v."""
    total = 0.0
    for row, column in np.ndindex(weight.shape):
        total += u[row] * weight[row, column] * v[column]
    return float(total)


def weight_penalty(sigma: float, exponent: int, target: float = 1.0) -> float:
    """(sigma^k - target)^2."""
    return (sigma**exponent - target) ** 2


def weight_gradient(sigma: float, u: np.ndarray, v: np.ndarray, exponent: int, target: float = 1.0) -> np.ndarray:
    """Gradient of `weight_penalty` for the weight (out, in): 2 (sigma^k - target) k sigma^(k - 1) u v^T."""
    slope = 2.0 * (sigma**exponent - target) * exponent * sigma ** (exponent - 1)
    found = np.zeros((len(u), len(v)))
    for row, column in np.ndindex(found.shape):
        found[row, column] = slope * u[row] * v[column]
    return found


def bias_penalty(bias: np.ndarray, exponent: int, term: BiasTerm) -> float:
    """|b|^2 or |b|^(2k)."""
    squared = float(sum(float(value) ** 2 for value in bias))
    return squared if term == "squared_norm" else squared**exponent


def bias_gradient(bias: np.ndarray, exponent: int, term: BiasTerm) -> np.ndarray:
    """Gradient of `bias_penalty`: 2 b, or 2 k |b|^(2k - 2) b."""
    if term == "squared_norm":
        return 2.0 * bias
    squared = float(sum(float(value) ** 2 for value in bias))
    return 2.0 * exponent * squared ** (exponent - 1) * bias


def gain_penalty(gain: np.ndarray) -> float:
    """Sum of (gain - 1)^2 of one norm layer."""
    return float(sum((float(value) - 1.0) ** 2 for value in gain))


def gain_gradient(gain: np.ndarray) -> np.ndarray:
    """Gradient of `gain_penalty`: 2 (gain - 1)."""
    return 2.0 * (gain - 1.0)


class NaiveSpectral(Learner):
    """A learner with the term in its loss.

    Attributes:
        v: for every layer the kept vector (in,).
    """

    def __init__(
        self,
        layers: mlp.Layers,
        activations: str | Sequence[str],
        optimizer: Optimizer,
        *,
        start: Sequence[np.ndarray],
        strength: float,
        exponent: int = 2,
        bias_term: BiasTerm = "squared_norm",
        target: float = 1.0,
        iterations: int = 1,
        loss: str = "squared_error",
    ) -> None:
        """
        Args:
            start: for every layer the first v (in,).
        """
        super().__init__(layers, activations, optimizer, loss=loss)
        self.v = [unit_vector(np.array(vector, dtype=np.float64)) for vector in start]
        self.strength = strength
        self.exponent = exponent
        self.bias_term: BiasTerm = bias_term
        self.target = target
        self.iterations = iterations

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        """One update; returns the loss from before it, without the term."""
        self.updates += 1
        loss, _, gradients = self.differentiate(x, target)
        for layer, (weight, bias) in enumerate(self.layers):
            u = np.zeros(len(weight))
            for _ in range(self.iterations):
                u, self.v[layer] = power_iteration(weight, self.v[layer])
            sigma = singular_value(weight, u, self.v[layer])
            pull = weight_gradient(sigma, u, self.v[layer], self.exponent, self.target)
            gradients[layer][WEIGHT][...] += self.strength * pull
            gradients[layer][BIAS][...] += self.strength * bias_gradient(bias, self.exponent, self.bias_term)
        self.optimizer.update(self.layers, gradients)
        return loss
