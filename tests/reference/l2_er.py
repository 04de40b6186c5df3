"""Naive L2-ER (He et al. 2026): L2 regularisation, and at times one gradient step that raises the rank of features.

Every `period` updates, after the update, with the inputs of all those updates in one batch:

    w <- w + size d/dw mean over hidden layers of erank(H_l)

H_l (examples, units) is what a hidden layer gives, uncentred. The effective rank is exp(entropy) of the singular values
divided by their sum. With p_k = s_k / sum s and E = exp(H):

    dE / ds_k = E (-log p_k - H) / sum s,    dE / dH_l = sum_k (dE / ds_k) u_k v_k'

A singular value of 0 (to rounding) counts for nothing and has no slope.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from . import mlp
from .cbp import Optimizer
from .learner import BIAS, WEIGHT, Learner


def shares(values: Sequence[float], largest_side: int) -> list[float]:
    """The singular values that are not 0, divided by their sum; the others as 0."""
    smallest = float(np.finfo(np.float64).eps) * largest_side * max(values, default=0.0)
    kept = [value if value > smallest else 0.0 for value in values]
    total = sum(kept)
    return [value / total if total > 0.0 else 0.0 for value in kept]


def entropy(p: Sequence[float]) -> float:
    """-sum p log p, with 0 log 0 = 0."""
    return -sum(value * math.log(value) for value in p if value > 0.0)


def effective_rank(features: np.ndarray) -> float:
    """exp(entropy) of the shares of the singular values."""
    values = np.linalg.svd(features)[1].tolist()
    return math.exp(entropy(shares(values, max(features.shape))))


def gradient(features: np.ndarray) -> np.ndarray:
    """The gradient of `effective_rank`."""
    left, values, right = np.linalg.svd(features, full_matrices=False)
    p = shares(values.tolist(), max(features.shape))
    h = entropy(p)
    total = sum(value for value, share in zip(values.tolist(), p, strict=True) if share > 0.0)
    found = np.zeros_like(features)
    for k, share in enumerate(p):
        if share > 0.0:
            slope = math.exp(h) * (-math.log(share) - h) / total
            found += slope * np.outer(left[:, k], right[k])
    return found


class NaiveL2ER(Learner):
    """A learner with both terms.

    Attributes:
        ranks: for every rank step, the mean effective rank before it.
    """

    def __init__(
        self,
        layers: mlp.Layers,
        activations: str | Sequence[str],
        optimizer: Optimizer,
        *,
        strength: float,
        period: int,
        size: float,
        last_layers: int = 0,
    ) -> None:
        super().__init__(layers, activations, optimizer)
        self.strength = strength
        self.period = period
        self.size = size
        self.last_layers = last_layers
        self.seen: list[np.ndarray] = []
        self.ranks: list[float] = []

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        """One update, and perhaps a rank step; returns the loss from before it, without the term."""
        self.updates += 1
        loss, _, gradients = self.differentiate(x, target)
        for layer, pair in enumerate(self.layers):
            for part in (WEIGHT, BIAS):
                gradients[layer][part][...] += self.strength * pair[part]
        self.optimizer.update(self.layers, gradients)
        self.seen.append(np.array(x))
        if self.updates % self.period == 0:
            self.raise_ranks(np.concatenate(self.seen))
            self.seen = []
        return loss

    def raise_ranks(self, x: np.ndarray) -> None:
        """One gradient step on the mean effective rank of the hidden layers."""
        pre_activations, values = mlp.forward(self.layers, self.activations, x)
        hidden = len(self.layers) - 1
        counted = range(hidden)[-self.last_layers :] if self.last_layers else range(hidden)
        self.ranks.append(sum(effective_rank(values[layer + 1]) for layer in counted) / len(counted))
        delta = np.zeros_like(values[hidden])  # by the outputs of the hidden layer at hand
        moves: mlp.Layers = []
        for layer in reversed(range(hidden)):
            if layer in counted:
                delta = delta + gradient(values[layer + 1]) / len(counted)
            delta = delta * mlp.DERIVATIVES[self.activations[layer]](pre_activations[layer])
            moves.insert(0, (delta.T @ values[layer], delta.sum(axis=0)))
            delta = delta @ self.layers[layer][WEIGHT]
        for layer, move in enumerate(moves):
            for part in (WEIGHT, BIAS):
                self.layers[layer][part][...] += self.size * move[part]
