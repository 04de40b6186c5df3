"""Naive AdaUPGD: Adam's direction in the place of the gradient in utility-based perturbed gradient descent.

For every weight w (biases are weights too) with gradient g, at update t, with noise xi ~ N(0, noise_std^2):

    u-bar   as in `upgd`, from the running average of -g w
    m, v    Adam's moments of g, corrected to m-hat and v-hat
    w       = (1 - alpha lambda) w - c alpha (m-hat (1 - u-bar) / (sqrt(v-hat) + eps) + xi (1 - u-bar))

The authors use c = 2 and eps = 1e-5. The form that does not protect gates the noise alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import mlp, upgd


class NaiveAdaUPGD(upgd.NaiveUPGD):
    """A learner whose optimizer is AdaUPGD; settings of `NaiveUPGD`, and those of Adam."""

    def __init__(
        self, layers: mlp.Layers, activations: Any, *, betas: tuple[float, float], eps: float, **settings: Any
    ) -> None:
        super().__init__(layers, activations, **settings)
        self.betas = betas
        self.eps = eps
        self.first: mlp.Layers = [(np.zeros_like(weight), np.zeros_like(bias)) for weight, bias in self.layers]
        self.second: mlp.Layers = [(np.zeros_like(weight), np.zeros_like(bias)) for weight, bias in self.layers]

    def update(self, gradients: mlp.Layers) -> None:
        """The rule itself, on all weights and biases."""
        parts = [(layer, part) for layer in range(len(self.layers)) for part in (0, 1)]
        for layer, part in parts:
            old = self.utility[layer][part]
            old[...] = upgd.running_utility(old, gradients[layer][part], self.layers[layer][part], self.decay_rate)
        utilities = [self.utility[layer][part] for layer, part in parts]
        scaled = upgd.scaled_utilities(utilities, self.decay_rate, self.updates, self.scaling)
        for (layer, part), gate in zip(parts, scaled, strict=True):
            xi = np.zeros_like(gate)
            if self.noise_std > 0.0 and self.noise is not None:
                xi = self.noise_std * self.noise(self.updates, layer, part)
            self._update_part(layer, part, gradients[layer][part], gate, xi)

    def _update_part(self, layer: int, part: int, g: np.ndarray, gate: np.ndarray, xi: np.ndarray) -> None:
        beta1, beta2 = self.betas
        w, m, v = self.layers[layer][part], self.first[layer][part], self.second[layer][part]
        for index in np.ndindex(w.shape):
            m[index] = beta1 * m[index] + (1.0 - beta1) * g[index]
            v[index] = beta2 * v[index] + (1.0 - beta2) * g[index] ** 2
            m_hat = m[index] / (1.0 - beta1**self.updates)
            v_hat = v[index] / (1.0 - beta2**self.updates)
            free = 1.0 - gate[index]
            direction = m_hat * (free if self.protecting else 1.0) / (math.sqrt(v_hat) + self.eps) + xi[index] * free
            w[index] = (1.0 - self.step_size * self.weight_decay) * w[index]
            w[index] -= self.step_factor * self.step_size * direction
