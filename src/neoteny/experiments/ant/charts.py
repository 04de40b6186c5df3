"""Charts of Slippery Ant: returns over tasks and within them, what agents do, and what becomes of their networks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from neoteny.experiments.ant.settings import make_problem, points_per_task
from neoteny.experiments.scales import scale_of
from neoteny.report.chart import Chart, Series
from neoteny.report.interquartile import curve_of_tasks, interquartile_mean, tabulate
from neoteny.report.statistics import curve, estimate, select
from neoteny.report.tables import show
from neoteny.report.trends import Line, count_runs

CHANGES = "change of friction"
NETWORKS = {
    "dead_units": ("Dead units", "dead units (%)", 100.0),
    "saturated_units": ("Saturated units", "saturated units (%)", 100.0),
    "effective_rank": ("Effective rank", "effective rank", 1.0),
    "weight_magnitude": ("Weight magnitude", "mean absolute weight", 1.0),
    "policy_std": ("Noise of the policy", "standard deviation", 1.0),
    "explained_variance": ("What the value explains", "explained variance", 1.0),
}
BEHAVIOUR = {
    "reward_per_step": ("Reward per step", "reward per step", 1.0),
    "episode_length": ("Length of episodes", "steps", 1.0),
}
"""Metrics with their titles, axes and factors."""


def draw_trends(frame: pd.DataFrame, lines: Sequence[Line]) -> list[Chart]:
    """The saw-tooth, the return of each task, what else the agents do, and what becomes of their networks; the rows of
    a line are all metrics of one setting, and lines without rows are left out."""
    charts = [_draw_sawtooth(frame, lines), *_draw_returns(lines)]
    caption = "Mean over a task and {runs}; band: one standard error."
    charts += [_draw_tasks(lines, metric, caption, "What the agents do", *BEHAVIOUR[metric]) for metric in BEHAVIOUR]
    caption = (
        "Units, rank and weights of both networks together at the end of each task, the others as means over its "
        "iterations; mean over {runs}, band: one standard error."
    )
    charts += [
        _draw_tasks(lines, metric, caption, "What becomes of the networks", *NETWORKS[metric]) for metric in NETWORKS
    ]
    return [chart for chart in charts if chart]


def _pick(lines: Sequence[Line], metric: str) -> list[Line]:
    picked = [(name, select(rows, metric) if len(rows) else rows, options) for name, rows, options in lines]
    return [line for line in picked if len(line[1])]


def _count(lines: Sequence[Line]) -> str:
    return count_runs(pd.concat([rows for _, rows, _ in lines]))


def _draw_sawtooth(frame: pd.DataFrame, lines: Sequence[Line]) -> Chart | None:
    shown = _pick(lines, "return.curve")
    if not shown:
        return None
    scale = scale_of(frame)
    period = make_problem(scale).period_steps / 1e6
    step = period / points_per_task(scale)
    series = [curve(rows, name, x_scale=step, **options) for name, rows, options in shown]
    caption = (
        f"Mean return of the episodes that end within {1e6 * step:,.0f} steps, over {_count(shown)}; band: one "
        f"standard error. The friction changes after every {1e6 * period:,.0f} steps, where the comb below has its "
        "teeth."
    )
    changes = _mark_changes(series, period)
    drawn = (*series, *([changes] if changes else ()))
    return Chart("Return over time", "environment steps (millions)", "return", drawn, caption)


def _mark_changes(series: Sequence[Series], period: float) -> Series | None:
    """A tooth at every change, on a line below the others."""
    values = np.array([value for one in series for band in (one.y, one.low, one.high) for value in band])
    last = max(max(one.x) for one in series)
    changes = period * np.arange(1, round(last / period))
    if not np.isfinite(values).any() or not len(changes):
        return None
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    bottom, top = low - 0.1 * (high - low), low - 0.03 * (high - low)
    x = [0.0, *np.repeat(changes, 3).tolist(), last]
    y = [bottom, *np.tile([bottom, top, bottom], len(changes)).tolist(), bottom]
    return Series(CHANGES, x, y, dashed=True)


def _draw_returns(lines: Sequence[Line]) -> list[Chart]:
    """The return of every task: means with Student's t intervals beside interquartile means with bootstrap ones."""
    shown = _pick(lines, "return")
    if not shown:
        return []
    runs, group = _count(shown), "Return of each task"
    means = tuple(curve_of_tasks(rows, name, estimate, **options) for name, rows, options in shown)
    caption = f"Mean return of the episodes that end in a task, over {runs}; band: 95% interval (Student's t)."
    mean = Chart("Mean", "task", "return", means, caption, group)
    middles = tuple(curve_of_tasks(rows, name, **options) for name, rows, options in shown)
    whole = "; ".join(f"{name} {show(interquartile_mean(tabulate(rows).to_numpy()))}" for name, rows, _ in shown)
    band = "band: 95% interval of a stratified bootstrap"
    caption = f"Mean over the middle half of {runs}; {band}. Over all tasks: {whole}."
    return [mean, Chart("Interquartile mean", "task", "return", middles, caption, group)]


def _draw_tasks(
    lines: Sequence[Line], metric: str, caption: str, group: str, title: str, label: str, factor: float
) -> Chart | None:
    """One metric over tasks; `caption` has a place for the number of runs."""
    shown = _pick(lines, metric)
    if not shown:
        return None
    series = tuple(curve(rows.assign(value=factor * rows["value"]), name, **options) for name, rows, options in shown)
    return Chart(title, "task", label, series, caption.format(runs=_count(shown)), group)
