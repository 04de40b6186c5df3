"""Self-normalised resets: replace a unit when it has been silent for longer than its own history makes likely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from neoteny.layers.regions import ChosenUnits
from neoteny.methods.card import Card
from neoteny.methods.declaration import KernelState, KernelTerms, SilenceReset
from neoteny.methods.method import BoundaryData, State, check_choice, check_number
from neoteny.methods.unit_method import UnitMethod
from neoteny.units.view import LiveGroup, Reader, View

CLOCKS = ("updates", "tasks")


@dataclass(frozen=True)
class SelfNormalizedResets(UnitMethod):
    r"""SNR: resets at silences that are improbable for the unit itself (Farias and Jozefiak 2025).

    The rule is \(P(A \ge a_i) \le \eta\), with \(a_i\) the age of a unit, the number of examples since it last fired,
    and \(A\) its usual age when it fires. A unit is silent in a batch of \(B\) if its activation is at most 0 on all
    examples and positions: then \(a_i\) grows by \(B\). Else \(a_i\) is recorded in the unit's histogram, and starts
    again. After the update units with \(a_i \ge \tau_i\) are recorded, reset, and start again. At a recalibration, with
    \(q\) the smallest recorded age at which the cumulative share of all ages above 0 reaches \(1 - \eta\),
    \(\tau_i\) becomes \(q\) if that is below \(\tau_i\), else \(2 \tau_i\), within \([B, L B]\); the histogram is
    cleared.

    Decided here: a unit that fired in every batch has no ages, and keeps its \(\tau_i\). The histogram has one place
    per batch of silence, of the largest batch so far, up to \(L\) batches; longer silences count as \(L\). A larger
    batch than before starts all histograms again. Each row that a layer is given counts as an example (a token of a
    sequence). A unit that fires in every batch is never reset. The histograms take 4 bytes times \(L\) per unit, which
    in a small network is more than its weights. On a GPU an update takes 5 to 8 plain ones of a small network: only the
    device knows which units are late, so every update launches a reset of every group, which mostly writes nothing.

    Args:
        rejection: \(\eta\), in [0, 1); 0 never resets. The authors' code has 0.01; they sweep 0.08 to 0.00125 on
            permuted MNIST.
        first_threshold: \(\tau_i\) of all units before the first recalibration, in examples (ours).
        longest: \(L\), the largest threshold in batches, and the length of the histograms (ours).
        period: updates or tasks between two recalibrations, at least 1. The authors recalibrate every 16 tasks:
            `period=16, clock="tasks"`. The default (ours) also works where boundaries are not told.
        clock: what `period` counts, "updates" or "tasks".

    Example:
        >>> SelfNormalizedResets(0.02, period=16, clock="tasks").rejection
        0.02
    """

    rejection: float | tuple[float, ...] = 0.01
    first_threshold: int = 10_000
    longest: int = 1000
    period: int = 1000
    clock: str = "updates"

    card: ClassVar[Card] = Card(
        "resets of units",
        "hidden units",
        "at every update, units that were silent for long",
        "a histogram of `longest` numbers per unit",
        "Farias and Jozefiak 2025, Self-normalized resets for plasticity in continual learning",
    )

    def __post_init__(self) -> None:
        check_number(self, "rejection", 0.0, 1.0, below_high=True)
        for name in ("first_threshold", "longest", "period"):
            check_number(self, name, 1, whole=True, single=True)
        check_choice(self, "clock", CLOCKS)

    def init(self, view: View) -> State:
        """Also age, threshold and histogram of every unit, each group's largest batch, and the number of tasks."""
        state = super().init(view)
        state["tasks"] = 0
        for group in view.groups:
            age = torch.zeros((*view.runs, group.units), dtype=torch.int64, device=view.seeds.device)
            histogram = age.new_zeros((*age.shape, self.longest), dtype=torch.int32)
            state["groups"][group.name] |= {
                "age": age,
                "threshold": torch.full_like(age, self.first_threshold),
                "histogram": histogram,
                "batch": 0,
            }
        return state

    def step(self, view: View, state: State) -> None:
        """Count, reset, and recalibrate at the end of a period."""
        super().step(view, state)
        if self.clock == "updates" and state["step"] % self.period == 0:
            self._recalibrate(view, state)

    def task_boundary(self, view: View, state: State, data: BoundaryData | None = None) -> None:
        """With clock="tasks", recalibrate when `period` tasks have ended."""
        state["tasks"] += 1
        if self.clock == "tasks" and state["tasks"] % self.period == 0:
            self._recalibrate(view, state)

    def choose(self, view: View, group: LiveGroup, reader: Reader, state: State) -> Tensor:
        """Count the ages of this update; units whose age has reached their threshold."""
        batches = [reader.split(inputs, len(view.runs)) for inputs in view.activations[reader.key]]
        examples = sum(batch.shape[-3] for batch in batches)
        if examples > state["batch"]:
            state["batch"] = examples
            state["histogram"].zero_()
        # A number that is not finite counts as firing: it says nothing about silence.
        silent = torch.stack([(batch <= 0.0).all(-1).all(-2) for batch in batches]).all(0)  # (*R, U)
        age: Tensor = state["age"]
        _record(state, ~silent)
        age.copy_(torch.where(silent, age + examples, 0))
        late = (age >= state["threshold"]) & (self._rejection(view, age, axes=1) > 0.0)
        _record(state, late)
        age.masked_fill_(late, 0)
        return late

    def on_units_reset(self, view: View, state: State, group: LiveGroup, chosen: ChosenUnits) -> None:
        """A unit that another method has reset has no history."""
        kept = state["groups"][group.name]
        chosen.put(kept["age"], 0)
        chosen.put(kept["threshold"], self.first_threshold)
        chosen.put(kept["histogram"], 0)

    def kernel_terms(self) -> KernelTerms:
        """Resets of units that were silent for long."""
        period = self.period if self.clock == "updates" else 0
        return KernelTerms(reset=SilenceReset(self.rejection, self.first_threshold, self.longest, period))

    def kernel_state(self, state: State) -> KernelState:
        """The number of updates, and the groups' counts, ages, thresholds and histograms."""
        return KernelState(clock=state, groups=state["groups"])

    def _rejection(self, view: View, like: Tensor, axes: int) -> float | Tensor:
        """eta, in double precision."""
        return view.per_run(self.rejection, torch.empty((), dtype=torch.float64, device=like.device), axes)

    def _recalibrate(self, view: View, state: State) -> None:
        """New thresholds from the histograms, which start again."""
        for kept in state["groups"].values():
            share = 1.0 - self._rejection(view, kept["age"], axes=2)
            kept["threshold"].copy_(new_thresholds(kept["threshold"], kept["histogram"], share, kept["batch"]))
            kept["histogram"].zero_()


def new_thresholds(threshold: Tensor, histogram: Tensor, share: float | Tensor, batch: int) -> Tensor:
    """Thresholds after a recalibration, (*R, U).

    Args:
        threshold: before it, in examples.
        histogram: (*R, U, L), how often a unit was silent for 1, 2, ..., L batches.
        share: 1 - eta; broadcasts against the histogram.
        batch: examples of one batch.
    """
    cumulative = histogram.cumsum(-1).double()
    total = cumulative[..., -1:]
    age = ((cumulative < share * total).sum(-1) + 1) * batch  # the smallest that reaches the share
    proposed = torch.where(age < threshold, age, 2 * threshold).clamp(batch, histogram.shape[-1] * batch)
    return torch.where(total.squeeze(-1) > 0.0, proposed, threshold)


def _record(state: State, chosen: Tensor) -> None:
    """Count the ages above zero of some units (a mask (*R, U)) in their histograms."""
    age, histogram = state["age"], state["histogram"]
    batches = torch.div(age + state["batch"] - 1, state["batch"], rounding_mode="floor")
    place = (batches - 1).clamp(0, histogram.shape[-1] - 1).unsqueeze(-1)
    counted = (chosen & (age > 0)).unsqueeze(-1).to(histogram.dtype)
    histogram.scatter_add_(-1, place, counted)
