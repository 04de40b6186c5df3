"""Naive activation functions that keep networks plastic, with their derivatives, number by number.

    CReLU         x -> relu(x) and relu(-x)
    Fourier       z -> sin(z) and cos(z)
    AID           training: relu(x) where the element's draw is below p, else min(x, 0)
                  evaluation: p x for x >= 0, (1 - p) x for x < 0
    Smooth-Leaky  x -> a x + (1 - a) x s(c x / p), with s the logistic function
    layer norm    y -> gain * (y - mean) / sqrt(variance + eps) + offset, over the features of one example

A function of two outputs gives first the ones, then the others: [f(x_1), ..., f(x_n), g(x_1), ..., g(x_n)].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def crelu(x: Sequence[float]) -> list[float]:
    """Both signs of every number apart."""
    return [v if v > 0 else 0.0 for v in x] + [-v if v < 0 else 0.0 for v in x]


def crelu_backward(x: Sequence[float], gradient: Sequence[float]) -> list[float]:
    """From the gradient of the 2 n outputs to that of the n inputs."""
    count = len(x)
    return [gradient[i] if v > 0 else -gradient[count + i] if v < 0 else 0.0 for i, v in enumerate(x)]


def fourier(z: Sequence[float]) -> list[float]:
    """Sine and cosine of every number."""
    return [math.sin(v) for v in z] + [math.cos(v) for v in z]


def fourier_backward(z: Sequence[float], gradient: Sequence[float]) -> list[float]:
    """From the gradient of the 2 n outputs to that of the n inputs."""
    count = len(z)
    return [gradient[i] * math.cos(v) - gradient[count + i] * math.sin(v) for i, v in enumerate(z)]


def aid_training(x: Sequence[float], draws: Sequence[float], p: float) -> list[float]:
    """One draw in (0, 1) per element decides which half line passes."""
    return [max(v, 0.0) if u < p else min(v, 0.0) for v, u in zip(x, draws, strict=True)]


def aid_evaluation(x: Sequence[float], p: float) -> list[float]:
    """The expectation over the draws."""
    return [p * v if v >= 0 else (1.0 - p) * v for v in x]


def smooth_leaky(x: Sequence[float], a: float, c: float, p: float) -> list[float]:
    """Leaky ReLU without a corner."""
    return [a * v + (1.0 - a) * v / (1.0 + math.exp(-c * v / p)) for v in x]


def smooth_leaky_slope(x: Sequence[float], a: float, c: float, p: float) -> list[float]:
    """Its derivative."""
    slopes = []
    for v in x:
        s = 1.0 / (1.0 + math.exp(-c * v / p))
        slopes.append(a + (1.0 - a) * (s + v * (c / p) * s * (1.0 - s)))
    return slopes


def layer_norm(x: np.ndarray, gain: np.ndarray, offset: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    """x (B, F), each example by its own mean and variance (divided by F)."""
    out = np.empty_like(x)
    for example, row in enumerate(x):
        mean = sum(row) / len(row)
        variance = sum((v - mean) ** 2 for v in row) / len(row)
        out[example] = [
            g * (v - mean) / math.sqrt(variance + eps) + o for v, g, o in zip(row, gain, offset, strict=True)
        ]
    return out
