"""Naive Online Normalization (Chiley et al. 2019) of a batch (B, F), forward and controlled backward.

The forward pass normalises with the statistics from before the step and only then updates them. With batch mean m and
batch variance s2 (divided by B), forward decay a and backward decay b:

    y     = (x - mu) / sqrt(var + eps)
    var'  = a var + (1 - a) s2 + a (1 - a) (m - mu)^2
    mu'   = a mu + (1 - a) m
    z     = y / sqrt(mean over features of y^2 + eps)      (layer scaling)
    out   = weight z + bias

For B = 1, s2 = 0 and these are the paper's equations. The backward pass through the normalisation is the paper's
control process, not the derivative of the forward pass:

    g~    = gy - (1 - b) ey y                ey' = ey + mean over the batch of g~ y
    gx    = g~ / sqrt(var + eps) - (1 - b) e1          e1' = e1 + mean over the batch of gx

with var the one that the forward pass used. Layer scaling and the affine part have their ordinary gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class _Forward:
    """What the backward pass needs from the forward pass."""

    y: np.ndarray  # (B, F)
    z: np.ndarray  # (B, F)
    deviation: np.ndarray  # (F,)
    scale: np.ndarray  # (B,)


@dataclass
class NaiveOnlineNorm:
    """State and hyperparameters of one layer; `forward` then `backward`, once each per step."""

    features: int
    decay_forward: float = 0.999
    decay_backward: float = 0.99
    epsilon: float = 1e-5
    layer_scaling: bool = True
    mean: np.ndarray = field(init=False)
    variance: np.ndarray = field(init=False)
    error_y: np.ndarray = field(init=False)
    error_1: np.ndarray = field(init=False)
    weight: np.ndarray = field(init=False)
    bias: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.mean = np.zeros(self.features)
        self.variance = np.ones(self.features)
        self.error_y = np.zeros(self.features)
        self.error_1 = np.zeros(self.features)
        self.weight = np.ones(self.features)
        self.bias = np.zeros(self.features)
        self._kept: _Forward | None = None

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Normalise x (B, F) with the old statistics, then update them."""
        deviation = np.sqrt(self.variance + self.epsilon)
        y = (x - self.mean) / deviation
        scale = np.ones(len(x))
        if self.layer_scaling:
            for example in range(len(x)):
                scale[example] = np.sqrt(np.mean(y[example] ** 2) + self.epsilon)
        z = y / scale[:, None]
        self._kept = _Forward(y, z, deviation, scale)

        a = self.decay_forward
        batch_mean = x.mean(axis=0)
        batch_variance = np.mean((x - batch_mean) ** 2, axis=0)
        self.variance = a * self.variance + (1 - a) * batch_variance + a * (1 - a) * (batch_mean - self.mean) ** 2
        self.mean = a * self.mean + (1 - a) * batch_mean
        return self.weight * z + self.bias

    def backward(self, gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """From dL/d(out) (B, F) to the gradients for x (B, F), weight (F,) and bias (F,); updates the two errors."""
        if self._kept is None:
            raise ValueError("backward needs one forward before it; call forward first")
        kept, self._kept = self._kept, None
        weight_gradient = np.sum(gradient * kept.z, axis=0)
        bias_gradient = np.sum(gradient, axis=0)

        gz = gradient * self.weight
        gy = gz.copy()
        if self.layer_scaling:
            for example, s in enumerate(kept.scale):
                # z_i = y_i / s with s^2 = mean(y^2) + eps, so dz_i/dy_j = [i = j] / s - y_i y_j / (F s^3)
                y = kept.y[example]
                gy[example] = gz[example] / s - y * np.sum(gz[example] * y) / (self.features * s**3)

        b = self.decay_backward
        g = gy - (1 - b) * self.error_y * kept.y
        gx = g / kept.deviation - (1 - b) * self.error_1
        self.error_y = self.error_y + np.mean(g * kept.y, axis=0)
        self.error_1 = self.error_1 + np.mean(gx, axis=0)
        return gx, weight_gradient, bias_gradient
