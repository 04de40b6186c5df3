"""StackedReset: choose and replace the units that are due in every run of a stack, in two launches that are recorded.

How many units of each run and group are due is known on the host (`units/schedule.py`). For some updates at a time it
is copied to the device, where every update takes the next row. So nothing happens on the host between two updates, and
an update at which no unit is due costs two launches that find nothing to do.

The kernels are those of `rewrite`; here every group of every run has rows of its own in their tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neoteny.draws.rng import purpose_code
from neoteny.layers.regions import tap_layout
from neoteny.units.device import reset_kernels as kernels
from neoteny.units.device.plan import COLUMNS, ROWS, Network, Plan, merge
from neoteny.units.device.plan import why_not as why_not_rewritten
from neoteny.units.view import ElementState, View

_FLAT = ("utility", "decay_power", "born", "mean_activation")
_COUNT, _STEP = 1, 3  # the columns of a row of `due` that change: the number of units, and the step


def why_not(view: View) -> str:
    """Why the units of a stack are not replaced by these kernels, or ""."""
    seen: set[str] = set()
    for group in view.groups:
        drawn = {port.weight for port in group.producers}
        for port in (*group.producers, *group.consumers):
            weight = view.tensor(port.weight)
            if weight.dtype != torch.float32:
                return f"{port.weight} is {weight.dtype}"
            if port.input_first or tap_layout(weight[0]) is None:
                return f"{port.weight} has another layout"
        for port in group.consumers:
            if port.weight in drawn:
                return f"{group.name} feeds itself"
            if port.weight in seen:  # two programs would add to one bias at once
                return f"{port.module} reads several groups"
            seen.add(port.weight)
        if not view.trainable(group):
            return f"{group.name} is frozen"
    return why_not_rewritten(view.groups)


class OneRun(Network):
    """One run of a stack, as `Plan` reads it.

    Args:
        view: the stack.
        run: its number.
        moments: tensors by parameter that are zero for new elements.
        copies: tensors by parameter that are the new elements themselves.
    """

    def __init__(
        self, view: View, run: int, moments: Sequence[Mapping[str, Tensor]], copies: Sequence[Mapping[str, Tensor]]
    ) -> None:
        self._view, self._run = view, run
        self._kept = [(tensors, 0.0) for tensors in moments] + [(tensors, None) for tensors in copies]

    def tensor(self, name: str) -> Tensor:
        return self._view.tensor(name).detach()[self._run]

    def optimizer_elements(self, name: str, groups: int | None) -> ElementState:
        return ElementState(
            [(tensors[name].detach()[self._run], value) for tensors, value in self._kept if name in tensors]
        )

    def places(self, name: str) -> list[tuple[dict[Any, Any], Any, Any]]:
        return []  # a stack's tensors change in place


class StackedReset:
    """Chooses and replaces units of a stack.

    Args:
        view: of the stack; every group is measured at every update.
        state: of every group by its name, see `units/statistics.py`; the statistics become views of one tensor each.
        threshold: the maturity threshold of each run.
        random: whether units are chosen at random.
        compensate: as of `ContinualBackprop`.
        moments, copies: see `OneRun`.
        updates: how many updates `fill` prepares at most.
    """

    def __init__(
        self,
        view: View,
        state: Mapping[str, dict[str, Any]],
        threshold: Sequence[int],
        random: bool,
        compensate: bool,
        moments: Sequence[Mapping[str, Tensor]],
        copies: Sequence[Mapping[str, Tensor]],
        updates: int,
    ) -> None:
        runs, device = view.runs[0], view.seeds.device
        self._view, self._random, self._compensate = view, random, compensate
        self._flat = {key: torch.cat([state[group.name][key].flatten() for group in view.groups]) for key in _FLAT}
        self._features: list[Tensor] = []
        self._places: dict[bytes, int] = {}
        plans: list[Plan] = []
        groups: list[list[int]] = []
        rows: list[list[int]] = []
        start = 0
        for group in view.groups:
            statistics = state[group.name]
            for key, flat in self._flat.items():
                statistics[key] = flat[start : start + runs * group.units].view(runs, group.units)
            for run in range(runs):
                one = OneRun(view, run, moments, copies)
                plans.append(Plan(one, group, _of_run(statistics, run), self._place, compensate))
                rows.append([len(groups), 0, 0, purpose_code(f"{group.name}/utility"), run, threshold[run]])
                groups.append([start + run * group.units, group.units, *[0] * 14])
            start += runs * group.units
        self._plans = plans  # they hold the tensors whose addresses stand in the tables
        self._tables = merge(plans, device)
        self._tables["groups"] = torch.tensor(groups).to(device)
        self._tables["features"] = torch.cat(self._features).to(device)
        self._due = torch.tensor(rows).to(device)
        most = max(group.units for group in view.groups)
        self._block = 1 << max(4, (most - 1).bit_length())
        self._chosen = torch.zeros(len(rows), most, dtype=torch.int64, device=device)
        self._ahead = torch.zeros(updates, len(rows), _STEP - _COUNT, dtype=torch.int64, device=device)
        self._at = torch.zeros(1, dtype=torch.int64, device=device)
        self._row = torch.zeros_like(self._ahead[:1])

    @property
    def updates(self) -> int:
        """How many updates `fill` prepares at most."""
        return len(self._ahead)

    def fill(self, counts: np.ndarray, step: int) -> None:
        """Say how many units are due at the next updates, after `step` updates.

        Args:
            counts: int64 (updates, groups, runs).
            step: as the schedules count it.
        """
        updates = len(counts)
        if updates > self.updates:
            raise ValueError(f"StackedReset: at most {self.updates} updates can be prepared; got {updates}.")
        table = np.zeros((updates, *self._ahead.shape[1:]), dtype=np.int64)
        table[:, :, 0] = counts.reshape(updates, -1)
        table[:, :, 1] = step + 1 + np.arange(updates)[:, None]
        ahead = torch.from_numpy(table)
        if self._ahead.is_cuda:
            ahead = ahead.pin_memory()
        self._ahead[:updates].copy_(ahead, non_blocking=True)
        self._at.zero_()

    def rest(self) -> None:
        """Say that nothing is due, for updates that do not count."""
        self._ahead.zero_()
        self._at.zero_()

    @torch.no_grad()
    def replace(self) -> None:
        """Replace what is due at this update; the next call takes the next one."""
        torch.index_select(self._ahead, 0, self._at, out=self._row)
        self._due[:, _COUNT:_STEP].copy_(self._row[0])
        self._at.add_(1)
        mine, flat, plans = self._tables, self._flat, self._plans
        most, seeds = self._chosen.shape[1], self._view.seeds
        states = (mine["states"], mine["state_values"])
        kernels.choose_and_clear[(max(len(plan.tables["rows"]) for plan in plans), len(plans))](
            self._due, mine["groups"], mine["ranges"], mine["rows"], mine["outgoing"], *states, mine["features"],
            flat["utility"], flat["decay_power"], flat["born"], flat["mean_activation"], self._chosen, seeds, 0, most,
            self._random, self._compensate, True, self._block, ROWS,
        )  # fmt: skip
        wide = max(len(plan.tables["columns"]) + len(plan.values) for plan in plans)
        kernels.draw_and_write[(wide, len(plans))](
            self._due, mine["ranges"], mine["columns"], mine["incoming"], mine["laws"], *states, mine["vectors"],
            mine["vector_values"], mine["features"], self._chosen, seeds, most, 0, False, COLUMNS,
        )  # fmt: skip

    def _place(self, features: Tensor) -> int:
        """Where the features of a port begin in the table of all features."""
        numbers = features.cpu().flatten()
        key = numbers.numpy().tobytes()
        if key not in self._places:
            self._places[key] = sum(len(each) for each in self._features)
            self._features.append(numbers)
        return self._places[key]


def _of_run(statistics: Mapping[str, Any], run: int) -> dict[str, Any]:
    """One run's statistics of a group, as views."""
    found = {key: statistics[key][run] for key in _FLAT}
    return found | {"column_means": {key: means[run] for key, means in statistics["column_means"].items()}}
