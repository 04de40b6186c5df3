"""Continual backpropagation: after every update, replace a few low-utility units by new ones (Algorithm 1).

Differences from the paper's text, each decided for a reason: the bias-corrected mean activation and utility include
the current example (a proper mean, where the paper's lags one step behind its exponent); utilities of all groups are
measured before any unit is reset; sums of absolute weights are means, which rank alike inside a layer; the number of
units due accumulates as rate * (eligible units) unless `count="layer"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from neoteny.draws import rng
from neoteny.layers.regions import ChosenUnits
from neoteny.methods.card import Card
from neoteny.methods.declaration import KernelState, KernelTerms, RecordedStep, Replacement
from neoteny.methods.method import Method, State, check_choice, check_flag, check_number
from neoteny.methods.state import copy_nested
from neoteny.text import render
from neoteny.units import statistics as units
from neoteny.units.device_tick import Settings, fused_reset, fused_tick, tick_on_device
from neoteny.units.fused_tick import measure_compiled
from neoteny.units.gradients import gradient_modules, replacement_cost
from neoteny.units.magnitudes import Magnitudes
from neoteny.units.reset import clear_outgoing, draw_incoming
from neoteny.units.schedule import Schedule
from neoteny.units.totals import add_passes, measure_totals
from neoteny.units.utilities import ACTIVITY, CENTRED, GRADIENT, RANDOM, UTILITIES
from neoteny.units.view import LiveGroup, Reader, View, read_modules

COUNTS = ("eligible", "layer")
_HOST_SIDE = ("schedule", "replaced", "recount", "arrays")  # of a group's statistics, what is not a tensor


@dataclass(frozen=True)
class ContinualBackprop(Method):
    r"""Replaces a few units of low utility after every update (Dohare, Sutton and Mahmood 2023).

    With \(h\) a unit's activations, \(\hat f\) their bias-corrected running mean (equations 3 and 4), and weights after
    the update, the overall utility is the bias-corrected running average (equations 7 and 8) of
    \(|h - \hat f| \cdot \mathrm{mean}|w_{out}| / \mathrm{mean}|w_{in}|\) (equation 6). The contribution utility is
    equation 2, the mean-corrected one equation 5.

    "gxd" is the first-order cost of the reset itself, \(\mathbb E|\partial L/\partial h \cdot (h - r)|\) over examples,
    with \(r = \hat f\) if compensating, else 0 (2026; the formula is inferred from an abstract). Over the positions of
    a convolution the products are summed before the absolute value. It reads gradients of activations, so that only the
    library computes it; under a gradient scaler they are scaled, which ranks the units of a layer alike as long as the
    scale stays.

    Args:
        replacement_rate: share of the eligible units replaced at each step, in [0, 1].
        maturity_threshold: a unit is eligible when its age in steps exceeds this.
        decay_rate: of the running averages, in [0, 1).
        utility: "overall", "mean_corrected_contribution", "contribution", "adaptation", "weight_magnitude", "random"
            or "gxd".
        compensate: add a replaced unit's mean contribution to the biases of its consumers, which keeps their mean
            pre-activation.
        count: "eligible" replaces rate * (eligible units) per step, "layer" rate * (units of the layer).

    Example:
        >>> ContinualBackprop(replacement_rate=1e-3).utility
        'overall'
    """

    replacement_rate: float | tuple[float, ...] = 1e-4
    maturity_threshold: int | tuple[int, ...] = 100
    decay_rate: float | tuple[float, ...] = 0.99
    utility: str = "overall"
    compensate: bool = True
    count: str = "eligible"

    needs_units: ClassVar[bool] = True

    card: ClassVar[Card] = Card(
        "resets of units",
        "hidden units",
        "at every update, a few units",
        "a few numbers per unit",
        "Dohare, Sutton and Mahmood 2023, Maintaining plasticity in deep continual learning",
    )

    def __post_init__(self) -> None:
        check_number(self, "replacement_rate", 0.0, 1.0)
        check_number(self, "maturity_threshold", 0, whole=True)
        check_number(self, "decay_rate", 0.0, 1.0, below_high=True)
        check_choice(self, "utility", tuple(UTILITIES))
        check_choice(self, "count", COUNTS)
        check_flag(self, "compensate")

    @classmethod
    def nature(
        cls,
        replacement_rate: float | tuple[float, ...] = 1e-5,
        maturity_threshold: int | tuple[int, ...] = 1000,
        decay_rate: float | tuple[float, ...] = 0.99,
    ) -> ContinualBackprop:
        """The version of Dohare et al. 2024 (Nature): the contribution utility alone, without compensation.

        `replacement_rate` times the units of the layer are replaced per step. There is no mean-correction and no
        division by incoming weights.

        Args:
            replacement_rate, maturity_threshold: the authors use 1e-5 and 1,000 for class-incremental CIFAR-100, 1e-4
                and 10,000 for PPO (with weight decay 1e-4).
            decay_rate: of the running averages.

        Example:
            >>> ContinualBackprop.nature().utility
            'contribution'
        """
        return cls(
            replacement_rate, maturity_threshold, decay_rate, utility="contribution", compensate=False, count="layer"
        )

    def reads(self, view: View) -> list[str]:
        """Every group's reader and consumers."""
        return read_modules(view)

    def reads_gradients(self, view: View) -> list[str]:
        """For the utility "gxd", where units are read."""
        return gradient_modules(view, "ContinualBackprop(utility='gxd')") if self._uses_gradients else []

    def init(self, view: View) -> State:
        """Statistics and a replacement schedule for every group."""
        state: State = {}
        runs = view.runs[0] if view.runs else 1
        for group in view.groups:
            statistics = units.new_statistics(view, group, self.compensate)
            statistics["schedule"] = Schedule(
                group.units,
                np.broadcast_to(np.asarray(self.replacement_rate, dtype=np.float64), (runs,)).copy(),
                np.broadcast_to(np.asarray(self.maturity_threshold, dtype=np.int64), (runs,)).copy(),
                self.count,
            )
            statistics["replaced"] = np.zeros(runs, dtype=np.int64)
            state[group.name] = statistics
        return state

    def step(self, view: View, state: State) -> None:
        """Measure every group, then reset the units that are due, in forward order."""
        if view.capturable:
            tick_on_device(view, state, self._settings())
            return
        self.replace(view, state, self.measure(view, state))

    def measure(self, view: View, state: State) -> list[LiveGroup]:
        """One tick of the running means and utilities; nothing here depends on the step or waits for a device.

        Returns:
            The groups that were measured. The others did not run or are frozen: their units do not age.
        """
        settings = self._settings()
        if view.ranks is not None or view.totals is not None:
            return measure_totals(view, state, settings)
        fused = fused_tick(view, state, settings)
        if fused is not None and fused.measure(view):
            return list(view.groups)
        magnitudes = view.magnitudes()
        view.shared_inputs.forget()
        measured: list[LiveGroup] = []
        for group in view.groups:
            reader = group.reading(view.activations)
            if reader is None or not view.trainable(group):
                continue
            self._measure(view, group, reader, state[group.name], magnitudes)
            measured.append(group)
        view.shared_inputs.finish()
        return measured

    def accumulate(self, view: View, state: State) -> None:
        """Add what was recorded to the sums of every group."""
        add_passes(view, state, self._settings())

    def replace(self, view: View, state: State, groups: Sequence[LiveGroup]) -> None:
        """Reset the units of these groups that are due; all are chosen before any is reset."""
        due: list[tuple[LiveGroup, State, np.ndarray]] = []
        for group in groups:
            statistics = state[group.name]
            counts = self._tick(statistics)
            if counts is not None:
                due.append((group, statistics, counts))
        fused = fused_reset(view, state) if due else None
        if fused is None:
            chosen = [self._choose(view, *each) for each in due]
        else:
            numbers = [view.groups.index(group) for group, _, _ in due]
            counted = [(int(counts[0]), statistics["schedule"].step) for _, statistics, counts in due]
            units_of = fused.replace(view, [(n, *each) for n, each in zip(numbers, counted, strict=True)])
            if units_of is None:
                return
            chosen = [ChosenUnits((), row[:count]) for row, (count, _) in zip(units_of, counted, strict=True)]
        for (group, statistics, _), units_due in zip(due, chosen, strict=True):
            clear_outgoing(view, group, units_due, units.means_seen(statistics, units_due) if self.compensate else None)
        for (group, statistics, _), units_due in zip(due, chosen, strict=True):
            draw_incoming(view, group, units_due, statistics["schedule"].step, by=self)
            units.start_again(statistics, units_due, statistics["schedule"].step)

    def count_ahead(self, view: View, state: State, updates: int) -> tuple[np.ndarray, int]:
        """How many units `replace` would take at the next updates, which then count as done.

        Returns:
            int64 (updates, groups, runs), and the number of updates before them.
        """
        step = next(iter(state.values()))["schedule"].step
        counts = np.zeros((updates, len(view.groups), *(view.runs or (1,))), dtype=np.int64)
        for update in counts:
            for row, group in zip(update, view.groups, strict=True):
                due = self._tick(state[group.name])
                if due is not None:
                    row[:] = due
        return counts, step

    def on_units_reset(self, view: View, state: State, group: LiveGroup, chosen: ChosenUnits) -> None:
        """Units that another method has reset are zero steps old; the schedule counts its eligible units again."""
        statistics = state[group.name]
        units.start_again(statistics, chosen, statistics["schedule"].step)
        statistics["recount"] = True

    def counts(self, view: View, state: State) -> dict[str, Tensor]:
        """Units replaced so far."""
        runs = view.runs or ()
        _refresh(state)
        return {name: torch.from_numpy(each["replaced"].copy()).reshape(runs) for name, each in state.items()}

    def describe(self, view: View, state: State) -> str:
        """Counts, ages and utilities of every group."""
        _refresh(state)
        rows: list[list[str]] = []
        for group in view.groups:
            statistics = state[group.name]
            schedule = statistics["schedule"]
            ages = (schedule.step - statistics["born"]).double().cpu()
            utility = (statistics["utility"] / units.correction(statistics)).double().cpu()[ages > 0]
            known = (utility.min(), utility.median(), utility.max()) if utility.numel() else ()
            rows.append(
                [
                    group.name,
                    str(group.units),
                    str(int(np.sum(statistics["replaced"]))),
                    str(int(np.sum(schedule.eligible))),
                    f"{ages.min():.0f} / {ages.median():.0f} / {ages.max():.0f}",
                    " / ".join(f"{value:.3g}" for value in known) or "-",
                ]
            )
        return render(["group", "units", "replaced", "eligible", "age min/median/max", "utility min/median/max"], rows)

    def export(self, state: State) -> State:
        """Statistics, schedules and counts as tensors and numbers."""
        _refresh(state)
        saved: State = {}
        for name, statistics in state.items():
            saved[name] = {key: value for key, value in statistics.items() if key not in _HOST_SIDE}
            saved[name]["schedule"] = statistics["schedule"].state()
            saved[name]["replaced"] = statistics["replaced"].tolist()
        return saved

    def restore(self, view: View, state: State, saved: State) -> None:
        """Load `export`'s dict; the numbers of eligible units follow from the birth steps."""
        for name, values in saved.items():
            statistics = state[name]
            tensors = {key: value for key, value in values.items() if key not in _HOST_SIDE}
            copy_nested(tensors, statistics)
            schedule = values["schedule"]
            self._recount(statistics, schedule["step"], schedule["accumulator"])
            statistics["replaced"] = np.asarray(values["replaced"], dtype=np.int64)
        for home in _homes(state):
            home.push()

    def kernel_terms(self) -> KernelTerms | str:
        """The replacement of units."""
        if self._uses_gradients:
            return f"the utility {self.utility!r} of ContinualBackprop is not covered"
        return KernelTerms(
            replacement=Replacement(
                self.replacement_rate,
                self.maturity_threshold,
                self.decay_rate,
                self.utility,
                self.compensate,
                self.count,
            )
        )

    def kernel_state(self, state: State) -> KernelState:
        """Statistics and schedule of every group."""
        return KernelState(units=state)

    def recorded_step(self) -> RecordedStep | str:
        """The measures are recorded, and where its kernels know the network, the replacements."""
        if self._uses_gradients:
            return f"the utility {self.utility!r} of ContinualBackprop is not covered"
        return RecordedStep(record=self.measure, between=self.replace, ahead=self.count_ahead)

    @property
    def _uses_gradients(self) -> bool:
        return bool(UTILITIES[self.utility] & GRADIENT)

    def _settings(self) -> Settings:
        return Settings(self.decay_rate, self.utility, self.maturity_threshold, self.compensate)

    def _tick(self, statistics: State) -> np.ndarray | None:
        """How many units of a group are due in each run at the next update; None where that is zero for all."""
        if statistics.pop("recount", False):
            self._recount(statistics)
        counts = statistics["schedule"].tick()
        if counts is not None:
            statistics["replaced"] += counts
        return counts

    def _recount(self, statistics: State, step: int | None = None, accumulator: Any = None) -> None:
        """Count eligible units from the birth steps; on a GPU this waits for the device."""
        schedule: Schedule = statistics["schedule"]
        before = schedule.state()
        born = statistics["born"].cpu().numpy().reshape(len(schedule.eligible), -1)
        schedule.load(
            before["step"] if step is None else step,
            before["accumulator"] if accumulator is None else accumulator,
            born,
        )

    def _measure(self, view: View, group: LiveGroup, reader: Reader, statistics: State, magnitudes: Magnitudes) -> None:
        """One tick of the running means and of the utility."""
        terms = UTILITIES[self.utility]
        if measure_compiled(view, group, statistics, magnitudes, self.decay_rate, terms):
            return
        mean: Tensor = statistics["mean_activation"]
        batches = units.batches_of(view, reader, mean.dtype)
        units.update_means(view, group, reader, statistics, batches, self.decay_rate)
        if terms & RANDOM:
            return
        if terms & GRADIENT:
            centre = mean / units.correction(statistics) if self.compensate else None
            utility = replacement_cost(view, group, reader, mean.dtype, centre)
            units.move_utility(statistics, utility, view.per_run(self.decay_rate, mean, axes=1))
            return
        contributed = None
        if terms & ACTIVITY:
            centre = mean / units.correction(statistics) if terms & CENTRED else None
            contributed = units.contribution(view, group, reader, magnitudes, batches, centre)
        utility = units.instant_utility(group, magnitudes, terms, contributed, mean.dtype)
        units.move_utility(statistics, utility, view.per_run(self.decay_rate, mean, axes=1))

    def _choose(self, view: View, group: LiveGroup, statistics: State, counts: np.ndarray) -> ChosenUnits:
        """The `counts` eligible units of lowest utility in each run; ties go to the lowest index."""
        schedule: Schedule = statistics["schedule"]
        running: Tensor = statistics["utility"]
        if UTILITIES[self.utility] & RANDOM:
            row = torch.zeros((), dtype=torch.int64, device=running.device)
            rows = row.expand(view.runs)
            score = rng.uniform(view.seeds, schedule.step, f"{group.name}/utility", rows, group.units).to(running.dtype)
        else:
            score = running / units.correction(statistics)
        largest = torch.finfo(score.dtype).max
        score = torch.nan_to_num(score, nan=largest, posinf=largest)  # an ineligible unit must stay last
        threshold = view.per_run(self.maturity_threshold, statistics["born"], axes=1)
        young = schedule.step - statistics["born"] <= threshold
        order = torch.argsort(score.masked_fill(young, torch.inf), dim=-1, stable=True)
        if not view.runs:
            return ChosenUnits((), order[: int(counts[0])])
        runs = torch.from_numpy(np.repeat(np.arange(len(counts)), counts)).to(order.device, non_blocking=True)
        ranks = torch.from_numpy(np.concatenate([np.arange(count) for count in counts]))
        ranks = ranks.to(order.device, non_blocking=True)
        return ChosenUnits((runs,), order[runs, ranks])


def _homes(state: State) -> list[Any]:
    """Where the schedules of these groups are counted on a device; none where the host counts them."""
    found = [statistics["schedule"].device for statistics in state.values()]
    return list({id(each): each for each in found if each is not None}.values())


def _refresh(state: State) -> None:
    for home in _homes(state):
        home.pull()
