"""Published: a number that somebody printed, and how ours compares with it.

Each experiment of this folder has the sizes and settings of one publication, and a list of its numbers. A number is
met where ours differs from it by no more than both spreads allow. From here: the claims of those experiments, and a
table of `docs/field.md`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from neoteny.report.chart import Chart
from neoteny.report.claim import FEWEST_RUNS, Claim
from neoteny.report.statistics import Estimate, curve, estimate, select
from neoteny.report.verdict import Coverage, Outcome, Verdict

_POINTS = 50


@dataclass(frozen=True)
class Published:
    """A published number: the mean of the performance over all tasks, or the first ones.

    Args:
        setting: the label of the setting of ours that it is compared with.
        value: as printed.
        seeds: over how many runs.
        source: who printed it.
        tasks: over how many of the first tasks; 0: all.
        error: the standard error that is printed with it; None where none is known. Then runs there are presumed to
            spread as ours do.
    """

    setting: str
    value: float
    seeds: int
    source: str
    tasks: int = 0
    error: float | None = None

    @property
    def name(self) -> str:
        """Of its claim.

        Example:
            >>> Published("L2-init (step_size=0.001)", 0.811, 5, "", tasks=20).name
            'l2-init-step-size-0.001-20-tasks'
        """
        words = "".join(sign if sign.isalnum() or sign == "." else " " for sign in self.setting.lower()).split()
        return "-".join([*words, *([f"{self.tasks}-tasks"] if self.tasks else [])])

    def ours(self, frame: pd.DataFrame, metric: str) -> pd.Series:
        """Our values, by seed: means over the same tasks."""
        rows = select(frame, metric, setting=self.setting)
        rows = rows[rows["task"] < self.tasks] if self.tasks else rows
        return rows.groupby("seed")["value"].mean()

    def allow(self, ours: Estimate) -> float:
        """How far ours may lie from it: the 95% interval of the difference of both means."""
        from scipy.special import stdtrit

        if ours.runs < FEWEST_RUNS or math.isnan(ours.mean):
            return math.nan
        theirs = ours.spread * math.sqrt(ours.runs / self.seeds) if self.error is None else self.error
        return float(stdtrit(ours.runs - 1, 0.975)) * math.hypot(ours.spread, theirs)

    def compare(self, values: pd.Series) -> Verdict:
        """Whether our values, by seed, agree with it.

        Example:
            >>> verdict = Published("Adam", 0.72, 10, "").compare(pd.Series([0.71, 0.72, 0.74]))
            >>> print(verdict.outcome, verdict.evidence, sep="; ")
            holds; 0.7233 [0.6854, 0.7613] (3 runs) here, 0.72 published: 0.00333 apart, both spreads allow 0.0433
        """
        ours = estimate(values)
        if not ours.runs:
            return Verdict(Outcome.INCONCLUSIVE, "not in these results", Coverage.NOTHING)
        allowed = self.allow(ours)
        if math.isnan(allowed):
            coverage = Coverage.PART if ours.runs < FEWEST_RUNS else Coverage.WHOLE
            return Verdict(Outcome.INCONCLUSIVE, f"{ours} here, {self.value:g} published", coverage)
        apart = abs(ours.mean - self.value)
        evidence = f"{ours} here, {self.value:g} published: {apart:.3g} apart, both spreads allow {allowed:.3g}"
        return Verdict(Outcome.HOLDS if apart <= allowed else Outcome.FAILS, evidence)


def make_claims(numbers: Sequence[Published], metric: str) -> tuple[Claim, ...]:
    """One claim per number, for the scales with the published sizes."""

    def make(number: Published) -> Claim:
        of = f"the first {number.tasks} tasks" if number.tasks else "all tasks"
        statement = f"{number.setting}: mean {metric} over {of} is {number.value:g} ({number.seeds} seeds)."

        def check(frame: pd.DataFrame) -> Verdict:
            if "smoke" in set(frame["scale"]):
                return Verdict(Outcome.INCONCLUSIVE, "the smoke scale has other sizes", Coverage.NOTHING)
            return number.compare(number.ours(frame, metric))

        return Claim(number.name, statement, number.source, check)

    return tuple(make(number) for number in numbers)


def draw(frame: pd.DataFrame, metric: str) -> list[Chart]:
    """Performance over tasks, one line per setting."""
    if frame.empty:
        return []
    bin_tasks = max(1, (int(frame["task"].max()) + 1) // _POINTS)
    series = [
        curve(select(frame, metric, setting=setting), str(setting), bin_tasks)
        for setting in dict.fromkeys(frame["setting"])
    ]
    caption = "Mean over seeds, band: one standard error."
    return [Chart("Over tasks", "task", metric, tuple(series), caption)]
