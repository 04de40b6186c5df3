"""Naive utility-based perturbed gradient descent, weight-wise and first-order (Elsayed and Mahmood 2024).

For every weight w (biases are weights too) with gradient g, at update t, with noise xi ~ N(0, noise_std^2):

    U     = beta U + (1 - beta) (-g w)                     running utility
    U-hat = U / (1 - beta^t)                               corrected
    u-bar = sigmoid(U-hat / eta)                           scaled to (0, 1)
    w     = (1 - alpha lambda) w - c alpha (g + xi) (1 - u-bar)

alpha is the step size, lambda the weight decay, c the step factor. eta, the scale, has three readings:

    "paper"  the largest U-hat of all weights of the network
    "code"   the largest U of all weights, not corrected, so that u-bar saturates in the first updates
    "local"  for each row its own: the L2 norm of the row of U-hat (a bias vector is one row)

The form that does not protect gates the noise alone: w = (1 - alpha lambda) w - c alpha (g + xi (1 - u-bar)).

No sign may flip where the largest utility is not positive: then a negative utility counts as no use at all (u-bar = 0)
and a zero as before (u-bar = 1/2), which is the limit of a small positive eta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from . import mlp
from .learner import copied

Scaling = Literal["paper", "code", "local"]
Noise = Callable[[int, int, int], np.ndarray]
"""(update, layer, part) -> standard normal numbers of the shape of that weight (part 0) or bias (part 1)."""


def sigmoid(value: float) -> float:
    """1 / (1 + exp(-value)) without overflow."""
    if value >= 0.0:
        return 1.0 / (1.0 + math.exp(-value))
    return math.exp(value) / (1.0 + math.exp(value))


def running_utility(old: np.ndarray, g: np.ndarray, w: np.ndarray, decay_rate: float) -> np.ndarray:
    """U of one array after this update."""
    new = np.zeros_like(old)
    for index in np.ndindex(old.shape):
        new[index] = decay_rate * old[index] + (1.0 - decay_rate) * (-g[index] * w[index])
    return new


def scale_utility(value: float, scale: float) -> float:
    """u-bar of one corrected utility."""
    if scale > 0.0:
        return sigmoid(value / scale)
    return 0.5 if value == 0.0 else 0.0


def scaled_utilities(utilities: list[np.ndarray], decay_rate: float, t: int, scaling: Scaling) -> list[np.ndarray]:
    """u-bar for all arrays of the network, from their running utilities U after update t (counted from 1)."""
    correction = 1.0 - decay_rate**t
    corrected = [utility / correction for utility in utilities]
    largest = -math.inf
    for array in utilities if scaling == "code" else corrected:
        for index in np.ndindex(array.shape):
            largest = max(largest, float(array[index]))
    found: list[np.ndarray] = []
    for array in corrected:
        scaled = np.zeros_like(array)
        for row in np.ndindex(array.shape[:-1]):
            scale = math.sqrt(sum(float(value) ** 2 for value in array[row])) if scaling == "local" else largest
            for column in range(array.shape[-1]):
                scaled[(*row, column)] = scale_utility(float(array[(*row, column)]), scale)
        found.append(scaled)
    return found


def updated(
    w: np.ndarray,
    g: np.ndarray,
    scaled: np.ndarray,
    *,
    step_size: float,
    weight_decay: float = 0.0,
    noise: np.ndarray | None = None,
    step_factor: float = 1.0,
    protecting: bool = True,
) -> np.ndarray:
    """One array after the update; `noise` is xi, already times its standard deviation."""
    new = np.zeros_like(w)
    for index in np.ndindex(w.shape):
        xi = 0.0 if noise is None else noise[index]
        gate = 1.0 - scaled[index]
        direction = (g[index] + xi) * gate if protecting else g[index] + xi * gate
        new[index] = (1.0 - step_size * weight_decay) * w[index] - step_factor * step_size * direction
    return new


class NaiveUPGD:
    """A learner whose optimizer is UPGD.

    Attributes:
        layers: list of (weight, bias), changed in place.
        utility: U for every weight and bias, in the same order.
        updates: how many updates were made.
    """

    def __init__(
        self,
        layers: mlp.Layers,
        activations: str | Sequence[str],
        *,
        step_size: float,
        decay_rate: float = 0.999,
        noise_std: float = 0.0,
        weight_decay: float = 0.0,
        step_factor: float = 1.0,
        scaling: Scaling = "paper",
        protecting: bool = True,
        noise: Noise | None = None,
        loss: str = "squared_error",
    ) -> None:
        self.layers = copied(layers)
        hidden = len(layers) - 1
        self.activations = [activations] * hidden if isinstance(activations, str) else list(activations)
        self.step_size = step_size
        self.decay_rate = decay_rate
        self.noise_std = noise_std
        self.weight_decay = weight_decay
        self.step_factor = step_factor
        self.scaling: Scaling = scaling
        self.protecting = protecting
        self.noise = noise
        self.loss = loss
        self.updates = 0
        self.utility: mlp.Layers = [(np.zeros_like(weight), np.zeros_like(bias)) for weight, bias in self.layers]

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        """One update from a batch x (B, in); returns the loss from before it."""
        self.updates += 1
        pre_activations, values = mlp.forward(self.layers, self.activations, x)
        loss, output_gradient = mlp.LOSSES[self.loss](values[-1], target)
        gradients = mlp.backward(self.layers, self.activations, pre_activations, values, output_gradient)
        self.update(gradients)
        return loss

    def update(self, gradients: mlp.Layers) -> None:
        """The rule itself, on all weights and biases."""
        parts = [(layer, part) for layer in range(len(self.layers)) for part in (0, 1)]
        for layer, part in parts:
            utility = self.utility[layer][part]
            weights, g = self.layers[layer][part], gradients[layer][part]
            utility[...] = running_utility(utility, g, weights, self.decay_rate)
        utilities = [self.utility[layer][part] for layer, part in parts]
        scaled = scaled_utilities(utilities, self.decay_rate, self.updates, self.scaling)
        for (layer, part), gate in zip(parts, scaled, strict=True):
            noise = None
            if self.noise_std > 0.0 and self.noise is not None:
                noise = self.noise_std * self.noise(self.updates, layer, part)
            self.layers[layer][part][...] = updated(
                self.layers[layer][part],
                gradients[layer][part],
                gate,
                step_size=self.step_size,
                weight_decay=self.weight_decay,
                noise=noise,
                step_factor=self.step_factor,
                protecting=self.protecting,
            )
