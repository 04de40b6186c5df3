"""Tables of numbers: performance of every setting at its beginning, its end and over all, and against a baseline.

From the frame (`statistics`) to strings, shown by the page and, through `to_text`, by the terminal.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from neoteny.report.interquartile import interquartile_mean, tabulate
from neoteny.report.statistics import Estimate, estimate, paired, per_run
from neoteny.suite.sweep import COLUMNS
from neoteny.text import render, shorten_names

CORRELATES = {
    "dead_units": ("dead units at the end (%)", 100.0),
    "saturated_units": ("saturated units at the end (%)", 100.0),
    "linearised_units": ("linearised units at the end (%)", 100.0),
    "duplicate_units": ("duplicate units at the end (%)", 100.0),
    "effective_rank": ("effective rank at the end", 1.0),
    "weight_magnitude": ("mean |w| at the end", 1.0),
    "probe_excess": ("probe loss above a fresh network's at the end (%)", 1.0),
}
"""Measures that a performance table shows where the results have them, with their headings and factors."""
BASELINES = ("BP", "PPO")
"""The methods that others improve on; a table compares with the first that the results have."""
MIDDLE = (
    "The interquartile mean is that of the middle half of all scores, one per run and task; its interval is from a "
    "stratified bootstrap, in which the runs of each task are drawn again."
)


@dataclass(frozen=True)
class Table:
    """Rows of text under a header; the first column names the row."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(
                    f"Table {self.title!r}: every row needs {len(self.header)} cells, as many as the header; got "
                    f"{len(row)}: {list(row)}."
                )


@dataclass(frozen=True)
class _Setting:
    """What a row needs to know of a setting: its details, and its means for each run at both ends and over all."""

    name: str
    method: str
    details: dict[str, object]
    first: pd.Series
    last: pd.Series
    whole: pd.Series
    middle: Estimate | None
    correlates: dict[str, pd.Series]
    diverged: int


def performance_table(frame: pd.DataFrame, metric: str, higher_is_better: bool, baseline: str = "") -> Table:
    """Performance of every setting with 95% intervals over runs (Student's t).

    The first and the last tasks are the first and the last tenth, at least one. The difference to the baseline is at
    the end, paired: over the seeds that both have, which saw the same stream. Against which setting of the baseline:
    one that has the same words (activation, optimizer) in all details that both have; of those, the one with most
    numbers (step size, width) in common; of those, the best by its mean over all tasks. The caption names those that
    differ in a number.

    Returns come with their interquartile mean (`interquartile`), too: single runs of agents are far from the others.

    Args:
        frame: the results.
        metric: of performance; shares ("accuracy") are shown in per cent.
        higher_is_better: whether more of it is better.
        baseline: the method against which the others are compared; if empty, the first of `BASELINES` that is there.
    """
    factor = 100.0 if metric == "accuracy" else 1.0
    settings = _gather(frame, metric)
    present = {setting.method for setting in settings}
    baseline = baseline or next((name for name in BASELINES if name in present), BASELINES[0])
    rivals = [setting for setting in settings if setting.method == baseline]
    correlates = [name for name in CORRELATES if any(name in setting.correlates for setting in settings)]
    diverged = any(setting.diverged for setting in settings)
    middles = any(setting.middle for setting in settings)
    header = ["setting", "runs", "first tasks", "last tasks", "all tasks"]
    header += ["interquartile mean"] if middles else []
    header += [f"last tasks against {baseline}"] if rivals else []
    header += [CORRELATES[name][0] for name in correlates]
    header += ["diverged runs"] if diverged else []
    rows, unlike = [], []
    for setting in settings:
        row = [setting.name, str(len(setting.whole))]
        row += [show(estimate(values), factor) for values in (setting.first, setting.last, setting.whole)]
        row += [show(setting.middle, factor)] if setting.middle else []
        if rivals:
            rival = None if setting.method == baseline else _choose_rival(setting, rivals, higher_is_better)
            row.append("-" if rival is None else show(paired(setting.last, rival.last), factor, signed=True))
            if rival is not None and _differ(setting, rival):
                unlike.append(f"{setting.name} against {rival.name}")
        for name in correlates:
            measured = estimate(setting.correlates.get(name, ()))
            # A measure may have no number of a run that is well.
            unknown = "diverged" if setting.diverged else "not finite"
            row.append(show(measured, CORRELATES[name][1], unknown=unknown))
        rows.append([*row, str(setting.diverged)] if diverged else row)
    title = f"{metric.capitalize()} of every setting" + (" (%)" if factor != 1 else "")
    caption = _write_caption(bool(rivals), baseline, higher_is_better, unlike, diverged)
    return Table(title, header, rows, f"{caption} {MIDDLE}" if middles else caption)


def show(value: Estimate, factor: float = 1.0, signed: bool = False, unknown: str = "diverged") -> str:
    """An estimate as a cell, its digits as many as its interval supports; `unknown` where it is nan.

    Example:
        >>> show(Estimate(0.95312, 0.9511, 0.9552, 30), factor=100)
        '95.31 [95.11, 95.52]'
        >>> show(Estimate(0.0123, -0.004, 0.0286, 5), signed=True)
        '+0.012 [-0.004, +0.029]'
    """
    if value.runs == 0:
        return "-"
    if math.isnan(value.mean):
        return unknown
    mean, low, high = (factor * one for one in (value.mean, value.low, value.high))
    width = high - low
    if not math.isfinite(width):
        return f"{mean:{'+' if signed else ''}.4g}"
    # Two digits of the interval's half width; a width of zero shows four of the mean.
    scale = width / 2 if width > 0 else abs(mean) / 100 or 1.0
    digits = max(0, min(8, 1 - math.floor(math.log10(scale)))) if scale > 0 else 2
    style = f"{'+' if signed else ''}.{digits}f" if abs(mean) < 1e6 else f"{'+' if signed else ''}.4g"
    return f"{mean:{style}} [{low:{style}}, {high:{style}}]"


def to_text(table: Table, width: int = 120) -> str:
    """A table for the terminal. Columns that do not fit continue below, under the rows' names again."""
    names = shorten_names([row[0] for row in table.rows])
    rows = [[name, *row[1:]] for name, row in zip(names, table.rows, strict=True)]
    widths = [max(len(row[i]) for row in [table.header, *rows]) for i in range(len(table.header))]
    blocks: list[list[int]] = [[]]
    used = widths[0]
    for i in range(1, len(widths)):
        if blocks[-1] and used + 2 + widths[i] > width:
            blocks.append([])
            used = widths[0]
        blocks[-1].append(i)
        used += 2 + widths[i]
    texts = [
        render([table.header[i] for i in (0, *block)], [[row[i] for i in (0, *block)] for row in rows])
        for block in blocks
    ]
    caption = ["\n".join(textwrap.wrap(table.caption, width))] if table.caption else []
    return "\n\n".join([table.title, *texts, *caption])


def _gather(frame: pd.DataFrame, metric: str) -> list[_Setting]:
    names = [name for name in frame.columns if name not in COLUMNS]
    settings = []
    for name, part in frame[frame["metric"].isin([metric, *CORRELATES])].groupby("setting", sort=False, observed=True):
        rows = {str(measured): one for measured, one in part.groupby("metric", observed=True)}
        if metric not in rows:
            continue
        head = part.iloc[0]
        whole = per_run(rows[metric])
        settings.append(
            _Setting(
                name=str(name),
                method=str(head["method"]),
                details={key: head[key] for key in names if not pd.isna(head[key])},
                first=per_run(rows[metric], 0, _tenth(rows[metric])),
                last=_end(rows[metric]),
                whole=whole,
                middle=interquartile_mean(tabulate(rows[metric]).to_numpy()) if metric == "return" else None,
                correlates={measured: _end(one) for measured, one in rows.items() if measured in CORRELATES},
                diverged=int((~np.isfinite(whole)).sum()),
            )
        )
    return settings


def _tenth(rows: pd.DataFrame) -> int:
    return max(1, rows["task"].nunique() // 10)


def _end(rows: pd.DataFrame) -> pd.Series:
    return per_run(rows, -_tenth(rows), None)


def _choose_rival(setting: _Setting, rivals: Sequence[_Setting], higher_is_better: bool) -> _Setting | None:
    """The setting of the baseline to compare with; the rule is in `performance_table`."""
    ranked = []
    for rival in rivals:
        shared = [key for key in setting.details if key in rival.details]
        words = [key for key in shared if isinstance(setting.details[key], str)]
        if any(setting.details[key] != rival.details[key] for key in words):
            continue
        common = sum(_same(setting.details[key], rival.details[key]) for key in shared if key not in words)
        mean = rival.whole.mean(skipna=False)
        quality = -math.inf if math.isnan(mean) else mean if higher_is_better else -mean
        ranked.append((common, quality, rival))
    return max(ranked, key=lambda one: one[:2])[2] if ranked else None


def _same(first: object, second: object) -> bool:
    if isinstance(first, str) or isinstance(second, str):
        return first == second
    return math.isclose(float(first), float(second), rel_tol=1e-9)  # type: ignore[arg-type]


def _differ(setting: _Setting, rival: _Setting) -> bool:
    shared = [key for key in setting.details if key in rival.details]
    return any(not _same(setting.details[key], rival.details[key]) for key in shared)


def _write_caption(compared: bool, baseline: str, higher_is_better: bool, unlike: Sequence[str], diverged: bool) -> str:
    parts = ["Means over runs with 95% intervals; first and last tasks are a tenth of all, at least one."]
    if compared:
        better = "above" if higher_is_better else "below"
        parts.append(
            f"Differences to {baseline} are paired over the runs of one seed, which saw the same stream; {better} "
            "zero is better."
        )
    if unlike:
        parts.append(f"Compared across different values of a detail: {'; '.join(unlike)}.")
    if not diverged:
        parts.append("No run diverged.")
    return " ".join(parts)
