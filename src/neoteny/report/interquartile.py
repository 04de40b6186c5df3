"""Interquartile means with stratified bootstrap intervals: what a few runs of a noisy agent are summed up with.

Definitions as in Agarwal et al. (2021, "Deep reinforcement learning at the edge of the statistical precipice"): the
mean of the middle half of all scores, a score for each run and task; and an interval from resamples in which the runs
of every task are drawn again, with replacement, independently of those of other tasks. Scores are not normalised: the
tasks of one problem share their unit. From rows of the frame (`statistics`) to estimates and lines for charts.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from neoteny.report.chart import Series
from neoteny.report.statistics import Estimate, check_one

RESAMPLES = 5000
"""Of the bootstrap: the ends of its 95% interval are then good to about a fiftieth of its width."""
CUT = 0.25
"""Share of the scores left out at either end."""
_CHUNK_SCORES = 2**22


def interquartile_mean(scores: ArrayLike, level: float = 0.95) -> Estimate:
    """The interquartile mean of scores (runs, tasks), with the percentile interval of a stratified bootstrap.

    The draws are the same every time. A score that is not finite makes it nan: a diverged run is not left out, though
    its share might be among those cut off. `spread` is the standard deviation over resamples.

    Example:
        >>> found = interquartile_mean([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 99.0]])
        >>> found.mean  # of 2, 3, 4 and 5
        3.5
    """
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2:
        raise ValueError(f"interquartile_mean takes scores (runs, tasks); got the shape {table.shape}.")
    if not 0.0 < level < 1.0:
        raise ValueError(f"interquartile_mean: level must be between 0 and 1, for example 0.95; got {level!r}.")
    runs, tasks = table.shape
    if not table.size or not np.isfinite(table).all():
        return Estimate(math.nan, math.nan, math.nan, runs if tasks else 0)
    mean = float(trim(table.reshape(1, -1))[0])
    if runs < 2:
        return Estimate(mean, -math.inf, math.inf, runs)
    resampled = _resample(table)
    low, high = np.quantile(resampled, [0.5 - level / 2, 0.5 + level / 2])
    return Estimate(mean, float(low), float(high), runs, float(resampled.std(ddof=1)))


def trim(scores: np.ndarray) -> np.ndarray:
    """The mean over the last axis without the lowest and the highest quarter, each rounded down to whole scores."""
    size = scores.shape[-1]
    cut = int(CUT * size)
    if cut:
        scores = np.partition(scores, (cut, size - cut - 1), axis=-1)[..., cut : size - cut]
    return scores.mean(axis=-1)


def tabulate(rows: pd.DataFrame) -> pd.DataFrame:
    """Scores as a table of seeds by tasks, from rows of one metric and one setting.

    A run that is not finished is left out; one that diverged is there, with nan.
    """
    if rows.empty:
        return pd.DataFrame()
    check_one(rows, "tabulate")
    kept = rows[rows["seed"].map(rows.groupby("seed").size()) == rows["task"].nunique()]
    return kept.set_index(["seed", "task"])["value"].unstack().sort_index()


def curve_of_tasks(
    rows: pd.DataFrame, name: str, summarise: Callable[[np.ndarray], Estimate] = interquartile_mean, **options: object
) -> Series:
    """A summary over the runs of every task, with its interval as the band; rows of one metric and one setting.

    Args:
        rows: what to draw; runs that are not finished are left out.
        name: what the legend says.
        summarise: from the scores (runs, 1) of one task to an estimate: `interquartile_mean`, or `estimate` for the
            mean with Student's t interval.
        options: `method` and `dashed` of the Series.
    """
    table = tabulate(rows)
    found = [summarise(table[[task]].to_numpy()) for task in table.columns]
    return Series(
        name,
        [float(task) + 1.0 for task in table.columns],
        [one.mean for one in found],
        [one.low for one in found],
        [one.high for one in found],
        **options,  # type: ignore[arg-type]
    )


def _resample(table: np.ndarray) -> np.ndarray:
    """The interquartile mean of every resample."""
    runs, tasks = table.shape
    generator = np.random.default_rng(0)
    many = max(1, _CHUNK_SCORES // table.size)
    parts = []
    for start in range(0, RESAMPLES, many):
        count = min(many, RESAMPLES - start)
        drawn = generator.integers(runs, size=(count, runs, tasks))
        parts.append(trim(table[drawn, np.arange(tasks)].reshape(count, -1)))
    return np.concatenate(parts)
