"""Naive DASH (Shin et al. 2024): at a boundary, weights that disagree with the new task's gradient shrink.

One pass over the new data keeps an average of the negative gradient, M = (1 - a) M + a (-g), from zero. Then the row of
each weight (of a convolution the kernel of each pair of input and output channel; a bias as a whole) is multiplied by
cos(M, w), clamped to [floor, 1].
"""

from __future__ import annotations

import math

import numpy as np


def factor(average: np.ndarray, weights: np.ndarray, floor: float) -> float:
    """By how much one vector of weights shrinks."""
    product = size = length = 0.0
    for m, w in zip(average.ravel(), weights.ravel(), strict=True):
        product += m * w
        size += m * m
        length += w * w
    if size == 0.0 or length == 0.0:
        return floor
    return min(max(product / math.sqrt(size * length), floor), 1.0)


def shrunk(weight: np.ndarray, gradients: list[np.ndarray], rate: float, floor: float) -> np.ndarray:
    """A weight (out, in), (out, in, height, width) or bias (out,) after one pass with these gradients."""
    average = np.zeros_like(weight)
    for gradient in gradients:
        average = (1.0 - rate) * average - rate * gradient
    new = weight.copy()
    if weight.ndim == 1:
        return new * factor(average, weight, floor)
    for output in range(weight.shape[0]):
        if weight.ndim == 2:
            new[output] *= factor(average[output], weight[output], floor)
            continue
        for channel in range(weight.shape[1]):
            new[output, channel] *= factor(average[output, channel], weight[output, channel], floor)
    return new
