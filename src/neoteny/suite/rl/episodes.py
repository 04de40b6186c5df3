"""Record: what an agent's steps, episodes and iterations come to, by task and by point within tasks.

A task is cut into points of equal length. An episode counts where it ends, whole, with the return of all its steps.
Names that end in ".curve" are given by point, all others by task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neoteny.problems.problem import Problem

CURVE = ".curve"
"""The ending of the names of metrics that have several points per task, numbered consecutively."""
_BY_POINT = ("return", "length", "episodes", "reward", "steps")


class Record:
    """Sums over the steps of one run.

    Args:
        problem: the problem of control.
        points_per_task: how finely a task is looked at.
        metrics: names of the metrics of a learner's iterations.
        measures: what will be measured at the end of every `measure_every`-th task, by name.
    """

    def __init__(
        self,
        problem: Problem,
        points_per_task: int,
        metrics: Sequence[str] = (),
        measures: Sequence[str] = (),
        measure_every: int = 1,
    ) -> None:
        self._tasks, self._task_steps, self._points = problem.tasks, problem.steps_per_task, points_per_task
        self._performance, self._varied = problem.performance, problem.varied
        self._sums = {name: np.zeros(problem.tasks * points_per_task) for name in _BY_POINT}
        self._metrics = {name: np.zeros(problem.tasks) for name in metrics if name != "replaced"}
        self._iterations = np.zeros(problem.tasks)
        once = [*measures, problem.varied, *(["replaced"] if "replaced" in metrics else [])]
        self._once = {name: np.full(problem.tasks, np.nan) for name in once}  # one value per task
        self._every = dict.fromkeys(measures, measure_every)
        self._running = np.zeros(2)  # return and length of the episode that has not ended

    def add_steps(self, first: int, rewards: np.ndarray, ended: np.ndarray, varied: np.ndarray) -> None:
        """Steps number `first` (from 0) and those after it, each (T,); `varied` is what `Problem.varied` names."""
        steps = first + np.arange(len(rewards))
        tasks = steps // self._task_steps
        points = tasks * self._points + steps % self._task_steps * self._points // self._task_steps
        ends = np.flatnonzero(ended)
        returns, lengths = np.cumsum(rewards), np.arange(1.0, len(rewards) + 1)
        for column, (name, total) in enumerate((("return", returns), ("length", lengths))):
            marks = np.concatenate(([-self._running[column]], total[ends]))
            self._add(name, points[ends], np.diff(marks))
            self._running[column] = total[-1] - marks[-1]
        self._add("episodes", points[ends], np.ones(len(ends)))
        self._add("reward", points, rewards)
        self._add("steps", points, np.ones(len(rewards)))
        self._once[self._varied][tasks] = varied  # that of a task's last step stays

    def add_iteration(self, step: int, metrics: dict[str, float]) -> None:
        """The metrics of the iteration that ended with this step; "replaced" counts from the beginning."""
        task = step // self._task_steps
        self._iterations[task] += 1
        for name, value in metrics.items():
            if name == "replaced":
                self._once[name][task] = value
            else:
                self._metrics[name][task] += value

    def add_measure(self, task: int, name: str, value: float) -> None:
        """A measure of the networks at the end of a task."""
        self._once[name][task] = value

    def latest(self) -> tuple[str, float] | None:
        """The performance in the last finished task."""
        done = int(self._sums["steps"].sum()) // self._task_steps
        return (self._performance, float(self._by_task()[self._performance][done - 1])) if done else None

    def table(self) -> dict[str, Tensor]:
        """metric -> (tasks or points, 1), their numbers under "<metric>.tasks"; nan where no steps were added."""
        steps = int(self._sums["steps"].sum())
        found: dict[str, Tensor] = {}
        columns = self._by_task()
        columns |= {f"{name}{CURVE}": values for name, values in self._behaviour(self._sums).items()}
        for name, values in columns.items():
            numbers = np.arange(len(values))
            reached = (numbers + 1) * (self._tasks * self._task_steps) <= steps * len(values)
            wanted = numbers % self._every.get(name, 1) == 0
            found[name] = torch.from_numpy(np.where(reached, values, np.nan)[wanted]).unsqueeze(-1)
            found[f"{name}.tasks"] = torch.from_numpy(numbers[wanted])
        return found

    def state_dict(self) -> dict[str, Any]:
        """All sums, as tensors."""
        groups = {"sums": self._sums, "said": self._metrics, "once": self._once}
        state: dict[str, Any] = {
            group: {name: torch.from_numpy(values.copy()) for name, values in columns.items()}
            for group, columns in groups.items()
        }
        state["iterations"] = torch.from_numpy(self._iterations.copy())
        state["running"] = torch.from_numpy(self._running.copy())
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`."""
        self._sums, self._metrics, self._once = (
            {name: values.numpy().copy() for name, values in state[group].items()} for group in ("sums", "said", "once")
        )
        self._iterations = state["iterations"].numpy().copy()
        self._running = state["running"].numpy().copy()

    def _by_task(self) -> dict[str, np.ndarray]:
        sums = {name: values.reshape(self._tasks, self._points).sum(1) for name, values in self._sums.items()}
        columns = self._behaviour(sums)
        with np.errstate(invalid="ignore"):
            columns |= {name: total / self._iterations for name, total in self._metrics.items()}
        columns |= self._once
        if "replaced" in columns:
            columns["replaced"] = np.diff(columns["replaced"], prepend=0.0)
        return columns

    def _behaviour(self, sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        with np.errstate(invalid="ignore"):  # what was not reached yet is nan
            return {
                "return": sums["return"] / sums["episodes"],
                "episode_length": sums["length"] / sums["episodes"],
                "reward_per_step": sums["reward"] / sums["steps"],
            }

    def _add(self, name: str, points: np.ndarray, values: np.ndarray) -> None:
        self._sums[name] += np.bincount(points, weights=values, minlength=len(self._sums[name]))
