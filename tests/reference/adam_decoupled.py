"""Naive Adam with a term outside the moments: weight decay (AdamW) and dynamical isometry (AdamO).

    AdamW   w = w - alpha m-hat / (sqrt(v-hat) + eps) - alpha lambda w                        every weight and bias
    AdamO   W = W - alpha m-hat / (sqrt(v-hat) + eps) - alpha lambda dP/dW                    weight matrices alone
            P = |W'W - I|^2 if W has at least as many rows as columns, else |WW' - I|^2

The moments see the gradient of the loss alone. The gradient of P is found here entry by entry from its definition.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import cbp, mlp
from .learner import Learner


def isometry_penalty(weight: np.ndarray) -> float:
    """P of a matrix (out, in)."""
    rows, columns = weight.shape
    tall = rows >= columns
    size = columns if tall else rows
    total = 0.0
    for i in range(size):
        for j in range(size):
            product = float(weight[:, i] @ weight[:, j]) if tall else float(weight[i] @ weight[j])
            total += (product - (1.0 if i == j else 0.0)) ** 2
    return total


def isometry_gradient(weight: np.ndarray) -> np.ndarray:
    """dP/dW: each entry of the product occurs in P squared, and holds each of its factors once."""
    rows, columns = weight.shape
    tall = rows >= columns
    matrix = weight if tall else weight.T  # now P = |M'M - I|^2
    found = np.zeros_like(matrix)
    for i in range(matrix.shape[1]):
        for j in range(matrix.shape[1]):
            difference = float(matrix[:, i] @ matrix[:, j]) - (1.0 if i == j else 0.0)
            for k in range(matrix.shape[0]):
                found[k, i] += 2.0 * difference * matrix[k, j]
                found[k, j] += 2.0 * difference * matrix[k, i]
    return found if tall else found.T


class NaiveDecoupledAdam(Learner):
    """A learner whose optimizer is AdamW (`weight_decay`) or AdamO (`isometry`)."""

    def __init__(
        self,
        layers: mlp.Layers,
        activations: Any,
        *,
        step_size: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float = 0.0,
        isometry: float = 0.0,
    ) -> None:
        super().__init__(layers, activations, cbp.Adam(step_size, *betas, eps))
        self.step_size = step_size
        self.weight_decay = weight_decay
        self.isometry = isometry

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        """One update from a batch x (B, in); returns the loss from before it."""
        self.updates += 1
        loss, _, gradients = self.differentiate(x, target)
        terms = [
            (
                self.weight_decay * weight + self.isometry * isometry_gradient(weight),
                self.weight_decay * bias,
            )
            for weight, bias in self.layers
        ]
        self.optimizer.update(self.layers, gradients)
        for pair, term in zip(self.layers, terms, strict=True):
            for part in (0, 1):
                pair[part][...] -= self.step_size * term[part]
        return loss
