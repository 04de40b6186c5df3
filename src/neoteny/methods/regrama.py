"""ReGraMa: every F updates, replace the units that hardly get a gradient compared with their layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from neoteny.methods.card import Card
from neoteny.methods.declaration import KernelState, KernelTerms, PeriodicReset
from neoteny.methods.method import State, check_choice, check_number
from neoteny.methods.unit_method import UnitMethod
from neoteny.units.gradients import gradient_modules, output_scores, weight_scores
from neoteny.units.view import LiveGroup, Reader, View

SCORES = ("weights", "activations")


@dataclass(frozen=True)
class ReGraMa(UnitMethod):
    r"""At regular intervals, replaces units with small gradients compared with their layer (ReGraMa, NeurIPS 2025).

    The score of unit \(i\) is its mean absolute gradient \(g_i\) divided by the mean over its layer,
    \(s_i = g_i / (\frac1U \sum_k g_k + 10^{-8})\). Every `period` updates the units with \(s_i \le \tau\) are reset as
    in ReDo: fresh incoming weights, zero bias, zero outgoing weights, fresh optimizer state. The gradient is that of
    the training loss, read before loss terms of other methods and before the update.

    Unlike the size of activations, this also works behind layer norm and smooth activation functions, where no unit is
    ever silent.

    Args:
        period: updates between two checks, at least 1. Published: 1,000; 100 for one simulated robot.
        threshold: \(\tau\), at least 0; 0 replaces units without any gradient. Published: 0.01; 0.25 for one simulated
            robot and MNIST, 0.1 for CIFAR.
        score: what \(g_i\) is the mean of. "weights": the gradient of the unit's incoming weights; "activations": the
            gradient at the unit's output, over examples and positions (another implementation takes it before the
            activation function, which a unit's consumer does not see).

    Example:
        >>> ReGraMa().threshold
        0.01
    """

    period: int = 1000
    threshold: float | tuple[float, ...] = 0.01
    score: str = "weights"

    card: ClassVar[Card] = Card(
        "resets of units",
        "hidden units",
        "every `period` updates",
        "one number per unit",
        "ReGraMa, NeurIPS 2025, on gradients as a measure of a unit's capacity to learn",
    )

    def __post_init__(self) -> None:
        check_number(self, "period", 1, whole=True, single=True)
        check_number(self, "threshold")
        check_choice(self, "score", SCORES)

    def reads_gradients(self, view: View) -> list[str]:
        """With score="activations", where units are read."""
        return gradient_modules(view, "ReGraMa(score='activations')") if self.score == "activations" else []

    def init(self, view: View) -> State:
        """Also the last score of every unit; infinite where it is not known."""
        state = super().init(view)
        for group in view.groups:
            unknown = torch.full((*view.runs, group.units), math.inf, dtype=torch.float64, device=view.seeds.device)
            state["groups"][group.name]["score"] = unknown
        return state

    def is_due(self, step: int) -> bool:
        """Every `period` updates."""
        return step % self.period == 0

    def observe(self, view: View, state: State) -> None:
        """Take the scores from the gradients of the loss alone, if the coming update is one with a check."""
        if not self.is_due(state["step"] + 1):
            return
        for group in view.groups:
            reader = group.reading(view.activations)
            kept: Tensor = state["groups"][group.name]["score"]
            scores = None
            if reader is not None and view.trainable(group):
                at_weights = self.score == "weights"
                scores = weight_scores(view, group) if at_weights else output_scores(view, group, reader)
            kept.fill_(math.inf) if scores is None else kept.copy_(scores)

    def choose(self, view: View, group: LiveGroup, reader: Reader, state: State) -> Tensor:
        """Units whose score is at most the threshold."""
        return state["score"] <= view.per_run(self.threshold, state["score"], axes=1)

    def kernel_terms(self) -> KernelTerms | str:
        """Resets of units with small gradients."""
        if self.score != "weights":
            return f"ReGraMa(score={self.score!r}) is not covered"
        return KernelTerms(reset=PeriodicReset("gradient", self.period, self.threshold))

    def kernel_state(self, state: State) -> KernelState:
        """The number of updates, counts of reset units, and scores."""
        return KernelState(clock=state, groups=state["groups"])
