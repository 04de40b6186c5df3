"""ReDo: every F updates, replace the units that are nearly silent compared with their layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from neoteny.methods.card import Card
from neoteny.methods.declaration import KernelState, KernelTerms, PeriodicReset
from neoteny.methods.method import State, check_number
from neoteny.methods.unit_method import UnitMethod, mean_activity
from neoteny.units.view import LiveGroup, Reader, View

_EPSILON = 1e-9


@dataclass(frozen=True)
class ReDo(UnitMethod):
    r"""At regular intervals, replaces units that are nearly silent compared with their layer (Sokar et al. 2023).

    The score of unit \(i\) is its mean absolute activation over the batch divided by the mean over its layer,
    \(s_i = \mathbb E|h_i| / (\frac1U \sum_k \mathbb E|h_k| + 10^{-9})\). Every `period` updates the units with
    \(s_i \le \tau\) get fresh incoming weights, zero bias, zero outgoing weights and fresh optimizer state. Scores of
    all layers come from one forward pass, before anything is rewritten.

    A unit's activations over the positions of a convolution are averaged. The published code resets from a batch of its
    own, of 64 to 256 examples; here the batch is the one of this update. With one example per update every unit that
    this example leaves silent counts as dormant, so scores say little: use larger batches, or `SelfNormalizedResets`,
    which follows units over many updates.

    The scheduled variant has no threshold: at update \(t\) of \(T\) it resets the lowest
    \(\mathrm{round}(n \cdot 0.3 \cos(\pi t / 2T))\) units of a layer of \(n\), at least 1, and every unit that ties
    with the last of them. After \(T\) updates it goes on with 1.

    Args:
        period: updates between two checks, at least 1. The authors use 1,000 (DQN on Atari); as a baseline of L2-init
            it was tuned to 1, 2 or 5 tasks.
        threshold: \(\tau\), at least 0; 0 replaces units that are exactly silent. The authors use 0.025 at a replay
            ratio of 0.25 and 0.1 at higher ratios; as a baseline of L2-init it was tuned among 0, 0.01 and 0.1.
        schedule: \(T\), the updates of the scheduled variant, or 0 for the rule with a threshold.
        share: of a layer that the scheduled variant resets at first, in [0, 1].

    Example:
        >>> ReDo().period
        1000
    """

    period: int = 1000
    threshold: float | tuple[float, ...] = 0.1
    schedule: int = 0
    share: float = 0.3

    card: ClassVar[Card] = Card(
        "resets of units",
        "hidden units",
        "every `period` updates",
        "nothing",
        "Sokar et al. 2023, The dormant neuron phenomenon in deep reinforcement learning",
    )

    def __post_init__(self) -> None:
        check_number(self, "period", 1, whole=True, single=True)
        check_number(self, "threshold")
        check_number(self, "schedule", 0, whole=True, single=True)
        check_number(self, "share", 0.0, 1.0, single=True)

    def is_due(self, step: int) -> bool:
        """Every `period` updates."""
        return step % self.period == 0

    def init(self, view: View) -> State:
        """Of the scheduled variant also the number of updates, where `choose` can read it."""
        state = super().init(view)
        for each in state["groups"].values() if self.schedule else ():
            each["update"] = 0
        return state

    def step(self, view: View, state: State) -> None:
        """Choose and replace units; see `UnitMethod.step`."""
        for each in state["groups"].values() if self.schedule else ():
            each["update"] = state["step"] + 1
        super().step(view, state)

    def choose(self, view: View, group: LiveGroup, reader: Reader, state: State) -> Tensor:
        """Units whose score is at most the threshold; of a schedule, the lowest ones and all that tie with them."""
        activity = mean_activity(view, reader)
        scores = dormant_scores(activity)
        if self.schedule:
            number = scheduled_number(group.units, state["update"], self.schedule, self.share)
            return scores <= scores.kthvalue(number, dim=-1, keepdim=True).values
        return scores <= view.per_run(self.threshold, activity, axes=1)

    def kernel_terms(self) -> KernelTerms | str:
        """Resets of units with little activity."""
        if self.schedule:
            return "ReDo with a schedule is not covered"
        return KernelTerms(reset=PeriodicReset("activity", self.period, self.threshold))

    def kernel_state(self, state: State) -> KernelState:
        """The number of updates, and counts of reset units."""
        return KernelState(clock=state, groups=state["groups"])


def scheduled_number(units: int, update: int, total: int, share: float) -> int:
    """How many units of a layer the scheduled variant resets at an update."""
    angle = math.pi * min(update, total) / (2.0 * total)
    return max(1, round(units * share * math.cos(angle)))


def dormant_scores(activity: Tensor) -> Tensor:
    """Mean absolute activations (*R, U) relative to the layer's mean."""
    return activity / (activity.mean(-1, keepdim=True) + _EPSILON)
