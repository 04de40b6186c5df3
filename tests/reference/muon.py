"""Naive Muon: the update of a hidden weight matrix is its momentum made nearly orthogonal.

For a hidden matrix W (out, in) with gradient G:

    M = mu M + (1 - mu) G
    U = mu M + (1 - mu) G                                    Nesterov
    X = U / max(|U|_F, 1e-7), transposed if it has more rows than columns
    five times: A = XX', X = a X + (b A + c A A) X           a, b, c = 3.4445, -4.7750, 2.0315
    W = (1 - alpha lambda) W - alpha sqrt(max(1, out / in)) X

Biases and the matrix of the output layer are trained by Adam with a tenth of the step size and the same decay.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import cbp, mlp
from .learner import Learner

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalised(matrix: np.ndarray, steps: int = 5) -> np.ndarray:
    """Nearly the nearest matrix whose rows (or columns, if there are fewer) are orthonormal."""
    a, b, c = COEFFICIENTS
    x = matrix / max(float(np.sqrt(np.sum(matrix**2))), 1e-7)
    tall = matrix.shape[0] > matrix.shape[1]
    if tall:
        x = x.T
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


class NaiveMuon(Learner):
    """A learner whose optimizer is Muon on hidden matrices and Adam on all else."""

    def __init__(
        self,
        layers: mlp.Layers,
        activations: Any,
        *,
        step_size: float,
        momentum: float,
        weight_decay: float,
        adam_share: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        adam = cbp.Adam(adam_share * step_size, *betas, eps)
        super().__init__(layers, activations, adam)
        self.step_size = step_size
        self.adam_size = adam_share * step_size
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.velocity = [np.zeros_like(weight) for weight, _ in self.layers]

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        """One update from a batch x (B, in); returns the loss from before it."""
        self.updates += 1
        loss, _, gradients = self.differentiate(x, target)
        old = [weight.copy() for weight, _ in self.layers]
        for weight, bias in self.layers:
            weight *= 1.0 - self.adam_size * self.weight_decay
            bias *= 1.0 - self.adam_size * self.weight_decay
        self.optimizer.update(self.layers, gradients)
        for layer in range(len(self.layers) - 1):  # Muon's own matrices; what Adam did to them is undone
            weight, g, velocity = self.layers[layer][0], gradients[layer][0], self.velocity[layer]
            velocity[...] = self.momentum * velocity + (1.0 - self.momentum) * g
            ahead = self.momentum * velocity + (1.0 - self.momentum) * g
            rows, columns = weight.shape
            size = self.step_size * max(1.0, rows / columns) ** 0.5
            weight[...] = (1.0 - self.step_size * self.weight_decay) * old[layer] - size * orthogonalised(ahead)
        return loss
