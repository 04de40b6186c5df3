"""What claims compare: each run's performance early and late, at its peak, over its tasks and over settings.

Everything is a series indexed by seed, so that `above` and `below` compare runs that saw the same stream.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from neoteny.report.interquartile import tabulate
from neoteny.report.statistics import best_setting, per_run, select
from neoteny.text import say_count

Line = tuple[str, pd.DataFrame, dict[str, Any]]
"""A line still to be drawn: its name, its rows, options of its `Series`."""
EARLY = (1 / 30, 1 / 6)
"""Which share of the tasks counts as early: after learning from nothing, before much can be lost."""
LATE = 1 / 6
THIRD, EDGE = 3, 10
"""Where the first task is unlike the others: early and late tasks are a third of them, an edge of a task a tenth."""
BINS = 20
"""Bins of a `Trend`, fewer where there are fewer tasks."""


def early_and_late(rows: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Each run's mean over the early tasks, and over the last ones; `rows` are of one setting and metric."""
    tasks = rows["task"].nunique()
    start = int(tasks * EARLY[0])
    stop = max(start + 1, int(tasks * EARLY[1]))
    return per_run(rows, start, stop), per_run(rows, -max(1, int(tasks * LATE)), None)


def rise(rows: pd.DataFrame) -> pd.Series:
    """Each run's late minus early mean."""
    early, late = early_and_late(rows)
    return subtract(late, early)


def subtract(first: pd.Series, second: pd.Series) -> pd.Series:
    """First less second for the seeds that both have: an unfinished run is left out and does not count as diverged."""
    common = first.index.intersection(second.index)
    return first.loc[common] - second.loc[common]


def finished(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the runs that reached the last task; `rows` are of one setting and metric."""
    if rows.empty:
        return rows
    return rows[rows["seed"].isin(rows.loc[rows["task"] == rows["task"].max(), "seed"])]


def average(series: Iterable[pd.Series]) -> pd.Series:
    """The mean of several series over the seeds that all of them have; nan where one of them is."""
    kept = list(series)
    if not kept:
        return pd.Series(dtype=np.float64)
    return pd.concat(kept, axis=1, join="inner").mean(axis=1, skipna=False)


def binned(rows: pd.DataFrame, bin_tasks: int) -> pd.DataFrame:
    """Means over bins of tasks, one row per bin and one column per seed; an incomplete last bin is left out."""
    if rows.empty:
        return pd.DataFrame()
    table = rows.pivot_table(index="task", columns="seed", values="value", dropna=False, aggfunc="first").sort_index()
    whole = max(1, len(table) // bin_tasks) * bin_tasks
    table = table.iloc[:whole]
    return table.groupby(np.arange(len(table)) // bin_tasks).agg(lambda values: values.mean(skipna=False))


def peak(bins: pd.DataFrame) -> pd.Series:
    """Each run's value in the bin that is best for the other half of the runs (higher is better).

    The best of many bins looks better than it is if the same runs choose it and are read. Leaving out one run at a time
    would let that run decide between nearly equal bins, which biases its own value down. Leave out the bin that the
    peak is compared with: if it is the best itself, the difference would be exactly 0.
    """
    values = bins.to_numpy(dtype=np.float64)
    half = np.arange(values.shape[1]) % 2
    peaks = np.full(values.shape[1], np.nan)
    for mine in (0, 1):
        others = values[:, half != mine]
        if len(values) and others.shape[1]:
            best = np.nan_to_num(others.mean(axis=1), nan=-math.inf).argmax()
            peaks[half == mine] = values[best, half == mine]
    return pd.Series(peaks, index=bins.columns, dtype=np.float64)


def fall(rows: pd.DataFrame, bin_tasks: int) -> pd.Series:
    """Each finished run's value in its best bin (`peak`, the last bin left out) less that over its last tasks."""
    rows = finished(rows)
    return subtract(peak(binned(rows, bin_tasks).iloc[:-1]), per_run(rows, -bin_tasks, None))


def window(rows: pd.DataFrame) -> int:
    """How many tasks count as early and as late: a third of those after the first, at least one."""
    return max(1, (rows["task"].nunique() - 1) // THIRD) if len(rows) else 1


def take_first(rows: pd.DataFrame) -> pd.Series:
    """Each run's value in its first task, which has the standard friction."""
    return per_run(finished(rows), 0, 1)


def take_early(rows: pd.DataFrame) -> pd.Series:
    """Each run's mean over the tasks that follow the first."""
    return per_run(finished(rows), 1, 1 + window(rows))


def take_late(rows: pd.DataFrame) -> pd.Series:
    """Each run's mean over its last tasks."""
    return per_run(finished(rows), -window(rows), None)


def find_loss(rows: pd.DataFrame) -> pd.Series:
    """Each run's early return less its late one; below zero for one that still improves.

    None where there are so few tasks that early ones are late ones, too.
    """
    if 1 + 2 * window(rows) > rows["task"].nunique():
        return pd.Series(dtype=np.float64)
    return subtract(take_early(rows), take_late(rows))


def find_drops(rows: pd.DataFrame, points: int) -> pd.Series:
    """Each run's mean drop at changes: its return just before a change less that just after it, over all changes.

    Args:
        rows: "return.curve" of one setting.
        points: points per task; a tenth of them, at least one, is just before or just after a change.
    """
    table = tabulate(rows)  # (seeds, points of all tasks)
    tasks = table.shape[1] // points if len(table) else 0
    if tasks < 2:
        return pd.Series(dtype=np.float64)
    values = table.to_numpy()[:, : tasks * points].reshape(-1, tasks, points)
    edge = max(1, points // EDGE)
    drops = values[:, :-1, -edge:].mean(-1) - values[:, 1:, :edge].mean(-1)
    return pd.Series(drops.mean(-1), index=table.index)


def best_of(frame: pd.DataFrame, metric: str, higher_is_better: bool, by_others: bool = False) -> pd.DataFrame:
    """The rows of one metric of the best setting among these.

    Args:
        frame: rows of several settings.
        metric: by which they are compared.
        higher_is_better: of the metric.
        by_others: each half of the runs at the setting that is best for the other half (`best_by_others`): what claims
            take, so that no run judges what it has chosen. Figures take one setting for all.
    """
    best = (best_by_others if by_others else best_setting)(frame, metric, higher_is_better)
    return best[best["metric"] == metric]


def best_by_others(
    frame: pd.DataFrame,
    metric: str,
    higher_is_better: bool,
    choose: Callable[[pd.DataFrame, str, bool], pd.DataFrame] = best_setting,
) -> pd.DataFrame:
    """The rows (of every metric) of each run at the setting that is best for the other half of the runs.

    The best of many settings looks better than it is if the same runs choose it and are read. Halves are every second
    seed. Where the halves disagree the rows have a common name of the setting, because they are one method's. With
    fewer than two seeds the best setting of all. `choose` says which setting is best for some of the runs.
    """
    seeds = np.sort(frame["seed"].unique())
    first = frame["seed"].isin(seeds[::2]).to_numpy()
    parts = []
    for own in (first, ~first):
        best = choose(frame[~own], metric, higher_is_better)
        parts += [frame[own & (frame["setting"] == best["setting"].iloc[0]).to_numpy()]] if len(best) else []
    if len(parts) < 2:
        return choose(frame, metric, higher_is_better)
    rows = pd.concat(parts)
    names = sorted(rows["setting"].unique())
    return rows.assign(setting=" or ".join(names)) if len(names) > 1 else rows


def first_round(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the seeds that all settings have: without the further runs of a selection's winner."""
    counts = rows.groupby("seed")["setting"].nunique()
    common = counts.index[counts == rows["setting"].nunique()]
    return rows[rows["seed"].isin(common)] if len(common) else rows


def spread_over_settings(rows: pd.DataFrame) -> pd.Series:
    """For each seed that ran in all of them, the standard deviation over settings of the mean over tasks.

    It says how much the settings matter; nan for a seed with a diverged run.
    """
    means = {setting: per_run(one) for setting, one in rows.groupby("setting")}
    if len(means) < 2:
        return pd.Series(dtype=np.float64)
    return pd.concat(means, axis=1, join="inner").std(axis=1, ddof=1, skipna=False)


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
        return peak(self.bins.iloc[:-1])

    @property
    def peak_bin(self) -> int:
        """The number of the bin with the best mean over runs."""
        return int(self.bins.mean(axis=1).fillna(-math.inf).argmax()) if len(self.bins) else 0

    @property
    def rise(self) -> pd.Series:
        """From the first task to the best bin after the first."""
        return peak(self.bins.iloc[1:]) - self.start

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
    """The trend of the setting with these details; runs with fewer tasks than the others are left out.

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


def count_runs(frame: pd.DataFrame) -> str:
    """ "10 runs", or "3 to 10 runs" where settings differ."""
    counts = frame.groupby("setting")["seed"].nunique()
    if counts.empty:
        return "no runs"
    low, high = int(counts.min()), int(counts.max())
    return say_count(low, "run") if low == high else f"{low} to {high} runs"
