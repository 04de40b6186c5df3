"""FusedReset: choose and replace the units that are due, of all groups, in two launches and without waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from neoteny.draws.rng import purpose_code
from neoteny.units.device import reset_kernels as kernels
from neoteny.units.device.plan import COLUMNS, ROWS, Plan, merge
from neoteny.units.device.schedule import DeviceSchedule
from neoteny.units.device.tick import FusedMeasure
from neoteny.units.device_tick import NOT_READY, warn_of_stale_graphs
from neoteny.units.utilities import RANDOM
from neoteny.units.view import View


class FusedReset:
    """Chooses and replaces units of one model.

    Args:
        fused: its fused measure, whose statistics are read and written.
        threshold: the maturity threshold.
        compensate: as of `ContinualBackprop`.
    """

    def __init__(self, fused: FusedMeasure, threshold: int, compensate: bool) -> None:
        self.fused, self.threshold, self.compensate = fused, threshold, compensate
        self.schedule: DeviceSchedule | None = None
        """Where ticks may be captured in a CUDA graph, the schedule on the device."""
        self._plans: list[Plan] = []
        self._tables: dict[str, Tensor] = {}
        groups = fused.layout.groups
        self._purposes = [purpose_code(f"{group.name}/utility") for group in groups]
        self._counter: Tensor | None = None
        self._order: list[int] = []
        self._sizes: list[int] = []
        self._retired: list[Any] = []
        self._block = 1 << max(4, (max(group.units for group in groups) - 1).bit_length())

    def replace(self, view: View, due: Sequence[tuple[int, int, int]]) -> Tensor | None:
        """Choose units and replace them.

        Args:
            view: of the model.
            due: group number, number of units and step of each group that is due.

        Returns:
            None; or, where the optimizer's state cannot be addressed element by element, the chosen units
            (due, most) int64, which are then to be replaced in another way.
        """
        if not self._plans or not all(self._plans[number].holds() for number, _, _ in due):
            self._prepare(view)
        clocks = {view.optimizer_clock(name) for number, _, _ in due for name in self._plans[number].counted}
        ready = all(self._plans[number].ready for number, _, _ in due) and len(clocks) <= 1
        waves = self._waves([number for number, _, _ in due]) if ready else [range(len(due))]
        due = [due[k] for wave in waves for k in wave]
        rows = [[number, count, step, self._purposes[number], 0, self.threshold] for number, count, step in due]
        table = torch.tensor(rows).pin_memory().to(view.seeds.device, non_blocking=True)
        numbers = [number for number, _, _ in due]
        chosen = self._choose(view, table, max(count for _, count, _ in due), numbers, [len(w) for w in waves], ready)
        if not ready:
            return chosen
        self._write(view, table, chosen, numbers, max(clocks, default=0))
        return None

    def replace_by_schedule(self, view: View, state: Mapping[str, Any]) -> None:
        """Count one step on the device and replace what is due; nothing is asked of the host, which may capture it.

        Raises:
            RuntimeError: the optimizer keeps state that cannot be addressed element by element, or the first such step
                is to be captured.
        """
        if self.schedule is None or not self._plans or not all(plan.holds() for plan in self._plans):
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError(NOT_READY)
            if self.fused.captured:
                self._retired.append((self._plans, self._tables, self._counter))
                warn_of_stale_graphs()
            self._prepare(view)
            try:
                self._check_counters(view)
            except RuntimeError:
                self._plans = []  # to be checked at the next tick, too
                raise
            groups = self.fused.layout.groups
            waves = self._waves(range(len(groups)))
            self._sizes, self._order = [len(wave) for wave in waves], [number for wave in waves for number in wave]
            rows = [(number, self._purposes[number], self.threshold) for number in self._order]
            self.schedule = self.schedule or DeviceSchedule(groups, state, rows, self.fused.layout.device)
        schedule, fused = self.schedule, self.fused
        schedule.advance(fused.layout.tables["groups"], fused.flat["born"], self._block)
        chosen = self._choose(view, schedule.due, schedule.most, self._order, self._sizes, ready=True)
        self._write(view, schedule.due, chosen, self._order, 0 if self._counter is None else self._counter)

    def _waves(self, numbers: Sequence[int]) -> list[list[int]]:
        """Places of these groups, in parts of which no two groups add to one bias: each part is a launch."""
        waves: list[tuple[list[int], set[int]]] = []
        for place, number in enumerate(numbers):
            biases = self._plans[number].biases
            wave = next((wave for wave in waves if wave[1].isdisjoint(biases)), None)
            if wave is None:
                wave = ([], set())
                waves.append(wave)
            wave[0].append(place)
            wave[1].update(biases)
        return [places for places, _ in waves]

    def _check_counters(self, view: View) -> None:
        """Find the optimizer's count of updates on the device, and refuse what a captured tick cannot reset."""
        if not all(plan.ready for plan in self._plans):
            raise RuntimeError(
                "attach(..., capturable=True): the optimizer keeps state that cannot be reset element by element on "
                "the device. Use torch.optim's SGD, Adam, AdamW, RMSprop or Adagrad, or neoteny.optim.Adam."
            )
        counters = [view.optimizer_counter(name) for plan in self._plans for name in plan.counted]
        if any(each is None or not each.is_cuda for each in counters):
            raise RuntimeError(
                "attach(..., capturable=True) needs the optimizer's count of updates on the device: pass "
                "capturable=True to neoteny.optim.Adam as well."
            )
        self._counter = counters[0] if counters else None
        if len({int(each) for each in counters if each is not None}) > 1:
            raise RuntimeError(
                "attach(..., capturable=True): some parameters have had fewer updates than others, so one count does "
                "not serve all. Give every parameter a gradient from the first update on."
            )

    def _choose(
        self, view: View, table: Tensor, most: int, numbers: Sequence[int], sizes: Sequence[int], ready: bool
    ) -> Tensor:
        """The units that are due, (due, most) int64; where `ready`, their outgoing weights are zeroed.

        Args:
            view: of the model.
            table: rows as in `reset_kernels.DUE`.
            most: units of one row, at most.
            numbers: groups of the rows.
            sizes: rows of each launch, one after the other.
            ready: whether the optimizer's state can be reset here.
        """
        chosen = torch.empty(len(numbers), most, dtype=torch.int64, device=view.seeds.device)
        fused, mine, features = self.fused, self._tables, self.fused.layout.tables["features"]
        flat = fused.flat
        wide = max(len(self._plans[number].tables["rows"]) for number in numbers) if ready else 1
        first = 0
        for size in sizes:
            kernels.choose_and_clear[(wide, size)](
                table,
                fused.layout.tables["groups"],
                mine["ranges"],
                mine["rows"],
                mine["outgoing"],
                mine["states"],
                mine["state_values"],
                features,
                flat["utility"],
                flat["decay_power"],
                flat["born"],
                flat["mean_activation"],
                chosen,
                view.seeds,
                first,
                most,
                bool(fused.terms & RANDOM),
                self.compensate,
                ready,
                self._block,
                ROWS,
            )
            first += size
        return chosen

    def _write(self, view: View, table: Tensor, chosen: Tensor, numbers: Sequence[int], updates: int | Tensor) -> None:
        """Give the chosen units new weights and state; `updates` of the optimizer so far, or the tensor with it."""
        mine, features = self._tables, self.fused.layout.tables["features"]
        wide = max(len(plan.tables["columns"]) + len(plan.values) for plan in (self._plans[n] for n in numbers))
        kernels.draw_and_write[(wide, len(numbers))](
            table,
            mine["ranges"],
            mine["columns"],
            mine["incoming"],
            mine["laws"],
            mine["states"],
            mine["state_values"],
            mine["vectors"],
            mine["vector_values"],
            features,
            chosen,
            view.seeds,
            chosen.shape[1],
            updates,
            isinstance(updates, Tensor),
            COLUMNS,
        )

    def _prepare(self, view: View) -> None:
        """Make the tables of all groups; needed again when the optimizer's state or a tensor is another."""
        layout, views = self.fused.layout, self.fused.views
        self._plans = [
            Plan(view, group, statistics, layout.place, self.compensate)
            for group, (statistics, _) in zip(layout.groups, views, strict=True)
        ]
        self._tables = merge(self._plans, layout.device)
