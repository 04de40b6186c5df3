"""Charts of the experiments on online permuted MNIST: metrics over tasks, one line per setting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pandas as pd

from neoteny.report.chart import Chart
from neoteny.report.statistics import curve
from neoteny.suite.sweep import Setting

MOST_POINTS = 200
METRICS = {
    "accuracy": ("Online accuracy of each task", "Online accuracy (%)", 100.0),
    "dead_units": ("Dead units", "Dead units (%)", 100.0),
    "weight_magnitude": ("Weight magnitude", "Mean absolute weight", 1.0),
    "effective_rank": ("Effective rank", "Effective rank", 1.0),
}
"""Each metric's title, axis and factor."""


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
    """A panel with one line per setting: mean over runs, band of one standard error.

    Args:
        frame: results; settings without this metric are left out.
        metric: what to draw.
        name_of: from a row of a setting to what the legend says.
        order: the sweep's settings; lines are drawn in their order.
        title, group: as of `Chart`; the metric's own title if empty.
        examples_of: from a row to its examples per task, to draw over millions of examples instead of tasks.
        dashed: the method whose line is dashed, as a reference.
    """
    rows = frame[frame["metric"] == metric]
    labels = [setting.label for setting in order]
    place = {label: number for number, label in enumerate([*labels, *sorted(set(rows["setting"]) - set(labels))])}
    usual, label, factor = METRICS[metric]
    series, runs, bins = [], [], []
    diverged = bool(rows["value"].isna().any())
    for _, mine in sorted(rows.groupby("setting", sort=False), key=lambda part: place[str(part[0])]):
        row = mine.iloc[0]
        bin_tasks = math.ceil(mine["task"].nunique() / MOST_POINTS)
        scale = examples_of(row) / 1e6 if examples_of else 1.0
        drawn = mine.assign(value=mine["value"] * factor)
        series.append(curve(drawn, name_of(row), bin_tasks, scale, dashed=row["method"] == dashed))
        runs.append(mine["seed"].nunique())
        bins.append(bin_tasks)
    x_label = "Examples (millions)" if examples_of else "Task"
    return Chart(title or usual, x_label, label, tuple(series), _caption(runs, bins, diverged), group)


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
    return [draw_over_tasks(frame, metric, name_of, order, group=group) for metric in METRICS if metric != "accuracy"]


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
