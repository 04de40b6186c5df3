"""The part of a learner that all methods share: layers of its own, the loss's gradients, the optimizer.

A method's learner gets the gradients from `Learner.differentiate`, changes them or the weights, and counts its updates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from . import mlp
from .cbp import Optimizer

Fresh = Callable[[int, int, int], np.ndarray]
"""(update, layer, unit) -> new incoming weights (in,) of a hidden unit; updates count from 1."""

WEIGHT, BIAS = 0, 1  # the two parts of a layer


def copied(layers: mlp.Layers) -> mlp.Layers:
    """The same numbers in arrays of their own, float64."""
    return [(np.array(weight, dtype=np.float64), np.array(bias, dtype=np.float64)) for weight, bias in layers]


class Learner:
    """Plain training of a multilayer perceptron; methods are subclasses.

    Attributes:
        layers: list of (weight, bias), changed in place.
        updates: how many updates were made.
    """

    def __init__(
        self,
        layers: mlp.Layers,
        activations: str | Sequence[str],
        optimizer: Optimizer,
        *,
        loss: str = "squared_error",
    ) -> None:
        self.layers = copied(layers)
        hidden = len(layers) - 1
        self.activations = [activations] * hidden if isinstance(activations, str) else list(activations)
        self.optimizer = optimizer
        self.optimizer.start(self.layers)
        self.loss = loss
        self.updates = 0

    def differentiate(self, x: np.ndarray, target: np.ndarray) -> tuple[float, list[np.ndarray], mlp.Layers]:
        """The loss, the hidden activations (B, U) of every hidden layer, and the gradients."""
        pre_activations, values = mlp.forward(self.layers, self.activations, x)
        loss, output_gradient = mlp.LOSSES[self.loss](values[-1], target)
        gradients = mlp.backward(self.layers, self.activations, pre_activations, values, output_gradient)
        return loss, values[1:-1], gradients

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        """One update from a batch x (B, in); returns the loss from before it."""
        self.updates += 1
        loss, _, gradients = self.differentiate(x, target)
        self.optimizer.update(self.layers, gradients)
        return loss
