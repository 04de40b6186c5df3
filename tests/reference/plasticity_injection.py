"""Naive plasticity injection (Nikishin et al. 2023) of the output layer: f = h(w) + h(w1) - h(w2).

At an injection w is frozen as it is, w1 and w2 are the same fresh draw; from then on only w1 and the layers before are
trained. The gradient of the input of the head flows through all three. A second injection freezes the sum as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import mlp
from .cbp import Optimizer
from .learner import BIAS, WEIGHT, Learner, copied
from .shrink_and_perturb import FreshNetwork


class NaiveInjection(Learner):
    """A learner whose `layers` hold the trained head last.

    A sum of linear heads is linear, so that what is frozen is kept as one pair: `offset`, added to the trained head in
    the forward and backward pass.
    """

    def __init__(
        self,
        layers: mlp.Layers,
        activations: str | Sequence[str],
        optimizer: Optimizer,
        *,
        fresh: FreshNetwork,
        at: int = 0,
        loss: str = "squared_error",
    ) -> None:
        super().__init__(layers, activations, optimizer, loss=loss)
        self.fresh, self.at = fresh, at
        weight, bias = self.layers[-1]
        self.offset = (np.zeros_like(weight), np.zeros_like(bias))
        self.injections = 0

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        self.updates += 1
        whole = copied(self.layers)
        for part in (WEIGHT, BIAS):
            whole[-1][part][...] += self.offset[part]
        pre_activations, values = mlp.forward(whole, self.activations, x)
        loss, output_gradient = mlp.LOSSES[self.loss](values[-1], target)
        gradients = mlp.backward(whole, self.activations, pre_activations, values, output_gradient)
        self.optimizer.update(self.layers, gradients)
        if self.updates == self.at:
            self.inject()
        return loss

    def task_boundary(self) -> None:
        self.inject()

    def inject(self) -> None:
        self.injections += 1
        for part in (WEIGHT, BIAS):
            new = self.fresh(self.injections, len(self.layers) - 1, part)
            self.offset[part][...] += self.layers[-1][part] - new
            self.layers[-1][part][...] = new
            for state in self.optimizer.state.values():
                state[-1][part][...] = 0.0
