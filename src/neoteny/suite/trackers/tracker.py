"""Tracker: what a program that keeps results of experiments is told of a sweep. One subclass per program.

`neoteny run --track tensorboard` uses one of ours, `--track my_package.my_module:MyTracker` one of yours: a class with
`log` and `end`, made with the sweep that it is told of. `tracking` calls it, from a thread of its own, in the process
that the person started.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TrackedSweep:
    """What is tracked.

    Args:
        experiment, scale: of the sweep.
        folder: for files of the tracker, in the results folder; it need not exist.
        report: where the page is that `neoteny report` writes.
    """

    experiment: str
    scale: str
    folder: Path
    report: Path

    @property
    def name(self) -> str:
        """Experiment and scale."""
        return f"{self.experiment}-{self.scale}"

    @property
    def link(self) -> str:
        """The address of the report."""
        return self.report.absolute().as_uri()


@dataclass(frozen=True)
class TrackedSetting:
    """One setting of the sweep: a line in the figures, a run in a tracker.

    Args:
        label: its name.
        method: of it.
        details: its hyperparameters.
        runs: how many a mean is over.
    """

    label: str
    method: str
    details: Mapping[str, Any]
    runs: int


@dataclass(frozen=True)
class Point:
    """The mean of a metric over all runs of a setting, at one task."""

    metric: str
    task: int
    mean: float


class Tracker(ABC):
    """Takes the results of one sweep.

    Args:
        sweep: which.
    """

    def __init__(self, sweep: TrackedSweep) -> None:
        self.sweep = sweep

    @abstractmethod
    def log(self, setting: TrackedSetting, points: Sequence[Point], complete: bool) -> None:
        """Take new points of a setting, sorted by task; each comes once, also over several commands.

        Args:
            setting: which.
            points: finite numbers.
            complete: whether these are its last.
        """

    @abstractmethod
    def end(self) -> None:
        """The command ends: write what is not written yet. The sweep may be finished or not."""
