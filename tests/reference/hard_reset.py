"""Naive hard resets (Nikishin et al. 2022): some layers are drawn new on a clock or at boundaries.

The optimizer forgets them. With a share for the rest (BBF, Schwarzer et al. 2023), every other parameter becomes
(1 - share) w + share w_fresh, and the optimizer forgets those too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import mlp
from .cbp import Optimizer
from .learner import Learner
from .shrink_and_perturb import FreshNetwork


class NaiveHardReset(Learner):
    """A learner whose layers with these numbers are drawn new every `period` updates (0: never) and at boundaries."""

    def __init__(
        self,
        layers: mlp.Layers,
        activations: str | Sequence[str],
        optimizer: Optimizer,
        *,
        fresh: FreshNetwork,
        reset: Sequence[int],
        period: int = 0,
        share: float = 0.0,
        loss: str = "squared_error",
    ) -> None:
        super().__init__(layers, activations, optimizer, loss=loss)
        self.fresh, self.reset, self.period, self.share = fresh, list(reset), period, share
        self.resets = 0

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        loss = super().step(x, target)
        if self.period and self.updates % self.period == 0:
            self.act()
        return loss

    def task_boundary(self) -> None:
        self.act()

    def act(self) -> None:
        self.resets += 1
        for number, layer in enumerate(self.layers):
            share = 1.0 if number in self.reset else self.share
            if share == 0.0:
                continue
            for part in (0, 1):
                new = self.fresh(self.resets, number, part)
                layer[part][...] = new if share == 1.0 else (1.0 - share) * layer[part] + share * new
                for state in self.optimizer.state.values():
                    state[number][part][...] = 0.0
