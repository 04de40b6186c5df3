"""Networks for the naive references, and their numerical gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from reference import mlp


def random_layers(sizes: list[int], seed: int = 0) -> mlp.Layers:
    generator = np.random.default_rng(seed)
    return [
        (generator.normal(size=(n_out, n_in)) / math.sqrt(n_in), 0.1 * generator.normal(size=n_out))
        for n_in, n_out in itertools.pairwise(sizes)
    ]


def central_difference(function: Callable[[], float], array: np.ndarray, width: float = 1e-6) -> np.ndarray:
    """The gradient of a function that reads `array`, one entry at a time."""
    gradient = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        old = array[index]
        array[index] = old + width
        above = function()
        array[index] = old - width
        below = function()
        array[index] = old
        gradient[index] = (above - below) / (2 * width)
    return gradient
