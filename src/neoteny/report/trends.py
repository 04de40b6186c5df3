"""What claims compare: each run's performance early and late, at its peak, and over a method's settings.

Everything is a series indexed by seed, so that `statistics.paired` can compare what saw the same stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from neoteny.report.claim import FEWEST_RUNS, Outcome, Verdict, above, combine
from neoteny.report.statistics import Estimate, best_setting, paired, per_run, say_count

Line = tuple[str, pd.DataFrame, dict[str, Any]]
"""A line still to be drawn: its name, its rows, options of its `Series`."""
EARLY = (1 / 30, 1 / 6)
"""Which share of the tasks counts as early: after learning from nothing, before much can be lost."""
LATE = 1 / 6


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
    """First less second for the seeds that both have: a run that is not finished is left out, not taken as diverged."""
    common = first.index.intersection(second.index)
    return first.loc[common] - second.loc[common]


def finished(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the runs that have come to the last task; `rows` are of one setting and metric."""
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
    """Means over bins of tasks, one row a bin and one column a seed; a last incomplete bin is left out."""
    if rows.empty:
        return pd.DataFrame()
    table = rows.pivot_table(index="task", columns="seed", values="value", dropna=False, aggfunc="first").sort_index()
    whole = max(1, len(table) // bin_tasks) * bin_tasks
    table = table.iloc[:whole]
    return table.groupby(np.arange(len(table)) // bin_tasks).agg(lambda values: values.mean(skipna=False))


def peak(bins: pd.DataFrame) -> pd.Series:
    """Each run's value in the bin that is best for the other half of the runs (higher is better).

    The best of many bins looks better than it is where the same runs choose and are read. With one run left out at a
    time instead, two bins that are nearly equal are chosen between by the very run that is read, to its disadvantage.
    Leave out the bin that the peak is compared with: where it is the best itself, the difference would be exactly 0.
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


def best_of(frame: pd.DataFrame, metric: str, higher_is_better: bool) -> pd.DataFrame:
    """The rows of one metric of the best setting among these."""
    best = best_setting(frame, metric, higher_is_better)
    return best[best["metric"] == metric]


def compare(first: pd.DataFrame, second: pd.DataFrame) -> Estimate:
    """The paired difference of the means over all tasks; rows are of one setting and one metric each."""
    return paired(per_run(first), per_run(second))


def beats(first: pd.Series, second: pd.Series, what: str) -> Verdict:
    """Whether one accuracy is above another over the seeds that both have.

    A setting with a run that diverged loses against one that has none, as in `best_setting`.
    """
    common = first.index.intersection(second.index)
    broken = [not np.isfinite(series.loc[common]).all() for series in (first, second)]
    if len(common) >= FEWEST_RUNS and broken[0] != broken[1]:
        loser = "the second" if broken[1] else "the first"
        outcome = Outcome.HOLDS if broken[1] else Outcome.FAILS
        return Verdict(outcome, f"{what}: {loser} diverged in some of {len(common)} runs, the other in none")
    return above(paired(first, second), what=what)


def first_round(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the seeds that all settings have: without the further runs of a selection's winner."""
    counts = rows.groupby("seed")["setting"].nunique()
    common = counts.index[counts == rows["setting"].nunique()]
    return rows[rows["seed"].isin(common)] if len(common) else rows


def spread_over_settings(rows: pd.DataFrame) -> pd.Series:
    """For each seed that ran in all of them, the standard deviation over settings of the mean over tasks.

    It says how much the settings matter. A run that diverged makes its seed's nan.
    """
    means = {setting: per_run(one) for setting, one in rows.groupby("setting")}
    if len(means) < 2:
        return pd.Series(dtype=np.float64)
    return pd.concat(means, axis=1, join="inner").std(axis=1, ddof=1, skipna=False)


def most_of(verdicts: list[Verdict]) -> Verdict:
    """Holds if more than half hold, fails if so many fail that this cannot be."""
    outcomes = [verdict.outcome for verdict in verdicts]
    if outcomes and 2 * outcomes.count(Outcome.HOLDS) > len(outcomes):
        return combine(Outcome.HOLDS, verdicts)
    if outcomes and 2 * outcomes.count(Outcome.FAILS) >= len(outcomes):
        return combine(Outcome.FAILS, verdicts)
    return combine(Outcome.INCONCLUSIVE, verdicts)


def count_runs(frame: pd.DataFrame) -> str:
    """ "10 runs", or "3 to 10 runs" where settings differ."""
    counts = frame.groupby("setting")["seed"].nunique()
    if counts.empty:
        return "no runs"
    low, high = int(counts.min()), int(counts.max())
    return say_count(low, "run") if low == high else f"{low} to {high} runs"
