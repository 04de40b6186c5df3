"""Results folders whose numbers are drawn instead of trained; everything else is written as in a real run."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

import torch

from neoteny.suite.environment import machine, versions
from neoteny.suite.session import begin_progress
from neoteny.suite.stacks import PlannedStack
from neoteny.suite.store.results import Results


class Drawn:
    """What a finished training gives to the writer of parts.

    Args:
        stack: what would have been trained.
        draws: where the numbers come from.
        tasks: that are finished; None: all.
        metrics: besides performance.
    """

    ended = ""

    def __init__(
        self, stack: PlannedStack, draws: torch.Generator, tasks: int | None = None, metrics: Sequence[str] = ()
    ) -> None:
        whole, runs = stack.problem.tasks, len(stack.runs)
        self.task = whole if tasks is None else tasks
        self.finished = self.task == whole
        self.updates = self.task * stack.problem.steps_per_task
        self.diverged_at = torch.full((runs,), -1)
        self.initial = [""] * runs
        level = torch.rand(runs, generator=draws)  # one per run, so that settings differ
        self._values: dict[str, torch.Tensor] = {}
        for metric in (stack.problem.performance, *metrics):
            self._values[metric] = torch.rand((whole, runs), generator=draws, dtype=torch.float64) + level
            self._values[f"{metric}.tasks"] = torch.arange(whole)

    def table(self) -> dict[str, torch.Tensor]:
        """metric -> (tasks, runs), and the task numbers."""
        return self._values


@functools.cache
def _facts() -> dict[str, Any]:
    return {
        "versions": versions(),
        "machine": machine(torch.device("cpu")),
        "device": "cpu",
        "threads": 1,
        "seconds": 1.0,
        "resumed": 0,
        "ended": "",
    }


def write_drawn(results: Results, stack: PlannedStack, training: Drawn) -> None:
    """Write the part of a finished stack, or the table of an unfinished one, and its progress file."""
    drawn = cast(Any, training)  # it stands for a Training
    if training.finished:
        results.write_part(stack, drawn, {**_facts(), "kernel": stack.backend, "updates": training.updates})
    else:
        results.write_unfinished(stack, drawn)
    progress = {
        **begin_progress(stack),
        "state": "finished" if training.finished else "stopped",
        "task": training.task,
        "updates": training.updates,
        "updates_per_second": 1e6,
        "latest": [stack.problem.performance, 0.5],
    }
    results.write_progress(stack.stack_id, progress)
