"""The figure of a problem of the field: baselines and the best methods over tasks, on the judging seeds."""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.field.recipes import BASELINES
from neoteny.report.chart import Chart
from neoteny.report.field import find_standings, read_scores, split_seeds
from neoteny.report.statistics import curve, select

SHOWN = 6
"""Methods beside the baselines."""
_POINTS = 30


def draw(frame: pd.DataFrame, metric: str, higher_is_better: bool) -> list[Chart]:
    """Performance over tasks of the baselines, dashed, and of the methods with the best mean ranks."""
    scores = read_scores(frame, metric)
    standings = find_standings(scores, (), higher_is_better)
    if not standings:
        return []
    _, judging = split_seeds(scores)
    best = [each for each in standings if each.method not in BASELINES][:SHOWN]
    shown = [*best, *(each for each in standings if each.method in BASELINES)]
    rows = frame[frame["seed"].isin(judging)]
    bin_tasks = max(1, (int(frame["task"].max()) + 1) // _POINTS)
    series = [
        curve(select(rows, metric, setting=each.setting), each.method, bin_tasks, dashed=each.method in BASELINES)
        for each in shown
    ]
    caption = (
        f"Mean over {len(judging)} judging seeds, band: one standard error; every method at the best of its settings, "
        f"chosen by other seeds. Shown are the baselines (dashed) and the {len(best)} methods of best mean rank."
    )
    return [Chart("Baselines and the best methods", "task", metric, tuple(series), caption)]
