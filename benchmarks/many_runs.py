"""How long `neoteny status`, `run` (with nothing left to do) and `report` take on a results folder of 20,000 runs.

    python benchmarks/many_runs.py                       # stacks as they are planned: some dozen parts
    python benchmarks/many_runs.py --runs-per-part 1     # 20,000 parts of one run each
    python benchmarks/many_runs.py --scale paper         # four times as many rows, and the second stage of the sweep

The folder is one of scr-cbp. Its parts, progress files and plan are written by the code that writes them in a real run;
only the numbers in the tables are drawn instead of trained. Every command is a process of its own, timed from its start
to its end: once without an index, once with one that is up to date, once after one part has been added.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch

from neoteny.cli.parser import RunOptions
from neoteny.cli.run import Launch, prepare
from neoteny.suite.environment import machine, versions
from neoteny.suite.session import begin_progress
from neoteny.suite.stacks import PlannedStack, Run, stacks_of, stages
from neoteny.suite.store.results import Results

SETTINGS = {"smoke": 10, "laptop": 54, "paper": 434}
"""Settings of scr-cbp at each scale."""
MORE = {"smoke": 0, "laptop": 0, "paper": 3500}
"""Runs of the second stage."""


class Drawn:
    """What a finished training gives to the writer of parts, with numbers that are drawn."""

    finished, ended, causes = True, "", {}

    def __init__(self, stack: PlannedStack, draws: torch.Generator) -> None:
        tasks, runs = stack.problem.tasks, len(stack.runs)
        self.task, self.updates = tasks, stack.updates
        self.diverged_at = torch.full((runs,), -1)
        level = 0.02 * torch.rand(runs, generator=draws)  # one per run, so that settings differ
        curve = torch.rand((tasks, runs), generator=draws, dtype=torch.float64) * 0.01
        self._values = {
            stack.problem.performance: curve + level,
            f"{stack.problem.performance}.tasks": torch.arange(tasks),
        }

    def table(self) -> dict[str, torch.Tensor]:
        """metric -> (tasks, runs), and the task numbers."""
        return self._values


def make_folder(root: Path, scale: str, runs: int, runs_per_part: int | None) -> Launch:
    """Write a finished results folder of about this many runs."""
    count = max(1, round((runs - MORE[scale]) / SETTINGS[scale]))
    launch = Launch.of(prepare(RunOptions("scr-cbp", scale=scale, runs=count, out=root, jobs=1)))
    launch._write_plan()
    draws = torch.Generator().manual_seed(0)
    for number, stage in enumerate(stages(launch.sweep, launch.results, launch.kernel)):
        if number:
            launch.results.add_to_plan([run.run_id for run in stage])
        for stack in split(launch, stage, runs_per_part):
            write(launch.results, stack, Drawn(stack, draws))
    return launch


def split(launch: Launch, runs: list[Run], runs_per_part: int | None) -> Iterator[PlannedStack]:
    """The stacks of some runs, cut into parts of at most this many runs."""
    for stack in stacks_of(launch.sweep, runs, ()):
        size = runs_per_part or len(stack.runs)
        for start in range(0, len(stack.runs), size):
            yield PlannedStack(stack.sweep, stack.runs[start : start + size])


def write(results: Results, stack: PlannedStack, training: Drawn) -> None:
    """Write the part and the progress file of a finished stack."""
    facts = {
        "versions": versions(),
        "machine": machine(torch.device("cpu")),
        "device": "cpu",
        "kernel": stack.backend,
        "threads": 1,
        "seconds": 1.0,
        "updates": training.updates,
        "resumed": 0,
        "ended": "",
    }
    results.write_part(stack, cast(Any, training), facts)
    done = {"state": "finished", "task": training.task, "updates": training.updates, "updates_per_second": 1e6}
    results.write_progress(stack.stack_id, {**begin_progress(stack), **done, "latest": ["error", 0.01]})
