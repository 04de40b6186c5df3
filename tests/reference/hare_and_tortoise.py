"""Naive Hare & Tortoise (Lee et al. 2024): a slow average of the weights, to which training returns on a clock.

    after every update           slow = decay slow + (1 - decay) fast
    after every period updates   fast = slow

The fast weights are trained, the slow ones evaluated; the optimizer's state is kept at the copy. The two never share
storage: an update of the fast weights after a copy must not move the slow ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import mlp
from .cbp import Optimizer
from .learner import Learner, copied


def averaged(slow: np.ndarray, fast: np.ndarray, decay_rate: float) -> np.ndarray:
    """The slow array after one update."""
    new = np.zeros_like(slow)
    for index in np.ndindex(slow.shape):
        new[index] = decay_rate * slow[index] + (1.0 - decay_rate) * fast[index]
    return new


class NaiveHareAndTortoise(Learner):
    """A learner whose `layers` are the fast weights.

    Attributes:
        slow: the averaged (weight, bias) pairs, which start as the initial weights.
    """

    def __init__(
        self,
        layers: mlp.Layers,
        activations: str | Sequence[str],
        optimizer: Optimizer,
        *,
        decay_rate: float = 0.999,
        period: int = 1000,
        loss: str = "squared_error",
    ) -> None:
        super().__init__(layers, activations, optimizer, loss=loss)
        self.decay_rate = decay_rate
        self.period = period
        self.slow = copied(layers)

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        """One update, the average, and the copy if it is due; returns the loss from before."""
        loss = super().step(x, target)
        self.average()
        return loss

    def average(self) -> None:
        """What follows update number `updates`."""
        for slow, fast in zip(self.slow, self.layers, strict=True):
            for part in (0, 1):
                slow[part][...] = averaged(slow[part], fast[part], self.decay_rate)
        if self.updates % self.period == 0:
            for slow, fast in zip(self.slow, self.layers, strict=True):
                for part in (0, 1):
                    fast[part][...] = slow[part]

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        """Outputs (B, out) of the slow weights."""
        return mlp.forward(self.slow, self.activations, x)[1][-1]
