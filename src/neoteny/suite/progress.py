"""The progress of a sweep for the person who waits: bars in a terminal, plain lines elsewhere; `neoteny status`."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Container, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from neoteny.suite.store.errors import Damaged
from neoteny.suite.store.folder import ResultsFolder
from neoteny.suite.store.records import runs_in
from neoteny.text import printable, render, say_count, shorten_names

REFRESH_SECONDS = 0.5
LINE_SECONDS = 30.0
MOST_ROWS = 200
"""Of stacks; with more, `status` counts those that are finished."""


def format_seconds(seconds: float) -> str:
    """1:02:03, 2:03 or 4 s.

    Example:
        >>> format_seconds(3723), format_seconds(123), format_seconds(4.2)
        ('1:02:03', '2:03', '4 s')
    """
    if not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def describe_progress(entry: Mapping[str, Any]) -> str:
    """Task, speed, time to go and the latest metric of one stack."""
    parts = [f"task {entry['task']} of {entry['tasks']}"]
    unit = entry.get("unit", "update")
    if entry.get("backend") and entry["state"] == "running":
        parts.append(entry["backend"])
    if entry["resumed_at"] and entry["state"] == "running":
        parts.append(f"resumed at {unit} {entry['resumed_at']:,}")
    rate = entry["updates_per_second"]
    if rate > 0 and entry["state"] == "running":
        parts.append(f"{rate * len(entry['runs']):,.0f} {unit}s/s")
        parts.append(f"{format_seconds((entry['total_updates'] - entry['updates']) / rate)} to go")
    if entry["latest"] is not None:
        metric, value = entry["latest"]
        parts.append(f"{metric} {value:.4g}")
    if entry.get("diverged"):
        parts.append(f"{entry['diverged']} diverged")
    return ", ".join(parts)


def shorten(lines: Sequence[str], most: int = 3) -> str:
    """The first of some texts in one line, and how many there are besides.

    Example:
        >>> shorten(["a", "b", "c", "d", "e"])
        'a; b; c; and 2 more'
    """
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return "; ".join([*lines[:most], *more])


class Display:
    """Watches the progress files of a results folder in a thread, while the sweep runs in this or other processes."""

    def __init__(self, results: ResultsFolder) -> None:
        self._results = results
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._began = time.time()
        self._bars: dict[str, Any] = {}
        self._lines: dict[str, tuple[str, float]] = {}
        self._before = {key: entry["state"] for key, entry in results.progress().items()}
        self._rich = self._make_rich() if sys.stderr.isatty() else None

    def __enter__(self) -> Self:
        if self._rich is not None:
            self._rich.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        if self._rich is not None:
            self._rich.stop()

    def notify(self, line: str) -> None:
        """Print a line above the bars."""
        if self._rich is not None:
            self._rich.console.print(printable(line), markup=False, highlight=False)
        else:
            print(printable(line), file=sys.stderr, flush=True)

    def _watch(self) -> None:
        while not self._done.wait(REFRESH_SECONDS):
            self._update()
        self._update()

    def _update(self) -> None:
        for key, entry in self._results.progress().items():
            if entry["state"] != "running" and self._before.get(key) == entry["state"]:
                continue  # left by an earlier command
            self._before.pop(key, None)
            if self._rich is not None:
                self._draw(key, entry)
            else:
                self._print(key, entry)

    def _draw(self, key: str, entry: Mapping[str, Any]) -> None:
        assert self._rich is not None
        if key not in self._bars:
            (name,) = shorten_names([entry["name"]])
            self._bars[key] = self._rich.add_task(printable(name), total=entry["total_updates"], detail="")
        done = entry["total_updates"] if entry["state"] == "finished" else entry["updates"]
        self._rich.update(self._bars[key], completed=done, detail=printable(describe_progress(entry)))

    def _print(self, key: str, entry: Mapping[str, Any]) -> None:
        state, at = self._lines.get(key, ("", 0.0))
        if entry["state"] != state or (state == "running" and time.time() - at >= LINE_SECONDS):
            self._lines[key] = (entry["state"], time.time())
            count = f", {len(entry['runs'])} runs" if len(entry["runs"]) > 1 else ""
            self.notify(f"[{entry['state']}] {entry['name']}{count}: {describe_progress(entry)}")

    @staticmethod
    def _make_rich() -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        return Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[detail]}", markup=False),
            console=Console(stderr=True),
            refresh_per_second=4,
        )


def status_text(results: ResultsFolder, command: str = "", queued: bool = False) -> str:
    """The text of `neoteny status`: what is finished, running, failed, left and damaged, and the time to go.

    Args:
        results: the folder.
        command: that continues it; "" where none is known.
        queued: whether jobs of a batch system are to continue it, so that nobody need do so.
    """
    entries, damaged = results.check_progress()
    parts, damaged_parts = results.check_records()
    damaged += results.find_damage()
    try:
        plan = results.plan()
    except Damaged as error:
        plan = results.empty_plan()
        damaged.append(error)
    finished = runs_in(parts)
    done = {*(part.stack for part in parts), *(error.path.stem for error in damaged_parts)}
    rows, seconds = [], 0.0
    entries = drop_superseded(entries, done, finished)
    with_former = len(entries)
    entries = drop_former(results, entries, done, plan)
    former = with_former - len(entries)
    states = {key: state_of(results, key, entry, done) for key, entry in entries.items()}
    states.update((error.path.stem, "damaged") for error in damaged_parts if error.path.stem in entries)
    for key, entry in entries.items():
        if states[key] == "running" and entry["updates_per_second"] > 0:
            seconds = max(seconds, (entry["total_updates"] - entry["updates"]) / entry["updates_per_second"])
        described = describe_progress({**entry, "state": states[key]})
        rows.append([entry["name"], states[key], str(len(entry["runs"])), described])
    rows = [[name, *cells] for name, (_, *cells) in zip(shorten_names([row[0] for row in rows]), rows, strict=True)]
    rows = _shorten_rows(rows)
    left = [run_id for run_id in plan["runs"] if run_id not in finished]
    begun = {run_id for key, entry in entries.items() if states[key] != "finished" for run_id in entry["runs"]}
    lines = [f"{results.about['experiment']}, scale {results.about['scale']}, in {results.root}"]
    if rows:
        lines += ["", render(["stack", "state", "runs", "progress"], rows)]
    waiting = len([run_id for run_id in left if run_id not in begun])
    lines += [
        "",
        f"{say_count(len(finished), 'run')} finished, {len(left)} of {len(plan['runs'])} planned left "
        f"({waiting} not begun).",
    ]
    if plan["more"]:
        lines.append(plan["more"])
    if plan["left_out"]:
        lines.append(f"Left for later by --methods: {', '.join(plan['left_out'])}.")
    others = len(results.other_runs(parts, plan))
    if others:
        lines.append(
            f"{say_count(others, 'finished run is', 'finished runs are')} left out of reports: of settings that the "
            "experiment no longer has, or trained by another backend."
        )
    if former:
        lines.append(f"Begun stacks that are no longer asked for, and not shown: {former}.")
    if seconds:
        lines.append(f"Stacks now running have at most {format_seconds(seconds)} to go.")
    lines += [f"diverged: {shorten(each['diverged_runs'])}" for each in entries.values() if each.get("diverged_runs")]
    lines += [f"failed: {entries[key].get('error', 'unknown error')}" for key in entries if states[key] == "failed"]
    if (left or plan["more"]) and not queued and not any(results.is_running(key) for key in entries):
        lines.append(f"Nothing is running. `{command}` continues." if command else "Nothing is running.")
    lines += [*map(str, damaged), *([str(results.refuse(damaged_parts))] if damaged_parts else [])]
    lines += filter(None, [results.describe_missing_checksums(parts)])
    return "\n".join(lines)


def drop_superseded(
    entries: Mapping[str, Mapping[str, Any]], done: Container[str], finished: set[str]
) -> dict[str, Mapping[str, Any]]:
    """Progress entries without those of stacks whose runs were finished in other stacks.

    Args:
        entries: of the progress files.
        done: ids of finished stacks.
        finished: ids of finished runs.
    """
    return {
        key: entry
        for key, entry in entries.items()
        if key in done or (entry["state"] != "split" and not finished.issuperset(entry["runs"]))
    }


def drop_former(
    results: ResultsFolder, entries: Mapping[str, Mapping[str, Any]], done: Container[str], plan: Mapping[str, Any]
) -> dict[str, Mapping[str, Any]]:
    """The entries without stacks that were begun, are neither finished nor at work, and have no planned run.

    A correction of the experiment leaves such stacks. All stay where the plan does not have all runs: it is damaged, or
    a second stage follows.
    """
    planned = set(plan["runs"])
    if not planned or plan["more"]:
        return dict(entries)
    return {
        key: entry
        for key, entry in entries.items()
        if key in done or not planned.isdisjoint(entry["runs"]) or results.is_running(key)
    }


def state_of(results: ResultsFolder, key: str, entry: Mapping[str, Any], done: Container[str]) -> str:
    """What a stack is now: finished, running, failed or stopped; `done` has the ids of finished stacks."""
    if key in done:
        return "finished"
    if results.is_running(key):
        return "running"
    return "failed" if entry["state"] == "failed" else "stopped"


def _shorten_rows(rows: list[list[str]]) -> list[list[str]]:
    """The rows of stacks; where they are very many, finished ones are counted instead."""
    if len(rows) <= MOST_ROWS:
        return rows
    shown = [row for row in rows if row[1] != "finished"]
    count, runs = len(rows) - len(shown), sum(int(row[2]) for row in rows if row[1] == "finished")
    return [*shown, [f"{count:,} stacks", "finished", str(runs), ""]]
