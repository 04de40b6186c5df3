"""Naive selective weight reinitialisation (Hernandez-Garcia 2025): every n updates, redraw the least useful weights.

The utility of a weight is |g w| or |w|, both from before the update, averaged with decay d (0: the present one). The
average starts at zero after each reinitialisation. Every `period` updates, in each weight matrix of N elements:

    proportional   the floor(k N) smallest, and one more with the probability of the fraction
    threshold      all with utility <= k * (mean utility of the matrix)

Redrawn elements get fresh optimizer state. Ties go to the lowest index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from . import mlp
from .cbp import Optimizer
from .learner import WEIGHT, Learner

Utility = Literal["gradient", "magnitude"]
Rule = Literal["proportional", "threshold"]


def weight_utility(utility: Utility, weight: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """The present utility of every weight."""
    found = np.zeros(weight.shape)
    for place in np.ndindex(weight.shape):
        found[place] = abs(weight[place] * (gradient[place] if utility == "gradient" else 1.0))
    return found


def number_due(amount: float, elements: int, draw: float) -> int:
    """How many weights the proportional rule takes, for a uniform draw in (0, 1)."""
    whole = math.floor(amount * elements)
    return whole + (1 if draw < amount * elements - whole else 0)


def least_useful(utility: np.ndarray, number: int) -> list[int]:
    """Flat indices of the `number` smallest."""
    flat = utility.ravel()
    return sorted(range(flat.size), key=lambda place: (flat[place], place))[:number]


def below_mean(utility: np.ndarray, amount: float) -> list[int]:
    """Flat indices of the utilities that are at most `amount` times their mean."""
    flat = utility.ravel()
    mean = sum(flat) / flat.size
    return [place for place in range(flat.size) if flat[place] <= amount * mean]


class NaiveSWR(Learner):
    """A learner that redraws single weights.

    Attributes:
        redrawn: for each reinitialisation the list of (layer, flat index).
    """

    def __init__(
        self,
        layers: mlp.Layers,
        activations: str | Sequence[str],
        optimizer: Optimizer,
        *,
        fresh: Callable[[int, int], np.ndarray],
        draw: Callable[[int, int], float],
        period: int,
        amount: float,
        utility: Utility = "gradient",
        rule: Rule = "proportional",
        decay_rate: float = 0.0,
        loss: str = "squared_error",
    ) -> None:
        """
        Args:
            fresh: (update, layer) -> a whole fresh weight matrix.
            draw: (update, layer) -> the uniform draw of the proportional rule.
        """
        super().__init__(layers, activations, optimizer, loss=loss)
        self.fresh, self.draw = fresh, draw
        self.period, self.amount, self.decay_rate = period, amount, decay_rate
        self.utility: Utility = utility
        self.rule: Rule = rule
        self.average = [np.zeros_like(weight) for weight, _ in self.layers]
        self.redrawn: list[list[tuple[int, int]]] = []

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        """One update, and the reinitialisation if it is due; returns the loss from before."""
        self.updates += 1
        loss, _, gradients = self.differentiate(x, target)
        for layer, (weight, _) in enumerate(self.layers):
            now = weight_utility(self.utility, weight, gradients[layer][WEIGHT])
            self.average[layer] = self.decay_rate * self.average[layer] + (1 - self.decay_rate) * now
        self.optimizer.update(self.layers, gradients)
        if self.updates % self.period == 0:
            self.reinitialise()
        return loss

    def reinitialise(self) -> None:
        """Redraw the weights that are due in every layer."""
        redrawn: list[tuple[int, int]] = []
        for layer, (weight, _) in enumerate(self.layers):
            average = self.average[layer]
            if self.rule == "proportional":
                number = number_due(self.amount, weight.size, self.draw(self.updates, layer))
                places = least_useful(average, number)
            else:
                places = below_mean(average, self.amount)
            fresh = self.fresh(self.updates, layer)
            for place in places:
                index = np.unravel_index(place, weight.shape)
                weight[index] = fresh[index]
                for state in self.optimizer.state.values():
                    state[layer][WEIGHT][index] = 0.0
            average[...] = 0.0
            redrawn += [(layer, place) for place in places]
        self.redrawn.append(redrawn)
