"""Numbers behind figures and claims: means over runs with intervals, paired by the runs' common random numbers.

The frame has one row for each (run, task, metric): columns `run_id`, `method`, `setting` (method with what it varies),
`seed`, `task` (from 0), `metric`, `value`, `scale`, and one column for each detail of the settings (`step_size`,
`activation`, ...; missing where a setting does not have it). A run that diverged has nan from there on.

A nan always counts: a mean over a diverged run is nan. A row that is not there (a run that is not finished) does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from neoteny.report.chart import Series
from neoteny.text import say_count

RESAMPLES = 1000
"""Of a bootstrap: the ends of its 95% interval are then good to about a twentieth of its width."""


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
            return f"{self.mean:.4g} ({say_count(self.runs, 'run')})"
        if math.isnan(self.mean):
            return f"diverged ({self.runs} runs)"
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}] ({self.runs} runs)"

    def p_above(self, bound: float) -> float:
        """The p-value of being above a bound (one-sided, Student's t); 1 where nothing can be said."""
        from scipy.special import stdtr, stdtrit  # much quicker to import than scipy.stats, which calls them

        if self.runs < 2 or math.isnan(self.mean):
            return 1.0
        if math.isinf(bound):
            return 0.0 if bound < 0 else 1.0
        spread = self.spread
        if math.isnan(spread):
            spread = (self.high - self.low) / (2 * float(stdtrit(self.runs - 1, 0.975)))
        if spread == 0:
            return 0.0 if self.mean > bound else 1.0
        return float(stdtr(self.runs - 1, (bound - self.mean) / spread))

    def p_below(self, bound: float) -> float:
        """The p-value of being below a bound; as `p_above`."""
        return Estimate(-self.mean, -self.high, -self.low, self.runs, self.spread).p_above(-bound)


@dataclass(frozen=True)
class Share(Estimate):
    """A share of runs with its exact interval (Clopper and Pearson); `successes` of `runs` count."""

    successes: int = 0

    def p_above(self, bound: float) -> float:
        """The p-value of being above a bound (one-sided, binomial)."""
        from scipy.stats import binom

        if not 0 <= bound <= 1:
            return 0.0 if bound < 0 else 1.0
        return float(binom.sf(self.successes - 1, self.runs, bound)) if self.runs else 1.0

    def p_below(self, bound: float) -> float:
        """The p-value of being below a bound; as `p_above`."""
        from scipy.stats import binom

        if not 0 <= bound <= 1:
            return 0.0 if bound > 1 else 1.0
        return float(binom.cdf(self.successes, self.runs, bound)) if self.runs else 1.0


def estimate_share(counts: Sequence[bool] | np.ndarray | pd.Series, level: float = 0.95) -> Share:
    """The share of runs that count, with its exact interval.

    Example:
        >>> print(estimate_share([True] * 5))
        1 [0.4782, 1] (5 runs)
    """
    from scipy.stats import beta

    array = np.asarray(counts, dtype=bool)
    runs, successes = len(array), int(array.sum())
    if not runs:
        return Share(math.nan, math.nan, math.nan, 0)
    tail = (1 - level) / 2
    low = float(beta.ppf(tail, successes, runs - successes + 1)) if successes else 0.0
    high = float(beta.ppf(1 - tail, successes + 1, runs - successes)) if successes < runs else 1.0
    return Share(successes / runs, low, high, runs, successes=successes)


def estimate(values: Sequence[float] | np.ndarray | pd.Series, level: float = 0.95) -> Estimate:
    """Mean with Student's t interval. A value that is not finite makes the mean nan: a diverged run is not left out.

    Example:
        >>> print(estimate([1.0, 2.0, 3.0]))
        2 [-0.4841, 4.484] (3 runs)
    """
    from scipy.special import stdtrit

    array = np.asarray(values, dtype=np.float64)
    if len(array) == 0 or not np.isfinite(array).all():
        return Estimate(math.nan, math.nan, math.nan, len(array))
    mean = float(array.mean())
    if len(array) < 2:
        return Estimate(mean, -math.inf, math.inf, len(array))
    spread = float(array.std(ddof=1) / math.sqrt(len(array)))
    half = float(stdtrit(len(array) - 1, 0.5 + level / 2)) * spread
    return Estimate(mean, mean - half, mean + half, len(array), spread)


def paired(first: pd.Series, second: pd.Series) -> Estimate:
    """The mean of first - second over the seeds that both have (series indexed by seed)."""
    common = first.index.intersection(second.index)
    with np.errstate(invalid="ignore"):  # infinite minus infinite is nan, as it should be
        return estimate(first.loc[common].to_numpy() - second.loc[common].to_numpy())


def select(frame: pd.DataFrame, metric: str, **details: object) -> pd.DataFrame:
    """The rows of one metric whose columns have these values."""
    chosen = (frame["metric"] == metric).to_numpy(dtype=bool)
    for name, value in details.items():
        if name not in frame.columns:
            return frame.iloc[:0]
        column = frame[name]
        if isinstance(value, float):
            numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
            chosen = chosen & np.isclose(numbers, value, rtol=1e-9, atol=0.0)
        else:
            chosen = chosen & (column == value).to_numpy(dtype=bool)
    return frame[chosen]


def per_run(rows: pd.DataFrame, start: int | None = None, stop: int | None = None) -> pd.Series:
    """Mean over tasks start <= task < stop for each run, indexed by seed; nan for a run that diverged in them.

    `rows` must be of one metric and one setting. Negative numbers count from the last task, as in slices; where a
    metric was measured at some tasks only, numbers count those.
    """
    if rows.empty:
        return pd.Series(dtype=np.float64)
    check_one(rows, "per_run")
    seeds, values = rows["seed"].to_numpy(), rows["value"].to_numpy(dtype=np.float64)
    if (start, stop) != (None, None):
        tasks = np.sort(rows["task"].unique())
        kept = rows["task"].isin(tasks[start:stop]).to_numpy()
        seeds, values = seeds[kept], values[kept]
    codes, seeds = pd.factorize(seeds, sort=True)
    sums = np.bincount(codes, values, minlength=len(seeds))
    return pd.Series(sums / np.bincount(codes, minlength=len(seeds)), index=pd.Index(seeds, name="seed"))


def curve(
    rows: pd.DataFrame,
    name: str,
    bin_tasks: int = 1,
    x_scale: float = 1.0,
    band: str = "standard_error",
    **options: object,
) -> Series:
    """Mean over runs with a band, in bins of tasks.

    Incomplete bins are dropped (unless there is only one); so are runs that have not finished a bin. With one run the
    band is as wide as the line.

    Args:
        rows: one metric, one setting.
        name: what the legend says.
        bin_tasks: tasks per bin, by their numbers; a point stands at the end of the bin's last task.
        x_scale: x is that number of tasks times this (for example examples per task).
        band: "standard_error" (one to each side), or "bootstrap" (95% interval of the mean over runs drawn again
            with replacement, the same draws every time).
        options: `method` and `dashed` of the Series.
    """
    if band not in ("standard_error", "bootstrap"):
        raise ValueError(f'curve: band must be "standard_error" or "bootstrap"; got {band!r}.')
    if rows.empty:
        return Series(name, [], [], **options)  # type: ignore[arg-type]
    check_one(rows, "curve")
    ends, values = _bin(rows, bin_tasks)  # (bins,), (bins, runs); values masked where a run lacks the bin
    mean = values.mean(1)
    if band == "bootstrap":
        low, high = _bootstrap(values)
    else:
        count = values.count(1)
        squares = ((values - mean[:, None]) ** 2).sum(1)
        spread = np.where(count > 1, np.sqrt(squares / np.maximum(count - 1, 1) / np.maximum(count, 1)), 0.0)
        low, high = mean - spread, mean + spread
    x = ends * x_scale
    bounds = [np.ma.filled(one, np.nan).tolist() for one in (mean, low, high)]
    return Series(name, x.tolist(), *bounds, **options)  # type: ignore[arg-type]


def curve_over_values(name: str, points: Iterable[tuple[float, pd.DataFrame]], **options: object) -> Series:
    """Means over all tasks and runs at values of a hyperparameter, with bars of one standard error.

    Args:
        name: what the legend says.
        points: each value with its rows, of one metric and one setting.
        options: of the Series.
    """
    line = sorted(((x, estimate(per_run(rows))) for x, rows in points), key=lambda point: point[0])
    means = [value.mean for _, value in line]
    spreads = [value.spread if value.runs > 1 else 0.0 for _, value in line]
    low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
    high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
    return Series(name, [x for x, _ in line], means, low, high, **options)  # type: ignore[arg-type]


def level_under(series: Sequence[Series], name: str, rows: pd.DataFrame) -> list[Series]:
    """A dashed level, the mean of these rows, as wide as the other series; nothing without rows or other series."""
    if not len(rows) or not series:
        return []
    ends = [min(min(one.x) for one in series), max(max(one.x) for one in series)]
    return [Series(name, ends, [estimate(per_run(rows)).mean] * 2, method=name, dashed=True)]


def best_setting(frame: pd.DataFrame, metric: str, higher_is_better: bool) -> pd.DataFrame:
    """The rows (of every metric) of the setting with the best mean of one metric over all tasks and runs.

    Settings are ranked on the seeds and tasks that all of them have, because streams differ: the winner of a first
    round may have more runs than the others. All rows of the winner come back. Where settings have no task of a seed
    in common, each is ranked on what it has.

    A setting with a run that diverged loses against any that has none; among such settings the one with the largest
    share of values before divergence is taken. The first in alphabetical order wins a tie.
    """
    rows = frame[frame["metric"] == metric]
    if rows.empty:
        return frame.iloc[:0]
    codes, settings = pd.factorize(rows["setting"], sort=True)
    values = rows["value"].to_numpy(dtype=np.float64)
    shared = _in_all(rows, codes)
    if shared.any():
        codes, values = codes[shared], values[shared]
    counts = np.bincount(codes)
    means = np.bincount(codes, values) / counts
    whole = np.isfinite(means)
    if whole.any():
        score = np.where(whole, means if higher_is_better else -means, -math.inf)
    else:
        score = np.bincount(codes, np.isfinite(values)) / counts
    return frame[frame["setting"] == settings[int(score.argmax())]]


def _in_all(rows: pd.DataFrame, codes: np.ndarray) -> np.ndarray:
    """Which rows are of a (seed, task) that every setting has; `codes` number the settings of the rows."""
    seeds = pd.factorize(rows["seed"])[0]
    tasks, numbers = pd.factorize(rows["task"])
    cell = seeds * len(numbers) + tasks
    there = np.zeros((int(codes.max()) + 1, int(cell.max()) + 1), dtype=bool)
    there[codes, cell] = True
    return np.logical_and.reduce(there, axis=0)[cell]


def check_one(rows: pd.DataFrame, caller: str) -> None:
    """Refuse rows of several settings or metrics."""
    if any(_differ(rows[name]) for name in ("setting", "metric")):
        raise ValueError(
            f"{caller} takes rows of one setting and one metric; got settings "
            f"{sorted(rows['setting'].unique())} and metrics {sorted(rows['metric'].unique())}. Choose them with "
            "select(frame, metric, **details)."
        )


def _differ(values: pd.Series) -> bool:
    """Whether a column has two values; categories are compared by their numbers."""
    numbers = values.cat.codes if isinstance(values.dtype, pd.CategoricalDtype) else values
    return bool((numbers != numbers.iloc[0]).any())


def _bin(rows: pd.DataFrame, bin_tasks: int) -> tuple[np.ndarray, np.ma.MaskedArray]:
    """The number of tasks at the end of every bin, and the mean of every (bin, run)."""
    tasks = np.sort(rows["task"].unique())
    gap = int(np.diff(tasks).min()) if len(tasks) > 1 else 1
    # A measure taken at every n-th task stands for the tasks up to the next: the last bin may end with it.
    finished = int(tasks[-1] + gap) // bin_tasks
    if finished:
        tasks = tasks[tasks < finished * bin_tasks]
        numbers, bins = np.unique(tasks // bin_tasks, return_inverse=True)
        ends = (numbers + 1.0) * bin_tasks
    else:
        bins, ends = np.zeros(len(tasks), dtype=int), np.array([tasks[-1] + 1.0])
    place = np.searchsorted(tasks, rows["task"].to_numpy())
    kept = place < len(tasks)
    bin_of_row = bins[place[kept]]
    seeds, run_of_row = np.unique(rows["seed"].to_numpy()[kept], return_inverse=True)
    cell = bin_of_row * len(seeds) + run_of_row
    size = len(ends) * len(seeds)
    sums = np.bincount(cell, rows["value"].to_numpy(dtype=np.float64)[kept], minlength=size)
    counts = np.bincount(cell, minlength=size).reshape(len(ends), len(seeds))
    missing = counts < np.bincount(bins, minlength=len(ends))[:, None]
    means = sums.reshape(counts.shape) / np.maximum(counts, 1)
    return ends, np.ma.masked_array(means, missing)


def _bootstrap(values: np.ma.MaskedArray) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the 95% percentile interval of the mean over runs, for every bin."""
    runs = values.shape[1]
    draws = np.random.default_rng(0).multinomial(runs, np.full(runs, 1 / runs), size=RESAMPLES)  # (resamples, runs)
    there = (~np.ma.getmaskarray(values)).astype(np.float64).T  # (runs, bins)
    weight = draws @ there
    # A resample may have none of the runs of a bin that few have; it says nothing about it.
    weight[weight == 0] = np.nan
    means = draws @ values.filled(0.0).T / weight
    broken = np.isnan(values.filled(0.0)).any(1)
    low, high = np.nanquantile(np.where(broken, 0.0, means), [0.025, 0.975], axis=0)
    return np.where(broken, np.nan, low), np.where(broken, np.nan, high)
