"""Results in Weights & Biases: one run per setting, grouped by experiment and scale.

The program's own settings decide where they go: `WANDB_MODE=offline` keeps them in `DIR/track/wandb` for `wandb sync`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from neoteny.suite.identity import digest
from neoteny.suite.trackers.tracker import Point, TrackedSetting, TrackedSweep, Tracker


class WandbTracker(Tracker):
    """Logs to the project `neoteny`; a run keeps its id when a sweep is continued."""

    def __init__(self, sweep: TrackedSweep) -> None:
        super().__init__(sweep)
        self._wandb: Any = importlib.import_module("wandb")
        self._runs: dict[str, Any] = {}

    def log(self, setting: TrackedSetting, points: Sequence[Point], complete: bool) -> None:
        """Log the metrics of each task together; `task` is the axis."""
        run = self._runs.get(setting.label) or self._begin(setting)
        tasks: dict[int, dict[str, float]] = {}
        for point in points:
            tasks.setdefault(point.task, {})[point.metric] = point.mean
        for task, values in tasks.items():
            run.log({"task": task, **values})
        if complete:
            self._runs.pop(setting.label).finish()

    def end(self) -> None:
        """Finish the runs."""
        for run in self._runs.values():
            run.finish()
        self._runs = {}

    def _begin(self, setting: TrackedSetting) -> Any:
        sweep = self.sweep
        sweep.folder.mkdir(parents=True, exist_ok=True)
        run = self._wandb.init(
            project="neoteny",
            group=sweep.name,
            name=setting.label[:128],  # the longest that it takes
            id=digest([str(sweep.report.absolute()), sweep.name, setting.label]),
            resume="allow",
            reinit="create_new",
            dir=str(sweep.folder),
            notes=f"Report: {sweep.link}",
            config={
                "experiment": sweep.experiment,
                "scale": sweep.scale,
                "method": setting.method,
                "runs": setting.runs,
                "report": sweep.link,
                **setting.details,
            },
            settings=self._wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )
        run.define_metric("task")
        run.define_metric("*", step_metric="task")
        self._runs[setting.label] = run
        return run
