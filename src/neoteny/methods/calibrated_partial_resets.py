"""Calibrated partial resets: every F updates, move each unit towards a new one by as much as it lacks gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from neoteny.layers.regions import ChosenUnits
from neoteny.methods.card import Card
from neoteny.methods.method import Method, State, check_number, count_update
from neoteny.units.gradients import weight_scores
from neoteny.units.view import LiveGroup, View, read_modules


@dataclass(frozen=True)
class CalibratedPartialResets(Method):
    r"""CPR: soft resets of all units, stronger for those with small gradients (CPR, 2026).

    With \(s_i\) the score of `ReGraMa` (the mean absolute gradient of a unit's incoming weights, relative to its
    layer), \(u_i \leftarrow \beta u_i + (1 - \beta) s_i\) at every update. Every `period` updates, with \(\sigma\) the
    logistic function, \(r_i = \rho \min(2 \sigma(-\kappa (u_i - 1)), 1)\) and a fresh draw \(W'\),

    \(W_{in} \leftarrow (1 - r_i) W_{in} + r_i W'\), \(W_{out} \leftarrow (1 - r_i) W_{out}\), \(u_i \leftarrow 1\).

    Biases, norms and optimizer state stay as they are, so no weight counts as new to other methods. A weight between
    two hidden units is first moved as an incoming one, then shrunk as an outgoing one. A unit that another method
    resets begins with \(u_i = 1\).

    Args:
        period: updates between two partial resets, at least 1. The authors use 1,000 (100 on CIFAR and MNIST).
        strength: \(\rho\), the largest share of a unit that is replaced, in [0, 1]. The authors use 0.015 (0.01 on
            CIFAR and MNIST).
        sharpness: \(\kappa\), at least 0; the authors use 16.
        decay_rate: \(\beta\), in [0, 1); the authors use 0.99.

    Example:
        >>> CalibratedPartialResets().strength
        0.015
    """

    period: int = 1000
    strength: float | tuple[float, ...] = 0.015
    sharpness: float | tuple[float, ...] = 16.0
    decay_rate: float | tuple[float, ...] = 0.99

    needs_units: ClassVar[bool] = True

    card: ClassVar[Card] = Card(
        "resets of units",
        "incoming and outgoing weights of hidden units",
        "every `period` updates",
        "one number per unit",
        "CPR, 2026, on calibrated partial resets",
    )

    def __post_init__(self) -> None:
        check_number(self, "period", 1, whole=True, single=True)
        check_number(self, "strength", 0.0, 1.0)
        check_number(self, "sharpness")
        check_number(self, "decay_rate", 0.0, 1.0, below_high=True)

    def reads(self, view: View) -> list[str]:
        """Every group's reader and consumers, which tell whether its units took part in an update."""
        return read_modules(view)

    def init(self, view: View) -> State:
        """The average score of every unit, one at the start."""
        ones = {
            group.name: torch.ones((*view.runs, group.units), dtype=torch.float64, device=view.seeds.device)
            for group in view.groups
        }
        return {"step": 0, "utility": ones}

    def observe(self, view: View, state: State) -> None:
        """Average the scores of units that have gradients now; a score that is not finite is left out."""
        for group in view.groups:
            if group.reading(view.activations) is None or not view.trainable(group):
                continue
            scores = weight_scores(view, group)
            if scores is not None:
                average: Tensor = state["utility"][group.name]
                rate = 1.0 - view.per_run(self.decay_rate, average, axes=1)
                average.lerp_(torch.where(scores.isfinite(), scores, average), rate)

    def step(self, view: View, state: State) -> None:
        """At the end of a period, move the units of every group that took part in this update."""
        if not count_update(state, self.period):
            return
        acting: list[tuple[LiveGroup, ChosenUnits, Tensor]] = []
        for group in view.groups:
            if group.reading(view.activations) is not None and view.trainable(group):
                average: Tensor = state["utility"][group.name]
                everyone = ChosenUnits.of(torch.ones_like(average, dtype=torch.bool))
                acting.append((group, everyone, self._shares(view, average).flatten()))
                average.fill_(1.0)
        for group, units, shares in acting:
            _move_incoming(view, group, units, shares, state["step"])
        for group, units, shares in acting:
            for port in group.consumers:
                region = port.region(units)
                old = region.read(view.tensor(port.weight))
                view.write(region, old * (1.0 - _beside(shares, old)))

    def on_units_reset(self, view: View, state: State, group: LiveGroup, chosen: ChosenUnits) -> None:
        """The average of a new unit is one."""
        chosen.put(state["utility"][group.name], 1.0)

    def _shares(self, view: View, average: Tensor) -> Tensor:
        """r of every unit, (*R, U)."""
        sharpness = view.per_run(self.sharpness, average, axes=1)
        calibrated = (2.0 * torch.sigmoid(-sharpness * (average - 1.0))).clamp_max(1.0)
        return calibrated * view.per_run(self.strength, average, axes=1)


def _move_incoming(view: View, group: LiveGroup, units: ChosenUnits, shares: Tensor, step: int) -> None:
    """Move the incoming weights of all units towards a fresh draw."""
    seeds = view.seeds[units.runs] if units.runs else view.seeds
    for port, distribution in zip(group.producers, group.initial, strict=True):
        incoming, _ = port.regions(units)
        old = incoming.read(view.tensor(port.weight))
        _, rows = port.indices(units)
        fresh = distribution.draw(seeds.unsqueeze(-1), step, f"{port.weight}/partial", rows, port.fan_in)
        share = _beside(shares, old)
        view.write(incoming, old * (1.0 - share) + fresh.unflatten(-1, port.row_shape).to(old) * share)


def _beside(shares: Tensor, elements: Tensor) -> Tensor:
    """Shares (M,) that broadcast against elements (M, repeat, ...)."""
    return shares.to(elements.dtype).reshape(-1, *(1,) * (elements.dim() - 1))
