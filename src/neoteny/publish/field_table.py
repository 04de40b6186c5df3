"""FieldTable: what is kept of one problem of the field, and every method's standing on it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from neoteny import experiments
from neoteny.experiments.field.recipes import SCRATCH
from neoteny.publish.keep import EvidenceError
from neoteny.report.field import COLUMNS, Standing, find_standings, split_seeds


@dataclass(frozen=True)
class FieldTable:
    """One problem at one scale.

    Attributes:
        experiment, scale: whose results.
        metric, higher_is_better: the performance.
        tasks, updates_per_task: of the problem.
        base: the plain optimizer of methods that are none, "SGD" or "Adam".
        scores: one row per run; see `neoteny.report.field`.
    """

    experiment: str
    scale: str
    metric: str
    higher_is_better: bool
    tasks: int
    updates_per_task: int
    base: str
    scores: pd.DataFrame

    @classmethod
    def read(cls, path: Path) -> FieldTable:
        """The table of a kept file."""
        try:
            about = json.loads(path.read_text())
            rows = [
                (one["method"], one["role"], one["setting"], int(seed), math.nan if value is None else float(value))
                for one in about.pop("settings")
                for seed, value in one["values"].items()
            ]
            return cls(**about, scores=pd.DataFrame(rows, columns=list(COLUMNS)))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EvidenceError(
                f"{path} is not a table of the field ({type(error).__name__}: {error}). Keep it again: python -m "
                "neoteny.publish --field DIR"
            ) from error

    @property
    def title(self) -> str:
        """The problem's name."""
        return experiments.load(self.experiment).title.removeprefix("The field on ")

    @property
    def command(self) -> str:
        """What makes these results again."""
        return f"neoteny run {self.experiment} --scale {self.scale}"

    @property
    def seeds(self) -> tuple[int, int]:
        """Tuning seeds and judging seeds."""
        tuning, judging = split_seeds(self.scores)
        return len(tuning), len(judging)

    @property
    def baselines(self) -> tuple[str, str]:
        """What methods are compared with: the plain optimizer, and a new network for each task."""
        return self.base, SCRATCH

    @cached_property
    def standings(self) -> list[Standing]:
        """Every method with judging runs, the best mean rank first."""
        return find_standings(self.scores, self.baselines, self.higher_is_better)
