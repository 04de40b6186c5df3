"""Naive measures of a network's plasticity: ranks of a representation, dead and saturated units, weight magnitude."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def effective_rank(matrix: np.ndarray) -> float:
    """exp(H(p)) with p_k = s_k / sum(s), natural logarithm, 0 log 0 = 0 (Roy & Vetterli 2007; the paper's Eq. 1).

    The matrix (examples, units) is not centred. A zero matrix has effective rank 0.
    """
    singular_values = np.linalg.svd(matrix, compute_uv=False)
    total = float(singular_values.sum())
    if total == 0.0:
        return 0.0
    entropy = 0.0
    for value in singular_values:
        p = float(value) / total
        if p > 0.0:
            entropy -= p * math.log(p)
    return math.exp(entropy)


def stable_rank(matrix: np.ndarray) -> float:
    """Squared Frobenius norm over the squared top singular value; 0 for a zero matrix."""
    top = float(np.linalg.svd(matrix, compute_uv=False)[0])
    return float(np.sum(matrix**2)) / top**2 if top > 0.0 else 0.0


def rank_99(matrix: np.ndarray) -> int:
    """The fewest singular values, largest first, whose sum is at least 99% of the sum of all; 0 for a zero matrix."""
    singular_values = np.linalg.svd(matrix, compute_uv=False)
    needed = 0.99 * float(singular_values.sum())
    held, count = 0.0, 0
    for value in singular_values:  # in descending order
        if held >= needed:
            break
        held += float(value)
        count += 1
    return count


def dead_units(activations: np.ndarray) -> np.ndarray:
    """Which units are exactly 0 on every example: activations (examples, units) to bool (units,)."""
    return np.array([all(value == 0.0 for value in unit) for unit in activations.T], dtype=bool)


def saturated_units(activations: np.ndarray, low: float, high: float, epsilon: float) -> np.ndarray:
    """Which units are, on every example, within epsilon of one of the activation's two extreme values.

    A unit that is near `low` on some examples and near `high` on all the others counts. (examples, units) to bool
    (units,); the distance epsilon itself is included.
    """
    return np.array(
        [all(value - low <= epsilon or high - value <= epsilon for value in unit) for unit in activations.T], dtype=bool
    )


def weight_magnitude(weights: Sequence[np.ndarray]) -> float:
    """Sum of the absolute values of all weights over their number, all layers pooled; the caller leaves biases out."""
    total, count = 0.0, 0
    for weight in weights:
        total += float(np.sum(np.abs(weight)))
        count += weight.size
    return total / count
