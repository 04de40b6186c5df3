"""How far a sweep is, in numbers: what `neoteny watch` shows and `neoteny status --follow` prints again and again.

Read from the results folder alone, by any process, while others write it. Nothing heavy is imported here.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neoteny.suite.progress import drop_former, drop_superseded, format_seconds, state_of
from neoteny.suite.store.errors import Damaged
from neoteny.suite.store.folder import ResultsFolder
from neoteny.suite.store.records import runs_in
from neoteny.text import say_count

STATES = ("running", "failed", "stopped", "damaged", "finished")
"""Of stacks, in the order in which they are shown. Runs that are in none of them wait."""


@dataclass(frozen=True)
class StackView:
    """One stack.

    Args:
        stack: its id.
        name: of its settings.
        state: one of `STATES`.
        runs: how many.
        task, tasks: the task that it is at, of how many.
        done: the share of its updates, from 0 to 1.
        rate: updates per second, summed over its runs; 0 unless it runs.
        unit: what is counted: update or step.
        to_go: seconds; nan where it is not known.
        latest: the newest metric and its value, in words.
        diverged: how many of its runs did.
        retried: whether it was continued from a checkpoint, or begun again by another worker.
        error: why it failed.
    """

    stack: str
    name: str
    state: str
    runs: int
    task: int
    tasks: int
    done: float
    rate: float
    unit: str
    to_go: float
    latest: str
    diverged: int
    retried: bool
    error: str


@dataclass(frozen=True)
class Overview:
    """A results folder at one moment.

    Args:
        experiment, scale, folder: of what.
        at: seconds since 1970.
        stacks: that have begun, in the order of `STATES`.
        planned: runs that the last `run` set out to do.
        finished: runs that are there.
        waiting: planned runs that no stack has begun.
        rate: updates per second of all that runs.
        to_go: seconds until all planned runs are finished at this rate; nan where it is not known.
        note: what the plan says of later stages.
        damage: what is damaged, in words.
    """

    experiment: str
    scale: str
    folder: str
    at: float
    stacks: Sequence[StackView]
    planned: int
    finished: int
    waiting: int
    rate: float
    to_go: float
    note: str
    damage: Sequence[str]

    @property
    def left(self) -> int:
        """Planned runs that are not finished."""
        return self.waiting + sum(stack.runs for stack in self.stacks if stack.state not in ("finished", "damaged"))

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.planned > 0 and self.left == 0 and not self.note

    def count(self, state: str) -> int:
        """Stacks of a state."""
        return Counter(stack.state for stack in self.stacks)[state]

    def describe(self) -> str:
        """All of it in one line."""
        parts = [f"{self.finished:,} of {say_count(self.planned, 'run')} finished"]
        parts += [f"{say_count(self.count(state), 'stack')} {state}" for state in STATES[:-1] if self.count(state)]
        if self.waiting:
            parts.append(f"{say_count(self.waiting, 'run')} waiting")
        if self.rate > 0:
            parts.append(f"{self.rate:,.0f} updates/s")
        if math.isfinite(self.to_go) and self.left:
            parts.append(f"{format_seconds(self.to_go)} to go")
        return ", ".join(parts)

    def to_json(self, most: int = 300) -> dict[str, Any]:
        """Plain values for the page; of finished stacks at most so many."""
        shown = [stack for stack in self.stacks if stack.state != "finished"]
        shown += [stack for stack in self.stacks if stack.state == "finished"][:most]
        fields = {name: value for name, value in vars(self).items() if name not in ("stacks", "damage")}
        counts = {state: self.count(state) for state in STATES}
        return {
            **_finite(fields),
            "left": self.left,
            "ended": self.ended,
            "counts": counts,
            "retried": sum(stack.retried for stack in self.stacks),
            "diverged": sum(stack.diverged for stack in self.stacks),
            "shown": len(shown),
            "stacks": [_finite(vars(stack)) for stack in shown],
            "damage": list(self.damage),
        }


def look(results: ResultsFolder) -> Overview:
    """A results folder as it is now."""
    entries, damaged = results.check_progress()
    parts, damaged_parts = results.check_records()
    try:
        plan = results.plan()
    except Damaged as error:
        plan = results.empty_plan()
        damaged.append(error)
    finished = runs_in(parts)
    broken = {error.path.stem for error in damaged_parts}
    done = {part.stack for part in parts} | broken
    entries = drop_former(results, drop_superseded(entries, done, finished), done, plan)
    stacks = [
        _view(key, entry, "damaged" if key in broken else state_of(results, key, entry, done))
        for key, entry in entries.items()
    ]
    begun = {run for stack in stacks if stack.state != "finished" for run in entries[stack.stack]["runs"]}
    waiting = len([run for run in plan["runs"] if run not in finished and run not in begun])
    rate = sum(stack.rate for stack in stacks)
    return Overview(
        experiment=results.about["experiment"],
        scale=results.about["scale"],
        folder=str(results.root),
        at=time.time(),
        stacks=sorted(stacks, key=lambda stack: (STATES.index(stack.state), stack.name, stack.stack)),
        planned=len(plan["runs"]),
        finished=len(finished),
        waiting=waiting,
        rate=rate,
        to_go=_updates_left(stacks, entries, waiting) / rate if rate > 0 else math.nan,
        note=plan["more"],
        damage=[str(error) for error in (*damaged, *damaged_parts)],
    )


def _view(key: str, entry: Mapping[str, Any], state: str) -> StackView:
    total = max(1, entry["total_updates"])
    rate = entry["updates_per_second"] if state == "running" else 0.0
    latest = entry["latest"]
    return StackView(
        stack=key,
        name=entry["name"],
        state=state,
        runs=len(entry["runs"]),
        task=entry["tasks"] if state == "finished" else entry["task"],
        tasks=entry["tasks"],
        done=1.0 if state == "finished" else min(1.0, max(0.0, entry["updates"] / total)),
        rate=rate * len(entry["runs"]),
        unit=entry.get("unit", "update"),
        to_go=(entry["total_updates"] - entry["updates"]) / rate if rate > 0 else math.nan,
        latest="" if latest is None else f"{latest[0]} {latest[1]:.4g}",
        diverged=entry.get("diverged", 0),
        retried=entry["resumed_at"] > 0 or entry.get("attempts", 1) > 1,
        error=entry.get("error", "unknown error") if state == "failed" else "",
    )


def _updates_left(stacks: Sequence[StackView], entries: Mapping[str, Mapping[str, Any]], waiting: int) -> float:
    """Updates of all runs that are left; a run that has not begun counts as long as the mean of those that have."""
    left = known = runs = 0.0
    for stack in stacks:
        total = entries[stack.stack]["total_updates"] * stack.runs
        known, runs = known + total, runs + stack.runs
        left += total * (1.0 - stack.done)
    return left + (waiting * known / runs if runs else 0.0)


def _finite(fields: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no nan."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in fields.items()
    }
