"""Naive calibrated partial resets (CPR): every F updates, move each unit a little towards a new one.

At every update, with s_i the score of `regrama` over incoming weights:  u_i <- decay u_i + (1 - decay) s_i,  u_i = 1 at
the start. Every `period` updates, with a fresh draw for each row of incoming weights:

    r_i   = strength * min(2 * sigmoid(-sharpness * (u_i - 1)), 1)
    W_in  <- (1 - r_i) W_in + r_i fresh
    W_out <- (1 - r_i) W_out
    u_i   <- 1

Biases and the optimizer's state stay. A weight between two hidden units is first moved as an incoming one, then
shrunk as an outgoing one, as zero wins in a full reset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from . import mlp
from .cbp import Optimizer
from .learner import WEIGHT, Fresh, Learner
from .regrama import weight_scores


def reset_share(utility: float, strength: float, sharpness: float = 16.0) -> float:
    """r of one unit."""
    return strength * min(2.0 / (1.0 + math.exp(sharpness * (utility - 1.0))), 1.0)


class NaiveCPR(Learner):
    """A learner with calibrated partial resets.

    Attributes:
        utility: for each hidden layer the averages u (U,).
        shares: for each recalibration and layer the list of r.
    """

    def __init__(
        self,
        layers: mlp.Layers,
        activations: str | Sequence[str],
        optimizer: Optimizer,
        *,
        fresh: Fresh,
        period: int = 1000,
        strength: float = 0.015,
        sharpness: float = 16.0,
        decay_rate: float = 0.99,
        loss: str = "squared_error",
    ) -> None:
        super().__init__(layers, activations, optimizer, loss=loss)
        self.fresh, self.period, self.strength = fresh, period, strength
        self.sharpness, self.decay_rate = sharpness, decay_rate
        self.utility = [np.ones(len(bias)) for _, bias in layers[:-1]]
        self.shares: list[list[list[float]]] = []

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        """One update, and the partial reset if it is due; returns the loss from before."""
        self.updates += 1
        loss, _, gradients = self.differentiate(x, target)
        for layer, utility in enumerate(self.utility):
            scores = weight_scores(gradients[layer][WEIGHT])
            for unit in range(len(utility)):
                utility[unit] = self.decay_rate * utility[unit] + (1 - self.decay_rate) * scores[unit]
        self.optimizer.update(self.layers, gradients)
        if self.updates % self.period == 0:
            self.reset_partly()
        return loss

    def reset_partly(self) -> None:
        """Move every unit by its share."""
        shares = [[reset_share(u, self.strength, self.sharpness) for u in utility] for utility in self.utility]
        for layer, of_units in enumerate(shares):
            weight = self.layers[layer][WEIGHT]
            for unit, r in enumerate(of_units):
                weight[unit, :] = (1 - r) * weight[unit, :] + r * self.fresh(self.updates, layer, unit)
        for layer, of_units in enumerate(shares):
            weight = self.layers[layer + 1][WEIGHT]
            for unit, r in enumerate(of_units):
                weight[:, unit] = (1 - r) * weight[:, unit]
        for utility in self.utility:
            utility[:] = 1.0
        self.shares.append(shares)
