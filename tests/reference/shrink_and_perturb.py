"""Naive shrink and perturb in the forms that draw or keep a whole second network.

at a boundary, Ash and Adams 2020       w = shrink w + perturb w_fresh, and a fresh optimizer
at a boundary, towards the start        w = shrink w + perturb w_0, the same w_0 each time
after every update, Juliani and Ash     w = (1 - rate) w + rate w_fresh, each time a newly drawn network
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from . import mlp
from .cbp import Optimizer
from .learner import Learner, copied

FreshNetwork = Callable[[int, int, int], np.ndarray]
"""(how many networks were drawn, this one included; layer; part) -> a weight (part 0) or bias (part 1)."""


class NaiveWarmStart(Learner):
    """A learner that shrinks and perturbs all weights and biases when a task begins.

    Args:
        fresh: the drawn networks; None for the network that training began with.
        clear: whether the optimizer starts again.
    """

    def __init__(
        self,
        layers: mlp.Layers,
        activations: str | Sequence[str],
        optimizer: Optimizer,
        *,
        shrink: float,
        perturb: float,
        fresh: FreshNetwork | None,
        clear: bool = True,
        loss: str = "squared_error",
    ) -> None:
        super().__init__(layers, activations, optimizer, loss=loss)
        self.shrink, self.perturb, self.fresh, self.clear = shrink, perturb, fresh, clear
        self.first = copied(layers)
        self.boundaries = 0

    def task_boundary(self) -> None:
        self.boundaries += 1
        for number, layer in enumerate(self.layers):
            for part in (0, 1):
                target = self.first[number][part]
                if self.fresh is not None:
                    target = self.fresh(self.boundaries, number, part)
                for index in np.ndindex(layer[part].shape):
                    layer[part][index] = self.shrink * layer[part][index] + self.perturb * target[index]
        if self.clear:
            self.optimizer.start(self.layers)


class NaiveSoftShrinkAndPerturb(Learner):
    """A learner that mixes a little of a new network into its own after every update."""

    def __init__(
        self,
        layers: mlp.Layers,
        activations: str | Sequence[str],
        optimizer: Optimizer,
        *,
        rate: float,
        fresh: FreshNetwork,
        loss: str = "squared_error",
    ) -> None:
        super().__init__(layers, activations, optimizer, loss=loss)
        self.rate, self.fresh = rate, fresh

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        loss = super().step(x, target)
        for number, layer in enumerate(self.layers):
            for part in (0, 1):
                new = self.fresh(self.updates, number, part)
                layer[part][...] = (1.0 - self.rate) * layer[part] + self.rate * new
        return loss
