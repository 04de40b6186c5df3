"""Naive Adam-Rel: when the target changes, Adam's step count goes back to zero and its moments stay.

A change is a task boundary, or the end of a period of updates. With t = 1 at the next update the corrections divide the
old moments as if they were new: by 1 - beta1 and 1 - beta2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import mlp
from .learner import Learner


class NaiveAdamRel(Learner):
    """A learner with Adam (`cbp.Adam`, whose state has a time step for every weight)."""

    def __init__(self, layers: mlp.Layers, activations: Any, optimizer: Any, *, period: int = 0) -> None:
        super().__init__(layers, activations, optimizer)
        self.period = period
        self.restarts = 0

    def task_boundary(self) -> None:
        """Every time step to zero."""
        self.restarts += 1
        for pair in self.optimizer.state["time_step"]:
            for part in (0, 1):
                pair[part][...] = 0.0

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        """One update from a batch x (B, in); returns the loss from before it."""
        loss = super().step(x, target)
        if self.period and self.updates % self.period == 0:
            self.task_boundary()
        return loss
