"""DeviceSchedule: the replacement schedules of all groups of a model, counted on the device.

A CUDA graph repeats what was launched and asks the host nothing, so a tick inside one has to know by itself how many
units are due. The numbers are those of `units.schedule.Schedule`, whose objects become copies of what is kept here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neoteny.units.device import reset_kernels as kernels
from neoteny.units.schedule import Schedule
from neoteny.units.view import LiveGroup


class DeviceSchedule:
    """Counts steps, units that are due, and units replaced so far, of every group.

    Args:
        groups: of the model.
        state: of `ContinualBackprop`, by group.
        rows: of each group, in the order in which they are served: its number, the code of the draws that choose
            units, and the maturity threshold.
        device: where the counts live.

    Attributes:
        due: int64 (groups, 6), what the kernels of a reset read, see `reset_kernels.DUE`.
        most: units of one group that can be due at one step, at most.
    """

    def __init__(
        self,
        groups: Sequence[LiveGroup],
        state: Mapping[str, Any],
        rows: Sequence[tuple[int, int, int]],
        device: torch.device,
    ) -> None:
        self._groups = [state[group.name] for group in groups]
        count = len(groups)
        self.due = torch.tensor([[number, 0, 0, purpose, 0, mature] for number, purpose, mature in rows]).to(device)
        self._steps = torch.zeros(count, dtype=torch.int64, device=device)
        self._waiting = torch.zeros(count, dtype=torch.float64, device=device)
        self._replaced = torch.zeros(count, dtype=torch.int64, device=device)
        every: list[Schedule] = [each["schedule"] for each in self._groups]
        rates = [float(schedule.replacement_rate[0]) for schedule in every]
        self._rates = torch.tensor(rates, dtype=torch.float64, device=device)
        self._by_layer = every[0].count == "layer"
        self.most = max(
            min(group.units, math.ceil(rate * group.units) + 1) for group, rate in zip(groups, rates, strict=True)
        )
        for schedule in every:
            schedule.refresh()  # an earlier one of this model may have counted on
            schedule.device = self
        self.push()

    def advance(self, table: Tensor, born: Tensor, block: int) -> None:
        """One step of every group, in one launch."""
        kernels.advance[(len(self._groups),)](
            self.due,
            table,
            born,
            self._steps,
            self._waiting,
            self._replaced,
            self._rates,
            self._by_layer,
            block,
            enable_fp_fusion=False,
        )

    def push(self) -> None:
        """Take over the numbers of the host."""
        every: list[Schedule] = [each["schedule"] for each in self._groups]
        self._steps.copy_(torch.tensor([schedule.step for schedule in every]))
        self._waiting.copy_(torch.tensor([float(schedule.accumulator[0]) for schedule in every], dtype=torch.float64))
        self._replaced.copy_(torch.tensor([int(each["replaced"][0]) for each in self._groups]))

    def pull(self) -> None:
        """Bring the numbers of the host up to date; this waits for the device."""
        steps, waiting, replaced = self._steps.tolist(), self._waiting.tolist(), self._replaced.tolist()
        for number, each in enumerate(self._groups):
            born = each["born"].cpu().numpy().reshape(1, -1)
            each["schedule"].load(steps[number], [waiting[number]], born)
            each["replaced"][:] = np.asarray(replaced[number])
