"""Naive Wasserstein regularisation (Lewandowski et al. 2023): pull the distribution of each tensor to its initial one.

    penalty   lambda sum over tensors |sort(w) - sort(w0)|^2, for one tensor optionally divided by its number of weights
    gradient  2 lambda (w_i - the value of w0 that has the rank of w_i among all of w)

Equal values are ranked in their order. w0 is taken before the first update.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import mlp
from .cbp import Optimizer
from .learner import Learner, copied


def ranks(values: Sequence[float]) -> list[int]:
    """For each value how many come before it in ascending order."""
    found = []
    for i, value in enumerate(values):
        found.append(sum(1 for j, other in enumerate(values) if other < value or (other == value and j < i)))
    return found


def penalty(w: np.ndarray, anchor: np.ndarray, mean: bool = False) -> float:
    """The term of one tensor, without the strength."""
    ours, theirs = sorted(w.ravel().tolist()), sorted(anchor.ravel().tolist())
    total = sum((a - b) ** 2 for a, b in zip(ours, theirs, strict=True))
    return total / len(ours) if mean else total


def gradient(w: np.ndarray, anchor: np.ndarray, mean: bool = False) -> np.ndarray:
    """The gradient of `penalty`."""
    values, targets = w.ravel().tolist(), sorted(anchor.ravel().tolist())
    found = [2.0 * (value - targets[rank]) for value, rank in zip(values, ranks(values), strict=True)]
    return np.array(found).reshape(w.shape) / (len(values) if mean else 1)


class NaiveWasserstein(Learner):
    """A learner with the term in its loss.

    Attributes:
        anchor: the initial (weight, bias) pairs, copies.
    """

    def __init__(
        self,
        layers: mlp.Layers,
        activations: str | Sequence[str],
        optimizer: Optimizer,
        *,
        strength: float,
        mean: bool = False,
    ) -> None:
        super().__init__(layers, activations, optimizer)
        self.strength = strength
        self.mean = mean
        self.anchor = copied(layers)

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        """One update; returns the loss from before it, without the term."""
        self.updates += 1
        loss, _, gradients = self.differentiate(x, target)
        for layer, pair in enumerate(self.layers):
            for part in (0, 1):
                pull = gradient(pair[part], self.anchor[layer][part], self.mean)
                gradients[layer][part][...] += self.strength * pull
        self.optimizer.update(self.layers, gradients)
        return loss
