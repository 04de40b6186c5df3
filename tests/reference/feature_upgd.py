"""Naive feature-wise utility-based perturbed gradient descent (Elsayed and Mahmood 2024).

Behind the activation of every hidden unit i stands a gate gamma_i = 1 that is never changed. Its use is what the loss
would lose without it, to first order:

    g_gate_i = dL / d gamma_i = sum over the batch of h_i dL/dh_i
    U_i      = beta U_i + (1 - beta) (-g_gate_i)
    U-hat_i  = U_i / (1 - beta^t),  u-bar_i = sigmoid(U-hat_i / eta),  eta the largest U-hat of all hidden units

Incoming weights and bias of unit i: w = (1 - alpha lambda) w - c alpha (g + xi) (1 - u-bar_i). The output layer, which
feeds no unit, is plain gradient descent: w = w - alpha g.

Here the learner has an optimizer of any kind, whose gradient is c (g + xi)(1 - u-bar) + lambda w in the hidden layers;
with plain gradient descent this is the rule above. The form that does not protect gates the noise alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import mlp, upgd
from .learner import Learner


class NaiveFeatureUPGD(Learner):
    """A learner with a gate behind every hidden unit.

    Attributes:
        utility: U of every hidden unit, one array per hidden layer.
        gates: u-bar of the last update, likewise.
        least, most: the smallest and the largest u-bar so far.
    """

    def __init__(
        self,
        layers: mlp.Layers,
        activations: Any,
        optimizer: Any,
        *,
        noise: upgd.Noise,
        decay_rate: float,
        noise_std: float,
        weight_decay: float,
        step_factor: float,
        scaling: upgd.Scaling,
        protecting: bool,
    ) -> None:
        super().__init__(layers, activations, optimizer)
        self.noise = noise
        self.decay_rate = decay_rate
        self.noise_std = noise_std
        self.weight_decay = weight_decay
        self.step_factor = step_factor
        self.scaling: upgd.Scaling = scaling
        self.protecting = protecting
        self.utility = [np.zeros(len(bias)) for _, bias in self.layers[:-1]]
        self.gates: list[np.ndarray] = []
        self.least, self.most = 1.0, 0.0

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        """One update from a batch x (B, in); returns the loss from before it."""
        self.updates += 1
        pre_activations, values = mlp.forward(self.layers, self.activations, x)
        loss, output_gradient = mlp.LOSSES[self.loss](values[-1], target)
        gradients = mlp.backward(self.layers, self.activations, pre_activations, values, output_gradient)
        delta = output_gradient  # dL/dz of the layer above, which is linear at first
        for layer in reversed(range(len(self.layers) - 1)):
            at_h = delta @ self.layers[layer + 1][0]  # dL/dh (B, U)
            for unit in range(len(self.utility[layer])):
                gate_gradient = sum(
                    float(values[layer + 1][example, unit]) * float(at_h[example, unit]) for example in range(len(x))
                )
                old = self.utility[layer][unit]
                self.utility[layer][unit] = self.decay_rate * old + (1.0 - self.decay_rate) * -gate_gradient
            delta = at_h * mlp.DERIVATIVES[self.activations[layer]](pre_activations[layer])
        self.gates = upgd.scaled_utilities(self.utility, self.decay_rate, self.updates, self.scaling)
        self.least = min(self.least, *(float(gate.min()) for gate in self.gates))
        self.most = max(self.most, *(float(gate.max()) for gate in self.gates))
        changed: mlp.Layers = []
        for layer, pair in enumerate(gradients):
            hidden = layer < len(self.layers) - 1
            weight, bias = (self._transformed(layer, part, pair[part]) if hidden else pair[part] for part in (0, 1))
            changed.append((weight, bias))
        self.optimizer.update(self.layers, changed)
        return loss

    def _transformed(self, layer: int, part: int, g: np.ndarray) -> np.ndarray:
        new = np.zeros_like(g)
        xi = np.zeros_like(g)
        if self.noise_std > 0.0:
            xi = self.noise_std * self.noise(self.updates, layer, part)
        for index in np.ndindex(g.shape):
            free = 1.0 - self.gates[layer][index[0]]
            direction = (g[index] + xi[index]) * free if self.protecting else g[index] + xi[index] * free
            new[index] = self.step_factor * direction + self.weight_decay * self.layers[layer][part][index]
        return new
