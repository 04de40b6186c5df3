"""From a sweep to runs, and from runs to stacks: runs that differ only in seeds and numbers are trained together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from neoteny.draws.seeded import seeded
from neoteny.methods.method import Method
from neoteny.problems.problem import Problem
from neoteny.suite.configuration import configure
from neoteny.suite.identity import digest, digests_of_seeds
from neoteny.suite.selection import choose
from neoteny.suite.sweep import Setting, Sweep, seeds_after, seeds_of

if TYPE_CHECKING:
    from neoteny.suite.store.results import Results


@dataclass(frozen=True)
class Run:
    """One network to train: a setting and a seed."""

    setting: Setting
    problem: Problem
    seed: int
    configuration: dict[str, Any]
    run_id: str

    def make_network(self, dtype: torch.dtype) -> nn.Module:
        """The network with its initial weights, on the CPU; the weights depend on the seed alone."""
        with seeded(self.seed):
            return self.setting.network.make(self.problem).to(dtype)


@dataclass(frozen=True)
class PlannedStack:
    """Runs that are to be trained in lock-step, in one stack of networks."""

    sweep: Sweep
    runs: tuple[Run, ...]

    @property
    def stack_id(self) -> str:
        """A hash of its runs, in order."""
        return digest([run.run_id for run in self.runs])

    @property
    def backend(self) -> str:
        """The name of the backend that trains it; see `backends.names`."""
        return self.runs[0].configuration["kernel"]

    @property
    def problem(self) -> Problem:
        """The problem of all its runs."""
        return self.runs[0].problem

    @property
    def updates(self) -> int:
        """Updates of each run from beginning to end; an agent's actions."""
        return self.problem.steps_before(self.problem.tasks)

    @property
    def name(self) -> str:
        """Its name in progress lines: the methods of its settings, and what they have in common."""
        settings = list({run.setting.label: run.setting for run in self.runs}.values())
        if len(settings) == 1:
            return settings[0].label + (f", seed {self.runs[0].seed}" if len(self.runs) == 1 else "")
        methods = dict.fromkeys(setting.method for setting in settings)
        common = [
            f"{key}={value}"
            for key, value in settings[0].details.items()
            if all(setting.details.get(key) == value for setting in settings)
        ]
        shown = "/".join(methods) + (f" ({', '.join(common)})" if common else "")
        return f"{shown}, {len(settings)} settings"

    def methods(self) -> tuple[Method, ...]:
        """The methods of the stack: a number that differs between runs becomes a tuple with one value per run."""
        columns = zip(*(run.setting.methods for run in self.runs), strict=True)
        return tuple(_combine(list(column)) for column in columns)


def runs_of(sweep: Sweep, settings: Iterable[Setting], kernel: str, seeds: Iterable[int] | None = None) -> list[Run]:
    """The runs of some settings, with the seeds that the sweep gives them or with those given."""
    found: dict[str, Run] = {}
    for setting in settings:
        problem = setting.problem or sweep.problem
        described = configure(sweep, setting, 0, kernel)
        wanted = seeds if seeds is not None else seeds_of(sweep, setting)
        for configuration, run_id in digests_of_seeds(described, wanted):
            if run_id in found:
                raise ValueError(
                    f"Settings {found[run_id].setting.label!r} and {setting.label!r} have the same configuration, "
                    "so they would give the same numbers; keep one of them."
                )
            found[run_id] = Run(setting, problem, configuration["seed"], configuration, run_id)
    return list(found.values())


def stages(sweep: Sweep, results: Results, kernel: str) -> Iterator[list[Run]]:
    """The runs of each stage; the second stage needs the results of the first."""
    yield runs_of(sweep, sweep.settings, kernel)
    if sweep.selection is not None:
        more: list[Run] = []
        for setting in choose(sweep, results.frame()):
            more += runs_of(sweep, [setting], kernel, seeds_after(sweep, setting))
        yield more


def remaining_stacks(sweep: Sweep, results: Results, runs: list[Run]) -> list[PlannedStack]:
    """The stacks that are left to train, those that have begun first; what is left of finished ones is removed."""
    results.clear_finished()
    finished, begun = results.finished_runs(), _begun(results)
    for stack_id, entry in begun.items():
        if finished.issuperset(entry["runs"]):  # its runs were finished in other stacks meanwhile
            results.checkpoints(stack_id).clear()
    return stacks_of(sweep, runs, finished, [entry["runs"] for entry in begun.values()])


def list_stacks(sweep: Sweep, results: Results, runs: list[Run]) -> list[PlannedStack]:
    """The stacks that are left to train, those that have begun first; nothing is changed."""
    return stacks_of(sweep, runs, results.finished_runs(), [entry["runs"] for entry in _begun(results).values()])


def _begun(results: Results) -> dict[str, Any]:
    """The progress of stacks that have begun; one whose results were moved away begins with the same members again."""
    done = {record.stack for record in results.records()}
    entries = results.progress().items()
    return {stack_id: entry for stack_id, entry in entries if entry["state"] != "split" and stack_id not in done}


def stacks_of(
    sweep: Sweep, runs: Sequence[Run], finished: Collection[str], begun: Iterable[Sequence[str]] = ()
) -> list[PlannedStack]:
    """Group the runs that are not finished.

    Args:
        sweep: where they come from.
        runs: all runs that are wanted.
        finished: ids of runs whose results are there.
        begun: ids of the runs of stacks that have begun earlier; those whose runs are all wanted stay together, so
            that their checkpoints stay usable when other runs were asked for in the meantime.
    """
    open_runs = {run.run_id: run for run in runs if run.run_id not in finished}
    stacks: list[PlannedStack] = []
    for ids in begun:
        if ids and all(run_id in open_runs for run_id in ids):
            stacks.append(PlannedStack(sweep, tuple(open_runs.pop(run_id) for run_id in ids)))
    # Chunks are cut before finished runs are left out, so that a stack keeps its members when its neighbours finish.
    groups: dict[str, list[Run]] = {}
    shared: dict[int, str] = {}  # by the setting itself: all its runs have this in common
    for run in runs:
        key = shared.get(id(run.setting)) or shared.setdefault(id(run.setting), _shared(run))
        groups.setdefault(key, []).append(run)
    for members in groups.values():
        size = sweep.stack_size if members[0].setting.agent is None else 1
        for start in range(0, len(members), size):
            left = tuple(run for run in members[start : start + size] if run.run_id in open_runs)
            if left:
                stacks.append(PlannedStack(sweep, left))
    return stacks


def _shared(run: Run) -> str:
    """A hash of what the runs of a stack must have in common: all but seeds and the numbers of methods."""
    configuration = dict(run.configuration)
    del configuration["seed"]
    configuration["methods"] = [
        {name: value for name, value in method.items() if not _is_number(value)} for method in configuration["methods"]
    ]
    return digest(configuration)


def _combine(column: list[Method]) -> Method:
    first = column[0]
    values: dict[str, Any] = {}
    for name, value in first.hyperparameters().items():
        each = tuple(method.hyperparameters()[name] for method in column)
        values[name] = value if all(other == value for other in each) else each
    return type(first)(**values)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
