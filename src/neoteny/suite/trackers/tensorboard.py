"""Results in TensorBoard: one folder of events per setting, in `DIR/track/tensorboard`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from neoteny.suite.identity import digest
from neoteny.suite.trackers.tracker import Point, TrackedSetting, TrackedSweep, Tracker
from neoteny.text import say_count

_LONGEST = 150


class TensorBoardTracker(Tracker):
    """Writes event files; look at them with `tensorboard --logdir DIR/track/tensorboard`."""

    def __init__(self, sweep: TrackedSweep) -> None:
        super().__init__(sweep)
        from torch.utils.tensorboard.writer import SummaryWriter

        self._make_writer = SummaryWriter
        self._writers: dict[str, Any] = {}

    def log(self, setting: TrackedSetting, points: Sequence[Point], complete: bool) -> None:
        """Add one scalar per point; the step is the task."""
        writer = self._writers.get(setting.label)
        if writer is None:
            writer = self._writers[setting.label] = self._make_writer(str(self.sweep.folder / _name(setting.label)))
            details = ", ".join(f"{name} = {value}" for name, value in setting.details.items())
            about = f"{self.sweep.name}, {setting.method}, {details}; means over {say_count(setting.runs, 'run')}"
            writer.add_text("report", f"[{self.sweep.link}]({self.sweep.link})\n\n{about}")
        for point in points:
            writer.add_scalar(point.metric, point.mean, point.task)
        writer.flush()
        if complete:
            self._writers.pop(setting.label).close()

    def end(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}


def _name(label: str) -> str:
    """A folder's name for a label: other letters than these are written as their codes, long ones are cut."""
    name = quote(label, safe=" =,()+&-").replace("%", "~")
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}-{digest(label)}"
