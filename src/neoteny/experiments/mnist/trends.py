"""How a metric moves over the tasks of online permuted MNIST: its trends as charts and as estimates for claims.

A `Trend` cuts the tasks of one setting into twenty bins (fewer where there are fewer tasks). All of its values are
series indexed by seed, so that settings are compared in pairs over the runs' common random numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from neoteny.report import trends as windows
from neoteny.report.chart import Chart
from neoteny.report.claim import FEWEST_RUNS, Coverage, Outcome, Verdict, above, all_of, below
from neoteny.report.statistics import Estimate, curve, estimate, paired, select
from neoteny.suite.sweep import Setting

BINS = 20
MOST_POINTS = 200
PERCENT = ("accuracy", "dead_units")
LABELS = {
    "accuracy": "Online accuracy (%)",
    "dead_units": "Dead units (%)",
    "weight_magnitude": "Mean absolute weight",
    "effective_rank": "Effective rank",
}
TITLES = {
    "accuracy": "Online accuracy of each task",
    "dead_units": "Dead units",
    "weight_magnitude": "Weight magnitude",
    "effective_rank": "Effective rank",
}


@dataclass(frozen=True)
class Trend:
    """One metric of one setting: a table of tasks (rows) by seeds (columns), empty where there are no results."""

    tasks: pd.DataFrame

    @functools.cached_property
    def bins(self) -> pd.DataFrame:
        """Means over twentieths of the tasks; nan for a run that diverged in one."""
        parts = np.array_split(self.tasks.to_numpy(dtype=np.float64), max(1, min(BINS, len(self.tasks))))
        return pd.DataFrame([part.mean(axis=0) for part in parts if len(part)], columns=self.tasks.columns)

    @property
    def start(self) -> pd.Series:
        """On the first task."""
        return _row(self.tasks, 0)

    @property
    def first(self) -> pd.Series:
        """In the first bin."""
        return _row(self.bins, 0)

    @property
    def middle(self) -> pd.Series:
        """In the bin with which the second half begins."""
        return _row(self.bins, len(self.bins) // 2)

    @property
    def last(self) -> pd.Series:
        """In the last bin."""
        return _row(self.bins, -1)

    @property
    def mean(self) -> pd.Series:
        """Over all tasks."""
        return self.tasks.mean(axis=0, skipna=False)

    @property
    def highest(self) -> pd.Series:
        """In the bin that is highest on average over runs."""
        return _row(self.bins, self.peak_bin)

    @property
    def peak(self) -> pd.Series:
        """In the best bin before the last, chosen for each run by other runs."""
        return windows.peak(self.bins.iloc[:-1])

    @property
    def peak_bin(self) -> int:
        """The number of the bin with the best mean over runs."""
        return int(self.bins.mean(axis=1).fillna(-math.inf).argmax()) if len(self.bins) else 0

    @property
    def rise(self) -> pd.Series:
        """From the first task to the best bin after the first."""
        return windows.peak(self.bins.iloc[1:]) - self.start

    @property
    def drop(self) -> pd.Series:
        """From the peak to the last bin; below zero where accuracy still rises."""
        return self.peak - self.last

    @property
    def growth(self) -> pd.Series:
        """From the first bin to the last."""
        return self.last - self.first

    @property
    def late_growth(self) -> pd.Series:
        """From the middle to the last bin."""
        return self.last - self.middle

    def slope(self, start_bin: int = 0) -> pd.Series:
        """Of a straight line through the bins from one on, for each bin."""
        kept = self.bins.iloc[start_bin:]
        if len(kept) < 2:
            return pd.Series(dtype=np.float64)
        x = np.arange(len(kept)) - (len(kept) - 1) / 2
        return kept.mul(x, axis=0).sum(axis=0, skipna=False) / float(np.square(x).sum())

    @property
    def fall_speed(self) -> pd.Series:
        """What is lost with each bin from the best one on, or from the middle on where the best comes later."""
        return -self.slope(min(self.peak_bin, len(self.bins) // 2))


def _row(table: pd.DataFrame, number: int) -> pd.Series:
    return table.iloc[number] if len(table) else pd.Series(dtype=np.float64)


def trend(frame: pd.DataFrame, metric: str, **details: object) -> Trend:
    """The trend of the setting with these details; runs that are not as far as the others are left out.

    Raises:
        ValueError: several settings have them.
    """
    rows = select(frame, metric, **details)
    if rows.empty:
        return Trend(pd.DataFrame())
    if rows["setting"].nunique() > 1:
        raise ValueError(
            f"trend takes one setting; {details} fits {sorted(rows['setting'].unique())}. Name what tells them apart."
        )
    counts = rows.groupby("seed").size()
    rows = rows[rows["seed"].isin(counts.index[counts == counts.max()])]
    return Trend(rows.set_index(["task", "seed"])["value"].unstack().sort_index())


def is_above(first: pd.Series, second: pd.Series, what: str) -> Verdict:
    """Whether first is above second, in pairs."""
    return above(paired(first, second), what=what)


def is_positive(values: pd.Series, what: str) -> Verdict:
    """Whether values are above zero on average."""
    return above(estimate(values), what=what)


def is_negative(values: pd.Series, what: str) -> Verdict:
    """Whether values are below zero on average."""
    return below(estimate(values), what=what)


def is_small_share(part: pd.Series, whole: pd.Series, share: float, what: str) -> Verdict:
    """Whether part is below a share of whole, in pairs; unanswered while whole itself may be zero or less."""
    verdict = below(paired(part, share * whole), what=f"{what}, less {share:g} of {estimate(whole)}")
    if above(estimate(whole)).outcome is Outcome.HOLDS:
        return verdict
    evidence = f"{what}: {estimate(part)}, but what it is compared with: {estimate(whole)}"
    return Verdict(Outcome.INCONCLUSIVE, evidence, verdict.coverage)


def differs(difference: Estimate, tolerance: float, what: str) -> Verdict:
    """Whether a difference is beyond a tolerance to either side; fails if its interval lies within."""
    evidence = f"{what}: {difference} against +-{tolerance:.3g}"
    if not difference.runs:
        return Verdict(Outcome.INCONCLUSIVE, f"{what}: not in these results", Coverage.NOTHING)
    if difference.runs < FEWEST_RUNS:
        return Verdict(Outcome.INCONCLUSIVE, evidence, Coverage.PART)
    if math.isnan(difference.mean):
        return Verdict(Outcome.INCONCLUSIVE, evidence)
    if difference.low > tolerance or difference.high < -tolerance:
        return Verdict(Outcome.HOLDS, evidence)
    inside = -tolerance <= difference.low and difference.high <= tolerance
    return Verdict(Outcome.FAILS if inside else Outcome.INCONCLUSIVE, evidence)


def agrees(difference: Estimate, tolerance: float, what: str) -> Verdict:
    """Whether a difference is within a tolerance of zero: `differs` turned round."""
    turned = {Outcome.HOLDS: Outcome.FAILS, Outcome.FAILS: Outcome.HOLDS, Outcome.INCONCLUSIVE: Outcome.INCONCLUSIVE}
    verdict = differs(difference, tolerance, what)
    return replace(verdict, outcome=turned[verdict.outcome])


def for_each(values: Sequence[object], verdict_of: Callable[..., Verdict]) -> Verdict:
    """Holds if it holds for each value."""
    return all_of([verdict_of(value) for value in values])


def draw_over_tasks(
    frame: pd.DataFrame,
    metric: str,
    name_of: Callable[[pd.Series], str],
    order: Sequence[Setting],
    title: str = "",
    group: str = "",
    examples_of: Callable[[pd.Series], float] | None = None,
    dashed: str = "",
) -> Chart:
    """A panel with one line for each setting: mean over runs, band of one standard error.

    Args:
        frame: results; settings without this metric are left out.
        metric: what to draw.
        name_of: from a row of a setting to what the legend says.
        order: the sweep's settings; lines are drawn in their order.
        title, group: as of `Chart`; the metric's own title if empty.
        examples_of: from a row to its examples a task, to draw over millions of examples instead of tasks.
        dashed: the method whose line is dashed, as a reference.
    """
    rows = frame[frame["metric"] == metric]
    labels = [setting.label for setting in order]
    place = {label: number for number, label in enumerate([*labels, *sorted(set(rows["setting"]) - set(labels))])}
    factor = 100.0 if metric in PERCENT else 1.0
    series, runs, bins = [], [], []
    diverged = bool(rows["value"].isna().any())
    for _, mine in sorted(rows.groupby("setting", sort=False), key=lambda part: place[str(part[0])]):
        row = mine.iloc[0]
        points = mine["task"].nunique()
        bin_tasks = math.ceil(points / MOST_POINTS)
        scale = examples_of(row) / 1e6 if examples_of else 1.0
        drawn = mine.assign(value=mine["value"] * factor)
        series.append(curve(drawn, name_of(row), bin_tasks, scale, dashed=row["method"] == dashed))
        runs.append(mine["seed"].nunique())
        bins.append(bin_tasks)
    return Chart(
        title=title or TITLES[metric],
        x_label="Examples (millions)" if examples_of else "Task",
        y_label=LABELS[metric],
        series=tuple(series),
        caption=_caption(runs, bins, diverged),
        group=group,
    )


def _caption(runs: list[int], bins: list[int], diverged: bool) -> str:
    if not runs:
        return "No results yet."
    binned = "each point is one task" if max(bins) == 1 else f"each point is the mean of {_span(bins)} tasks"
    broken = " A line ends where a run diverged." if diverged else ""
    if max(runs) == 1:
        return f"One run; {binned}.{broken}"
    return f"Mean over {_span(runs)} runs, band of one standard error; {binned}.{broken}"


def _span(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def draw_correlates(
    frame: pd.DataFrame, name_of: Callable[[pd.Series], str], order: Sequence[Setting], group: str
) -> list[Chart]:
    """The three correlates as small multiples."""
    return [draw_over_tasks(frame, metric, name_of, order, group=group) for metric in LABELS if metric != "accuracy"]


def short(number: float) -> str:
    """A number as legends show it.

    Example:
        >>> short(0.0001), short(0.003), short(10000)
        ('1e-4', '0.003', '10,000')
    """
    if number >= 1000:
        return f"{number:,.0f}"
    if 0 < number < 0.001:
        mantissa, exponent = f"{number:e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{number:g}"
