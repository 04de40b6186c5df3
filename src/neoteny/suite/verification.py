"""Whether runs can be made again: stacks of a results folder trained once more and compared with what is stored.

A stack is trained from its start, for as many tasks as asked for, with the members that it had. On the backend, the
machine and the versions that made it, every number must be the same bit for bit; elsewhere within a tolerance.
Before this: a results folder; after it: `neoteny verify`, which prints what was found.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch

from neoteny.suite.environment import choose_kernel, machine, set_deterministic, versions
from neoteny.suite.identity import run_ids
from neoteny.suite.rl.agent import AgentTraining
from neoteny.suite.session import Job, make_training
from neoteny.suite.stacks import PlannedStack, Run, runs_of
from neoteny.suite.store.errors import StoreError
from neoteny.suite.store.results import Results
from neoteny.suite.store.tables import parse_part, points_of
from neoteny.suite.sweep import Sweep
from neoteny.suite.training import Training

TOLERANCE = 0.02
"""Of the largest value of a metric: what another device or version may change in the first tasks."""
_PACKAGES = ("torch", "numpy", "numba", "pybullet", "mujoco")
"""Whose versions the last bits may depend on."""


@dataclass(frozen=True)
class Found:
    """What one stack gave when it was made again.

    Args:
        name: of the stack.
        runs: how many it has.
        initial: "same", "differ", or "not recorded": the digests of the initial weights.
        compared: how many numbers were compared.
        differing: a line for each metric that differs.
        exact: whether bit for bit; else to the tolerance.
        why: what is different from what made it, where it is not exact.
    """

    name: str
    runs: int
    initial: str
    compared: int
    differing: tuple[str, ...]
    exact: bool
    why: str = ""

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return self.initial != "differ" and not self.differing

    @property
    def outcome(self) -> str:
        """In a word or two."""
        if not self.compared and self.initial == "not recorded":
            return "nothing to compare"
        return "same" if self.same else "differs"


class _Enough(Exception):
    """The tasks that were asked for are done."""


def sample_parts(results: Results, runs: int, seed: int = 0) -> list[tuple[dict[str, Any], pa.Table]]:
    """Finished stacks in a drawn order, with their tables, until they have this many runs.

    Raises:
        StoreError: parts are damaged, or there are none.
    """
    parts, damaged = results.check_parts(read=lambda path, part, content: (part, parse_part(path, content)))
    if damaged:
        raise results.refuse(damaged)
    if not parts:
        raise StoreError(f"{results.root} has no finished runs with tables; there is nothing to verify.")
    random.Random(seed).shuffle(parts)
    chosen: list[tuple[dict[str, Any], pa.Table]] = []
    for part in parts:
        if sum(len(one["runs"]) for one, _ in chosen) < runs:
            chosen.append(part)
    return chosen


def verify(
    job: Job, sweep: Sweep, parts: Sequence[tuple[dict[str, Any], pa.Table]], tasks: int, tolerance: float
) -> Iterator[Found]:
    """Make stacks again and compare.

    Args:
        job: where, on which device, and with which data.
        sweep: of the folder.
        parts: what is stored of the stacks.
        tasks: how many tasks of each; 0 compares initial weights and what was measured before the first update.
        tolerance: share of the largest value of a metric by which numbers may differ where bits may.
    """
    set_deterministic()
    for part, table in parts:
        yield _verify_part(job, sweep, part, table, tasks, tolerance)


def _verify_part(
    job: Job, sweep: Sweep, part: Mapping[str, Any], table: pa.Table, tasks: int, tolerance: float
) -> Found:
    runs = find_runs(sweep, part, job.device)
    stack = PlannedStack(sweep, runs)
    training = make_training(job, stack)
    stored = [run["run_id"] for run in part["runs"]]
    recorded = [run.get("initial", "") for run in part["runs"]]
    initial = "not recorded"
    if all(recorded):
        initial = "same" if recorded == training.initial else "differ"

    def pause() -> None:
        if training.task >= tasks:
            raise _Enough

    with contextlib.suppress(_Enough):
        training.run(pause)
    why = _find_differences(job, part, stack)
    compared, differing = _compare(training, table, stored, tasks, tolerance if why else 0.0)
    return Found(stack.name, len(runs), initial, compared, tuple(differing), not why, why)


def find_runs(sweep: Sweep, part: Mapping[str, Any], device: torch.device) -> tuple[Run, ...]:
    """The runs of a stored stack as the code has them now, in the stack's order.

    Raises:
        StoreError: the experiment no longer has one of them.
    """
    kernel = choose_kernel("reference" if part["kernel"] == "reference" else "auto", device)
    seeds = range(1 + max(int(run["configuration"]["seed"]) for run in part["runs"]))
    known = {one: run for run in runs_of(sweep, sweep.settings, kernel, seeds) for one in run_ids(run.configuration)}
    missing = [run["setting"] for run in part["runs"] if run["run_id"] not in known]
    if missing:
        raise StoreError(
            f"The experiment as it is now has no run like {missing[0]!r} of this folder; its settings have changed. "
            "Use the version that wrote the folder."
        )
    return tuple(known[run["run_id"]] for run in part["runs"])


def _find_differences(job: Job, part: Mapping[str, Any], stack: PlannedStack) -> str:
    """What is different here from where a stack was made; "" if nothing that its bits depend on."""
    here = versions()
    pairs = {
        "device": (part["device"], job.device.type),
        "backend": (part["kernel"], stack.backend),
        "machine": (part["machine"], machine(job.device)),
        **{name: (part["versions"].get(name, ""), here.get(name, "")) for name in _PACKAGES},
    }
    changed = {what: pair for what, pair in pairs.items() if pair[0] != pair[1]}
    return ", ".join(f"{what} {then or 'none'}, here {now or 'none'}" for what, (then, now) in changed.items())


def _compare(
    training: Training | AgentTraining, table: pa.Table, stored: Sequence[str], tasks: int, tolerance: float
) -> tuple[int, list[str]]:
    """How many numbers of the first tasks were compared, and a line for each metric in which some differ.

    With no tasks: what was measured before the first update.
    """
    made, measures = training.table(), training.planned.sweep.measures
    rows = table.to_pandas().astype({"run_id": str, "metric": str})
    by_cell = rows.set_index(["run_id", "metric", "task"])["value"]
    compared, differing = 0, []
    for metric in sorted(name for name in made if not name.endswith(".tasks") and (tasks or name in measures)):
        numbers = made[f"{metric}.tasks"].tolist()
        points = points_of(metric, training.planned.sweep.points_per_task)
        cells = [
            (float(by_cell.loc[(run, metric, task)]), float(made[metric][row, column]), run, task)  # type: ignore[arg-type]
            for row, task in enumerate(numbers)
            if task < max(1, tasks) * points
            for column, run in enumerate(stored)
            if (run, metric, task) in by_cell.index
        ]
        compared += len(cells)
        allowed = tolerance * max((abs(then) for then, *_ in cells if then == then), default=0.0)
        off = [one for one in cells if not _agree(one[0], one[1], allowed)]
        if off:
            then, now, run, task = off[0]
            differing.append(
                f"{metric}: {len(off)} of {len(cells)} differ, first in run {run}, task {task}: {then!r} stored, "
                f"{now!r} made"
            )
    return compared, differing


def _agree(then: float, now: float, allowed: float) -> bool:
    both_broken = then != then and now != now
    return both_broken or then == now or abs(then - now) <= allowed
