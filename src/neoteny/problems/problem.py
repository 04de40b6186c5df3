"""Problem, Stream and Plan: what a stack of runs learns from, described before it is made into tensors.

A `Problem` is a frozen description. `open` finds its data and gives a `Stream`; the stream gives, for a task number and
the seeds of n runs, a `Plan`: which examples in which order, not yet as tensors, so that runs share one copy of the
data. A plan depends on (problem, seed, task) alone: run k sees the same stream whatever the method, the stack it sits
in, or the number of times it was resumed, and a checkpoint needs no more of the problem than the task number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor


class Plan(ABC):
    """One task of n runs."""

    steps: int
    """Updates in this task."""

    @abstractmethod
    def batches(self, start: int, stop: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Inputs (stop - start, n, B, ...) and targets (stop - start, n, B, ...) of some updates, on the device."""

    @abstractmethod
    def probe(self, count: int, device: torch.device) -> Tensor:
        """Inputs (n, count, ...) of this task for measures; which ones is drawn apart from the stream."""

    def test(self, device: torch.device) -> tuple[Tensor, Tensor] | None:
        """Held-out inputs (n, T, ...) and targets (n, T), or None where performance is measured online."""
        return None


class Stream(ABC):
    """An opened problem: the data is there."""

    fingerprint: str = ""
    """Stands for the data itself; results of different data do not belong in one folder."""

    @abstractmethod
    def plan(self, seeds: Sequence[int], task: int) -> Plan:
        """The plan of task number `task` (from 0) for the runs of these seeds."""


@dataclass(frozen=True)
class Problem(ABC):
    """A stream of tasks. Subclasses are frozen dataclasses whose fields have names that say their unit.

    Attributes:
        loss: "mse" or "cross_entropy".
        performance: the metric by which methods are compared: "error" (mean squared error before each update) or
            "accuracy" (share right, before each update, or on the plan's test set where it has one).
        tells_task: whether the learner is told of a task change; its output layer is then set to zero.
    """

    tasks: int

    loss: ClassVar[str] = "mse"
    performance: ClassVar[str] = "error"
    tells_task: ClassVar[bool] = False

    @property
    @abstractmethod
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Number of outputs of the network."""

    @property
    @abstractmethod
    def steps_per_task(self) -> int:
        """Updates a task."""

    @abstractmethod
    def open(self, data: Path | str | None = None) -> Stream:
        """Find the data (in `data`, $NEOTENY_DATA, the user's cache) and check it.

        Raises:
            DataError: data is missing or corrupt; the message names the file and the command that mends it.
        """

    @property
    def higher_is_better(self) -> bool:
        """Whether more of `performance` is better."""
        return self.performance == "accuracy"


def check_whole(problem: Problem, **least: int) -> None:
    """Refuse fields that are not whole numbers of at least so much: `check_whole(self, tasks=1)`."""
    for name, lowest in least.items():
        value = getattr(problem, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
            raise ValueError(
                f"{type(problem).__name__}: {name} must be a whole number of at least {lowest}; got {value!r}."
            )


def check_range(plan: Plan, start: int, stop: int) -> None:
    """Refuse a range of updates that is not inside the task."""
    if not 0 <= start <= stop <= plan.steps:
        raise ValueError(f"Expected 0 <= start <= stop <= {plan.steps}, the updates of a task; got {start} and {stop}.")
