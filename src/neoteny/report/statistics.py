"""Numbers behind figures and claims: means over runs with intervals, paired by the runs' common random numbers.

The frame has one row for each (run, task, metric): columns `run_id`, `method`, `setting` (method with what it varies),
`seed`, `task` (from 0), `metric`, `value`, `scale`, and one column for each detail of the settings (`step_size`,
`activation`, ...; missing where a setting does not have it). A run that diverged has nan from there on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from neoteny.report.chart import Series


@dataclass(frozen=True)
class Estimate:
    """A mean over runs with its interval; `spread` is the standard error."""

    mean: float
    low: float
    high: float
    runs: int
    spread: float = math.nan

    def __str__(self) -> str:
        if self.runs < 2:
            return f"{self.mean:.4g} ({self.runs} run{'s' if self.runs != 1 else ''})"
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}] ({self.runs} runs)"


def estimate(values: Sequence[float] | np.ndarray | pd.Series, level: float = 0.95) -> Estimate:
    """Mean with Student's t interval. A value that is not finite makes the mean nan: a diverged run is not left out.

    Example:
        >>> print(estimate([1.0, 2.0, 3.0]))
        2 [-0.4841, 4.484] (3 runs)
    """
    from scipy.stats import t

    array = np.asarray(values, dtype=np.float64)
    if len(array) == 0 or not np.isfinite(array).all():
        return Estimate(math.nan, math.nan, math.nan, len(array))
    mean = float(array.mean())
    if len(array) < 2:
        return Estimate(mean, -math.inf, math.inf, len(array))
    spread = float(array.std(ddof=1) / math.sqrt(len(array)))
    half = float(t.ppf(0.5 + level / 2, len(array) - 1)) * spread
    return Estimate(mean, mean - half, mean + half, len(array), spread)


def paired(first: pd.Series, second: pd.Series) -> Estimate:
    """The mean of first - second over the seeds that both have (series indexed by seed)."""
    common = first.index.intersection(second.index)
    return estimate(first.loc[common].to_numpy() - second.loc[common].to_numpy())


def select(frame: pd.DataFrame, metric: str, **details: object) -> pd.DataFrame:
    """The rows of one metric whose columns have these values."""
    chosen = frame["metric"] == metric
    for name, value in details.items():
        if name not in frame.columns:
            return frame.iloc[:0]
        column = frame[name]
        if isinstance(value, float):
            chosen &= np.isclose(pd.to_numeric(column, errors="coerce"), value, rtol=1e-9, atol=0.0)
        else:
            chosen &= column == value
    return frame[chosen]


def per_run(rows: pd.DataFrame, start: int | None = None, stop: int | None = None) -> pd.Series:
    """Mean over tasks start <= task < stop for each run, indexed by seed; nan for a run that diverged in them.

    `rows` must be of one metric and one setting. Negative numbers count from the last task, as in slices.
    """
    if rows.empty:
        return pd.Series(dtype=np.float64)
    if rows["setting"].nunique() > 1 or rows["metric"].nunique() > 1:
        raise ValueError(
            "per_run takes rows of one setting and one metric; got settings "
            f"{sorted(rows['setting'].unique())} and metrics {sorted(rows['metric'].unique())}."
        )
    tasks = np.sort(rows["task"].unique())
    kept = rows[rows["task"].isin(tasks[start:stop])]
    return kept.groupby("seed")["value"].agg(lambda values: values.mean(skipna=False))


def curve(rows: pd.DataFrame, name: str, bin_tasks: int = 1, x_scale: float = 1.0, **options: object) -> Series:
    """Mean over runs with a band of one standard error, in bins of tasks (a last incomplete bin is left out).

    Args:
        rows: one metric, one setting.
        name: what the legend says.
        bin_tasks: tasks a bin; a point stands at the number of the bin's last task.
        x_scale: x is the task number times this (for example examples a task).
        options: `method` and `dashed` of the Series.
    """
    table = rows.pivot_table(index="task", columns="seed", values="value", dropna=False, aggfunc="first").sort_index()
    if bin_tasks > 1:
        whole = len(table) // bin_tasks * bin_tasks
        cut = table.iloc[:whole] if whole else table
        bins = np.arange(len(cut)) // bin_tasks
        ends = [int(max(tasks)) for _, tasks in cut.index.to_series().groupby(bins)]
        table = cut.groupby(bins).agg(lambda values: values.mean(skipna=False))
        table.index = pd.Index(ends)
    values = table.to_numpy(dtype=np.float64)
    mean = values.mean(1) if values.size else np.zeros(0)
    spread = values.std(1, ddof=1) / math.sqrt(values.shape[1]) if values.shape[1] > 1 else np.zeros(len(mean))
    x = (table.index.to_numpy(dtype=np.float64) + 1) * x_scale
    return Series(name, x.tolist(), mean.tolist(), (mean - spread).tolist(), (mean + spread).tolist(), **options)  # type: ignore[arg-type]


def best_setting(frame: pd.DataFrame, metric: str, higher_is_better: bool) -> pd.DataFrame:
    """The rows (of every metric) of the setting with the best mean of one metric over all tasks and runs.

    A setting with a run that diverged loses against any that has none.
    """
    means = frame[frame["metric"] == metric].groupby("setting")["value"].agg(lambda values: values.mean(skipna=False))
    if means.empty:
        return frame.iloc[:0]
    worst = -math.inf if higher_is_better else math.inf
    means = means.fillna(worst)
    return frame[frame["setting"] == (means.idxmax() if higher_is_better else means.idxmin())]
