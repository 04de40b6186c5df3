"""Problem, Stream and Plan: what a stack of runs learns from, described before it is made into tensors.

A problem of control opens as `Worlds` instead: environments in which an agent acts (`neoteny.suite.rl.ppo`).

A `Problem` is a frozen description. `open` finds its data and gives a `Stream`; the stream gives, for a task number and
the seeds of n runs, a `Plan`: which examples in which order, not yet as tensors, so that runs share one copy of the
data. A plan depends on (problem, seed, task) alone: run k sees the same stream with every method, in every stack,
and after every resumption. A checkpoint needs only the task number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

NEW_FIELD = {"new": True}
"""Metadata of a field that was added to a problem later: with its default value it is not part of a run's identity, so
that runs of before keep theirs."""
UNSEEN_SEEDS = 2**31
"""Added to the seeds of runs where a task is wanted that none of them sees."""


class Plan(ABC):
    """One task of n runs."""

    steps: int
    """Updates in this task."""
    steps_of_a_pass: int = 0
    """Updates of one pass through the task's data, where it is gone through several times; else 0."""
    seen_classes: int = 0
    """How many outputs count for loss and accuracy in this task, the first ones; 0 for all."""

    @abstractmethod
    def batches(self, start: int, stop: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Inputs (stop - start, n, B, ...) and targets (stop - start, n, B, ...) of some updates, on the device."""

    @abstractmethod
    def probe(self, count: int, device: torch.device) -> Tensor:
        """Inputs (n, count, ...) of this task for measures; which ones is drawn apart from the stream."""

    def test(self, device: torch.device) -> tuple[Tensor, Tensor] | None:
        """Held-out inputs (n, T, ...) and targets (n, T), or None where performance is measured online."""
        return None

    def step_size_factor(self, step: int) -> float:
        """What the optimizer's step size is multiplied by at an update of this task (`Problem.schedules_step_size`)."""
        return 1.0


class Source(ABC):  # noqa: B024
    """An opened problem: its data or simulator was found."""

    fingerprint: str = ""
    """A short text that identifies the data or the simulator; results of different ones do not belong in one folder."""


class Stream(Source):
    """An opened problem of supervised learning."""

    @abstractmethod
    def plan(self, seeds: Sequence[int], task: int) -> Plan:
        """The plan of task number `task` (from 0) for the runs of these seeds."""

    def unseen(self, seeds: Sequence[int]) -> Plan:
        """The plan of a task that the runs of these seeds never see: the first of seeds that no run has.

        It does not depend on the length of the stream. A stream whose seeds may have tasks in common gives another.
        """
        return self.plan([UNSEEN_SEEDS + seed for seed in seeds], 0)


class World(Protocol):
    """An environment without an end: gymnasium's reset and step, a clock of all steps, and a state to save.

    What changes from task to task is one of its attributes, a number; `Problem.varied` names it.
    """

    @property
    def steps(self) -> int:
        """Steps so far, over all episodes."""
        ...

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """The first observation of an episode, float32; a seed restarts everything, the clock included."""
        ...

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Observation, reward, terminated, truncated and info; an action is a vector, or a whole number (`discrete`).

        Raises:
            SimulationError: the simulator has no next state: it blew up, or the action is not finite.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything a continuation needs, as tensors, numbers, strings, lists and dicts."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Rebuild the simulator and bring it to a saved state; what follows depends on that state alone."""
        ...

    def close(self) -> None:
        """Free the simulator."""
        ...


class SimulationError(RuntimeError):
    """The simulator cannot go on. The run ends; the sweep continues."""


class Worlds(Source):
    """An opened problem of control: its simulator is installed."""

    @abstractmethod
    def make(self, seed: int) -> World:
        """The world of the run of this seed, not yet reset."""


@dataclass(frozen=True)
class Problem(ABC):
    """A stream of tasks. Subclasses are frozen dataclasses whose fields have names that say their unit.

    Attributes:
        loss: "mse", "cross_entropy", or "token_cross_entropy" (one class per position of a sequence: outputs are
            (batch, positions, outputs) and targets (batch, positions)).
        performance: the metric by which methods are compared: "error" (mean squared error before each update), "loss"
            (the loss before each update), "accuracy" (share right, before each update, or on the plan's test set where
            it has one) or "return" (the sum of an episode's rewards).
        tokens: whether inputs are whole numbers that a network looks up; they stay int64 in every number type.
        tells_task: whether the learner is told of a task change; its output layer is then set to zero.
        zeroes_output: whether that is so; a problem whose outputs mean the same in every task says False.
        control: whether an agent acts in it (it opens as `Worlds`); `steps_per_task` then counts actions.
        discrete: of a problem of control, whether an action is one of `outputs` choices; else it is `outputs` numbers.
        varied: of a problem of control, the attribute of its worlds that changes from task to task; it is recorded
            under this name.
    """

    tasks: int

    loss: ClassVar[str] = "mse"
    performance: ClassVar[str] = "error"
    tokens: ClassVar[bool] = False
    tells_task: ClassVar[bool] = False
    zeroes_output: ClassVar[bool] = True
    control: ClassVar[bool] = False
    discrete: ClassVar[bool] = False
    varied: ClassVar[str] = "friction"

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
        """Updates per task, of the longest where tasks differ in length; in a problem of control, actions per task."""

    def steps_before(self, task: int) -> int:
        """Updates of all tasks before this one; a problem whose tasks differ in length writes it."""
        return task * self.steps_per_task

    @property
    def schedules_step_size(self) -> bool:
        """Whether its plans multiply the optimizer's step size (`Plan.step_size_factor`)."""
        return False

    @abstractmethod
    def open(self, data: Path | str | None = None) -> Source:
        """Find the data (in `data`, $NEOTENY_DATA, the user's cache) and check it.

        Raises:
            DataError: data is missing or corrupt; the message names the file and the command that repairs it.
        """

    @property
    def higher_is_better(self) -> bool:
        """Whether more of `performance` is better."""
        return self.performance not in ("error", "loss")

    def as_inputs(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """Inputs in the number type of a run; tokens stay whole numbers."""
        return values if self.tokens else values.to(dtype)


def check_range(plan: Plan, start: int, stop: int) -> None:
    """Raise unless a range of updates lies inside the task."""
    if not 0 <= start <= stop <= plan.steps:
        raise ValueError(f"Expected 0 <= start <= stop <= {plan.steps}, the updates of a task; got {start} and {stop}.")
