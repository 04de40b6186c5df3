"""Results in MLflow: one run per setting, in the experiment `neoteny/EXPERIMENT-SCALE`.

`MLFLOW_TRACKING_URI` says where they go. Without it they are kept in a database file in `DIR/track/mlflow`; look at it
with `mlflow ui --backend-store-uri sqlite:///DIR/track/mlflow/mlflow.db`.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Sequence
from typing import Any

from neoteny.suite.identity import digest
from neoteny.suite.trackers.tracker import Point, TrackedSetting, TrackedSweep, Tracker

_MOST = 1000
"""Points that one call takes."""


class MlflowTracker(Tracker):
    """Logs with MLflow's client; a run is found again by its tags when a sweep is continued."""

    def __init__(self, sweep: TrackedSweep) -> None:
        super().__init__(sweep)
        mlflow = importlib.import_module("mlflow")
        self._metric: Any = importlib.import_module("mlflow.entities").Metric
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if not address:
            sweep.folder.mkdir(parents=True, exist_ok=True)
            address = f"sqlite:///{(sweep.folder / 'mlflow.db').absolute()}"
        self._client: Any = mlflow.MlflowClient(tracking_uri=address)
        name = f"neoteny/{sweep.name}"
        found = self._client.get_experiment_by_name(name)
        self._experiment = found.experiment_id if found else self._client.create_experiment(name)
        self._runs: dict[str, str] = {}

    def log(self, setting: TrackedSetting, points: Sequence[Point], complete: bool) -> None:
        """Log one metric per point; the step is the task."""
        run = self._runs.get(setting.label) or self._begin(setting)
        now = int(1000 * time.time())
        metrics = [self._metric(point.metric, point.mean, now, point.task) for point in points]
        for start in range(0, len(metrics), _MOST):
            self._client.log_batch(run, metrics=metrics[start : start + _MOST])
        if complete:
            self._client.set_terminated(self._runs.pop(setting.label))

    def end(self) -> None:
        """End the runs; they are continued by the next command."""
        for run in self._runs.values():
            self._client.set_terminated(run, status="KILLED")
        self._runs = {}

    def _begin(self, setting: TrackedSetting) -> str:
        folder = str(self.sweep.report.parent.absolute())
        tags = {
            "neoteny.key": digest([folder, setting.label]),
            "neoteny.folder": folder,
            "neoteny.setting": setting.label,
            "neoteny.report": self.sweep.link,
            "mlflow.note.content": f"[Report]({self.sweep.link})",
        }
        text = f"tags.`neoteny.key` = '{tags['neoteny.key']}'"
        found = self._client.search_runs([self._experiment], filter_string=text, max_results=1)
        if found:
            self._runs[setting.label] = found[0].info.run_id
            return self._runs[setting.label]
        run = self._client.create_run(self._experiment, tags=tags, run_name=setting.label).info.run_id
        details = {"method": setting.method, "runs": setting.runs, "scale": self.sweep.scale, **setting.details}
        for name, value in details.items():
            self._client.log_param(run, name, value)
        self._runs[setting.label] = run
        return run
