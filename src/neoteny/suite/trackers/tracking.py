"""Tells a tracker of new results while a sweep runs: means over the runs of each setting, task by task.

A task of a setting is told once all its runs have finished it, and once only: how far each setting was told is kept in
`DIR/track/NAME.json`, so a sweep that is continued goes on where it was. A tracker that fails never harms the sweep.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from neoteny.suite.store.errors import StoreError
from neoteny.suite.store.files import read_json, write_atomically
from neoteny.suite.sweep import Sweep, seeds_of
from neoteny.suite.trackers.tracker import Point, TrackedSetting, TrackedSweep, Tracker
from neoteny.text import nearest

if TYPE_CHECKING:
    import pandas as pd

    from neoteny.suite.store.results import Results

FOLDER = "track"
SECONDS = 10.0
"""The least time between two looks at the results; they take at most a tenth of one processor."""
TRACKERS = {
    "tensorboard": ("tensorboard", "neoteny.suite.trackers.tensorboard:TensorBoardTracker"),
    "wandb": ("wandb", "neoteny.suite.trackers.wandb:WandbTracker"),
    "mlflow": ("mlflow", "neoteny.suite.trackers.mlflow:MlflowTracker"),
}
"""By name: the package that each needs, and its class."""


def find_tracker(name: str) -> type[Tracker]:
    """The class of a tracker: by one of our names, or as `module:Class`.

    Raises:
        ValueError: there is none, or its package is not installed.
    """
    package, place = TRACKERS.get(name, ("", name))
    if package and importlib.util.find_spec(package) is None:
        raise ValueError(f"--track {name}: {package} is not installed: pip install 'neoteny[{name}]'.")
    module, colon, kind = place.partition(":")
    if not colon:
        raise ValueError(
            f"--track: unknown tracker {name!r}.{nearest(name, TRACKERS)} Known are {', '.join(TRACKERS)}; or give a "
            "class of your own as package.module:Class (see neoteny.suite.trackers.tracker)."
        )
    try:
        found = getattr(importlib.import_module(module), kind)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--track {name}: it cannot be imported ({error}).") from error
    if not (isinstance(found, type) and issubclass(found, Tracker)):
        raise ValueError(f"--track {name}: expected a subclass of Tracker, got {found!r:.80}.")
    return found


class Tracking:
    """Looks at a results folder in a thread, and tells a tracker what is new: `with Tracking(...):` around a sweep.

    Args:
        name: of the tracker, as for `find_tracker`.
        results: the folder.
        sweep: what is run; means are over the runs of its first stage.
        notify: takes a line for the person who waits.
    """

    def __init__(self, name: str, results: Results, sweep: Sweep, notify: Callable[[str], None]) -> None:
        kind = find_tracker(name)
        self._results, self._notify, self._name = results, notify, name.rpartition(":")[2]
        self._path = results.root / FOLDER / f"{self._name}.json"
        self._told = self._read()
        self._settings = {
            setting.label: TrackedSetting(setting.label, setting.method, setting.details, setting.runs or sweep.runs)
            for setting in sweep.settings
        }
        self._seeds = {setting.label: seeds_of(sweep, setting) for setting in sweep.settings}
        self._tasks = {setting.label: (setting.problem or sweep.problem).tasks for setting in sweep.settings}
        about = results.about
        tracked = TrackedSweep(
            about["experiment"], about["scale"], self._path.with_suffix(""), results.root / "report.html"
        )
        try:
            self._tracker: Tracker | None = kind(tracked)
        except Exception as error:
            raise ValueError(f"--track {name}: it cannot begin ({type(error).__name__}: {error}).") from error
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_again_and_again, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._attempt(self._tell)
        if self._tracker is not None:
            self._attempt(self._tracker.end)

    def _look_again_and_again(self) -> None:
        pause = SECONDS
        while not self._stop.wait(pause):
            began = time.monotonic()
            self._attempt(self._tell)
            pause = max(SECONDS, 10 * (time.monotonic() - began))

    def _attempt(self, act: Callable[[], None]) -> None:
        if self._tracker is None:
            return
        try:
            act()
        except Exception as error:  # a tracker is foreign code, and often a server far away
            self._tracker = None
            self._notify(
                f"--track {self._name} has stopped: {type(error).__name__}: {error} The sweep goes on; repeat the "
                "command to track what is missing."
            )

    def _tell(self) -> None:
        assert self._tracker is not None
        frame = self._results.frame(so_far=True)
        if frame.empty:
            return
        for label, rows in frame[frame["setting"].isin(list(self._settings))].groupby("setting", sort=False):
            setting = self._settings[str(label)]
            points, reached = find_points(rows, self._seeds[setting.label], self._told.get(setting.label, {}))
            if points:
                whole = max(reached.values()) >= self._tasks[setting.label] - 1
                self._tracker.log(setting, [point for point in points if math.isfinite(point.mean)], whole)
                self._told[setting.label] = reached
                self._write()

    def _read(self) -> dict[str, dict[str, int]]:
        if not self._path.exists():
            return {}
        found: Any = read_json(self._path)
        try:
            return {str(label): {str(m): int(task) for m, task in each.items()} for label, each in found.items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise StoreError(f"{self._path} does not say what was tracked. Remove it to track all again.") from error

    def _write(self) -> None:
        text = json.dumps(self._told, indent=1, sort_keys=True)
        write_atomically(self._path, lambda file: file.write(text.encode()), durable=False)


def find_points(rows: pd.DataFrame, seeds: range, told: Mapping[str, int]) -> tuple[Sequence[Point], dict[str, int]]:
    """The new points of a setting, sorted by task and metric, and the last task of each metric that was told then.

    Args:
        rows: its results so far.
        seeds: of the runs that must have finished a task before its mean is told; those of later stages do not count.
        told: the last task of each metric that was told before.
    """
    points, reached = [], dict(told)
    rows = rows[rows["seed"].isin(seeds)]
    for metric, of_metric in rows.groupby("metric", sort=True):
        name, values = str(metric), of_metric.groupby("task", sort=True)["value"]
        means = values.agg(lambda some: some.mean(skipna=False))
        for task, count, mean in zip(means.index.tolist(), values.size().tolist(), means.tolist(), strict=True):
            if count < len(seeds):
                break
            if task > told.get(name, -1):
                reached[name] = task
                points.append(Point(name, task, mean))
    return sorted(points, key=lambda point: (point.task, point.metric)), reached
