"""Figures of docs/field.md: the map of methods by problems, and one problem's gains with their intervals."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from neoteny.experiments.field.recipes import BASELINES
from neoteny.publish.field_table import FieldTable
from neoteny.report.statistics import Estimate

_INK, _SOFT, _GRID = "#1a1e26", "#5a6372", "#e6e9ee"
_BETTER, _WORSE, _OPEN = "#1f6fb4", "#c2502e", "#8b94a3"


def order_methods(tables: Sequence[FieldTable]) -> list[str]:
    """All methods, the best mean over problems of the relative rank first; behind them those that lack a problem."""
    found: dict[str, list[float]] = {}
    for table in tables:
        for standing in table.standings:
            found.setdefault(standing.method, []).append(relative_rank(table, standing.rank.mean))

    def key(method: str) -> tuple[int, float, str]:
        return -len(found[method]), float(np.mean(found[method])), method

    return sorted(found, key=key)


def relative_rank(table: FieldTable, rank: float) -> float:
    """A mean rank as a number from 0, the best, to 1: problems differ in how many methods run on them."""
    return (rank - 1) / max(1, len(table.standings) - 1)


def draw_map(tables: Sequence[FieldTable]) -> Figure:
    """Methods by problems: the colour is the mean rank, the number the performance."""
    methods = order_methods(tables)
    ranks = np.full((len(methods), len(tables)), math.nan)
    texts: dict[tuple[int, int], str] = {}
    for column, table in enumerate(tables):
        for standing in table.standings:
            row = methods.index(standing.method)
            ranks[row, column] = relative_rank(table, standing.rank.mean)
            sign = "*" if standing.certain.get(table.base) else ""
            texts[row, column] = "diverged" if math.isnan(standing.value.mean) else f"{standing.value.mean:.3f}{sign}"
    figure = Figure(figsize=(3.2 + 1.25 * len(tables), 1.9 + 0.235 * len(methods)), layout="constrained")
    panel = figure.subplots()
    image = panel.imshow(ranks, aspect="auto", cmap="RdYlBu_r", vmin=0.0, vmax=1.0)
    for (row, column), text in texts.items():
        ink = "white" if abs(ranks[row, column] - 0.5) > 0.36 else _INK
        panel.text(column, row, text, ha="center", va="center", fontsize=7.5, color=ink)
    labels = [
        textwrap.fill(f"{table.title} ({table.metric})", 17, break_long_words=False, break_on_hyphens=True)
        for table in tables
    ]
    panel.set_xticks(range(len(tables)), labels, fontsize=7.5, color=_SOFT)
    panel.xaxis.tick_top()
    panel.set_yticks(range(len(methods)), methods, fontsize=8, color=_INK)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=panel, location="bottom", shrink=0.5, pad=0.01, aspect=40)
    bar.set_ticks([0, 0.5, 1], labels=["first of all methods", "middle", "last"], fontsize=7.5, color=_SOFT)
    bar.outline.set_visible(False)  # type: ignore[operator]
    return figure


def find_edge(gains: Sequence[Estimate]) -> float:
    """The left end of a panel: the lowest end of an interval, but no further out than four times the best gain, or the
    middle one of all by size.

    Example:
        >>> find_edge([Estimate(0.1, 0.0, 0.2, 3), Estimate(-0.1, -0.2, 0.0, 3), Estimate(-100.0, -110.0, -90.0, 3)])
        -0.4
    """
    known = [gain for gain in gains if math.isfinite(gain.mean)]
    if not known:
        return 0.0
    means = [gain.mean for gain in known]
    lowest = min(gain.low if math.isfinite(gain.low) else gain.mean for gain in known)
    return max(lowest, -4 * max(*means, float(np.median(np.abs(means))), 1e-12))


def draw_gains(table: FieldTable) -> Figure:
    """What each method gains over the plain optimizer and over from scratch, with 95% intervals."""
    standings = table.standings
    figure = Figure(figsize=(8.2, 1.3 + 0.2 * len(standings)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True, squeeze=False)[0]
    for panel, baseline in zip(panels, table.baselines, strict=True):
        edge = find_edge([one.gains[baseline] for one in standings if baseline in one.gains])
        for row, standing in enumerate(standings):
            gain = standing.gains.get(baseline)
            if gain is None or math.isnan(gain.mean):
                continue
            colour = (_BETTER if gain.mean > 0 else _WORSE) if standing.certain[baseline] else _OPEN
            if gain.mean < edge:  # far behind all others: an arrow at the edge, so that the others can be told apart
                panel.plot([edge], [row], marker="<", markersize=5, color=colour, linestyle="")
                continue
            if math.isfinite(gain.low):
                panel.plot(
                    [max(edge, gain.low), gain.high], [row, row], color=colour, linewidth=1.6, solid_capstyle="butt"
                )
            panel.plot([gain.mean], [row], marker="o", markersize=4, color=colour, linestyle="")
        panel.axvline(0.0, color=_SOFT, linewidth=0.9, zorder=0)
        name = baseline if baseline == table.base else baseline.lower()
        panel.set_title(f"gain over {name}", fontsize=9.5, fontweight="bold", color=_INK, loc="left")
        panel.set_xlabel(f"{'' if table.higher_is_better else 'less '}{table.metric}", fontsize=9, color=_SOFT)
        panel.grid(axis="x", color=_GRID, linewidth=0.8)
        panel.set_axisbelow(True)
        panel.tick_params(labelsize=8, colors=_SOFT, color=_GRID)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.spines["bottom"].set_color("#c4cad3")
    names = [f"{one.method} (baseline)" if one.method in BASELINES else one.method for one in standings]
    panels[0].set_yticks(range(len(standings)), names, fontsize=8, color=_INK)
    panels[0].set_ylim(len(standings) - 0.4, -0.6)
    return figure
