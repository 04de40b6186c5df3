"""Naive ReGraMa: every F updates, reset the units that hardly get a gradient.

With g_i the mean absolute gradient of the loss at unit i of a hidden layer,

    s_i = g_i / (mean_k g_k + 1e-8)

and every unit with s_i <= threshold is reset as in ReDo. g_i is taken over the unit's incoming weights ("weights"), or
over the examples at the unit's output ("activations"). Gradients are those of the loss alone, from before the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from . import mlp
from .cbp import Optimizer
from .learner import WEIGHT, Fresh
from .redo import NaiveReDo

EPSILON = 1e-8
Score = Literal["weights", "activations"]


def relative(magnitudes: Sequence[float]) -> np.ndarray:
    """Magnitudes of one layer divided by their mean."""
    mean = sum(magnitudes) / len(magnitudes)
    return np.array([each / (mean + EPSILON) for each in magnitudes])


def weight_scores(gradient: np.ndarray) -> np.ndarray:
    """The scores (U,) of one layer from the gradient (U, in) of its incoming weights."""
    magnitudes: list[float] = []
    for row in gradient:
        total = 0.0
        for element in row:
            total += abs(element)
        magnitudes.append(total / len(row))
    return relative(magnitudes)


def activation_scores(gradient: np.ndarray) -> np.ndarray:
    """The scores (U,) of one layer from the gradient (B, U) at its units' outputs."""
    examples, units = gradient.shape
    return relative([sum(abs(gradient[b, i]) for b in range(examples)) / examples for i in range(units)])


def output_gradients(
    layers: mlp.Layers, activations: Sequence[str], x: np.ndarray, target: np.ndarray, loss: str
) -> list[np.ndarray]:
    """dL/dh (B, U) of every hidden layer."""
    pre_activations, values = mlp.forward(layers, activations, x)
    _, delta = mlp.LOSSES[loss](values[-1], target)
    found: list[np.ndarray] = []
    for index in reversed(range(1, len(layers))):
        delta = delta @ layers[index][WEIGHT]  # dL/dh of hidden layer index - 1
        found.insert(0, delta)
        delta = delta * mlp.DERIVATIVES[activations[index - 1]](pre_activations[index - 1])
    return found


class NaiveReGraMa(NaiveReDo):
    """A learner that resets units without gradient after every `period`-th update."""

    def __init__(
        self,
        layers: mlp.Layers,
        activations: str | Sequence[str],
        optimizer: Optimizer,
        *,
        fresh: Fresh,
        period: int = 1000,
        threshold: float = 0.01,
        score: Score = "weights",
        loss: str = "squared_error",
    ) -> None:
        super().__init__(layers, activations, optimizer, fresh=fresh, period=period, threshold=threshold, loss=loss)
        self.score: Score = score

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        """One update, and the resets if they are due; returns the loss from before."""
        self.updates += 1
        found = self.scores(x, target)
        loss, _, gradients = self.differentiate(x, target)
        self.optimizer.update(self.layers, gradients)
        chosen: list[tuple[int, int]] = []
        if self.updates % self.period == 0:
            for layer, scores in enumerate(found):
                chosen.extend((layer, unit) for unit in range(len(scores)) if scores[unit] <= self.threshold)
            self.recycle(chosen)
        self.reset.append(chosen)
        return loss

    def scores(self, x: np.ndarray, target: np.ndarray) -> list[np.ndarray]:
        """The scores of every hidden layer."""
        if self.score == "activations":
            at_outputs = output_gradients(self.layers, self.activations, x, target, self.loss)
            return [activation_scores(gradient) for gradient in at_outputs]
        _, _, gradients = self.differentiate(x, target)
        return [weight_scores(gradients[layer][WEIGHT]) for layer in range(len(self.layers) - 1)]
