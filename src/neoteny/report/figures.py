"""Figures for print: every chart, or group of small multiples, as PNG and SVG.

The same charts as the page's (`page`), drawn by matplotlib without its global state, byte for byte the same each time.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neoteny.report.axes import Drawable, prepare, share_caption
from neoteny.report.chart import Chart
from neoteny.report.palette import Look, choose_looks
from neoteny.suite.store.files import write_atomically
from neoteny.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS_PER_INCH = 200
MOST_COLUMNS = 3
_LONGEST = 2000
"""Signs of one text; no figure has room for more."""
_DASHES = {"solid": "-", "dash": (0, (5, 2.4)), "dot": (0, (1.1, 1.8)), "dashdot": (0, (5, 2, 1, 2))}
_OPTIONS: dict[Any, Any] = {
    "svg.hashsalt": "neoteny",  # makes the names inside an SVG the same each time
    "svg.fonttype": "path",
    "figure.autolayout": False,
    "figure.constrained_layout.use": False,
}
_INK, _SOFT, _GRID = "#1a1e26", "#5a6372", "#e6e9ee"


def write_figures(folder: Path, charts: Sequence[Chart]) -> list[Path]:
    """Write `figures/NN-name.png` and `.svg` into a folder, one pair for each chart or group, and return the paths."""
    import matplotlib

    paths = []
    looks = choose_looks(charts)
    groups = _group(charts)
    for number, indices in enumerate(groups, start=1):
        drawables = [prepare(charts[i]) for i in indices]
        name = f"{number:0{max(2, len(str(len(groups))))}d}-{_slug(charts[indices[0]])}"
        with matplotlib.rc_context(_OPTIONS):  # they can only be set so; afterwards they are what they were
            figure = draw_figure(drawables, [looks[i] for i in indices])
            figure.draw_without_rendering()
            figure.set_layout_engine(None)  # laid out once, drawn once in each format
            for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
                buffer = io.BytesIO()
                figure.savefig(buffer, format=kind, dpi=DOTS_PER_INCH, metadata=metadata)
                path = Path(folder) / "figures" / f"{name}.{kind}"
                content = buffer.getvalue()
                write_atomically(path, lambda file, content=content: file.write(content))
                paths.append(path)
    return paths


def draw_figure(drawables: Sequence[Drawable], looks: Sequence[Sequence[Look]]) -> Figure:
    """Panels side by side; below them one legend (or one in each panel, where a name looks different) and captions."""
    from matplotlib.figure import Figure

    count = len(drawables)
    columns = min(MOST_COLUMNS, count) if count != 4 else 2
    rows = math.ceil(count / columns)
    wide = 7.2 if count == 1 else 4.0 * columns
    names = _name_looks(drawables, looks)
    per_row = max(1, min(len(names), int(wide * 12) // (max(map(len, names), default=0) + 8)))
    legend = 0.2 * math.ceil(len(names) / per_row) + 0.1 if names else 0.0
    lines = [line for text in _write_captions(drawables) for line in textwrap.wrap(_plain(text), int(wide * 15.5))]
    caption = 0.15 * len(lines) + 0.08 if lines else 0.0
    tall = (4.0 if count == 1 else 3.0 * rows) + legend + caption
    # Legend and caption stand outside the layout, whose own "outside" legends would cover a caption.
    below = (legend + caption) / tall
    figure = Figure(figsize=(wide, tall), dpi=DOTS_PER_INCH, layout="constrained")
    figure.set_layout_engine("constrained", rect=(0, below, 1, 1 - below), h_pad=0.08, w_pad=0.08)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, drawable, look in zip(panels, drawables, looks, strict=False):
        _draw_panel(panel, drawable, look)
        if not names and panel.get_legend_handles_labels()[0]:
            panel.legend(frameon=False, fontsize=8, labelcolor=_INK)
    for panel in panels[count:]:
        panel.set_axis_off()
    group = drawables[0].chart.group
    if group and count > 1:
        figure.suptitle(_plain(group), fontsize=12, fontweight="bold", color=_INK)
    if names:
        found = [pair for panel in panels for pair in zip(*panel.get_legend_handles_labels(), strict=True)]
        handles = {label: handle for handle, label in reversed(found)}
        figure.legend(
            [handles[_plain(name)] for name in names],
            [_plain(name) for name in names],
            loc="lower center",
            bbox_to_anchor=(0.5, caption / tall),
            borderaxespad=0.2,
            ncols=per_row,
            frameon=False,
            fontsize=9,
            labelcolor=_INK,
        )
    if lines:
        figure.text(0.08 / wide, 0.06 / tall, "\n".join(lines), fontsize=8, color=_SOFT, ha="left", va="bottom")
    return figure


def _write_captions(drawables: Sequence[Drawable]) -> list[str]:
    """The caption that all share, then what is said of single panels, which are named where there are several."""
    shared = share_caption(drawables)
    texts = [shared] if shared else []
    for drawable in drawables:
        own = " ".join(part for part in ("" if shared else drawable.chart.caption, drawable.notes) if part)
        name = f"{drawable.chart.title}: " if len(drawables) > 1 and drawable.chart.title else ""
        texts += [name + own] if own else []
    return texts


def _name_looks(drawables: Sequence[Drawable], looks: Sequence[Sequence[Look]]) -> list[str]:
    """The names of all series in order, or none if one legend cannot serve all panels."""
    found: dict[str, Look] = {}
    for drawable, row in zip(drawables, looks, strict=True):
        for series, look in zip(drawable.chart.series, row, strict=True):
            if found.setdefault(series.name, look) != look:
                return []
    return list(found)


def _draw_panel(panel: Axes, drawable: Drawable, looks: Sequence[Look]) -> None:
    from matplotlib.ticker import EngFormatter

    chart = drawable.chart
    for nth, (series, look) in enumerate(zip(chart.series, looks, strict=True)):
        colour = look.colour.light
        style: dict[str, Any] = {"color": colour, "linestyle": _DASHES[look.dash], "label": _plain(series.name)}
        points = "o" if chart.markers or sum(map(math.isfinite, series.y)) == 1 else ""
        if chart.markers and len(series.low):
            below = [max(0.0, y - low) for y, low in zip(series.y, series.low, strict=True)]
            above = [max(0.0, high - y) for y, high in zip(series.y, series.high, strict=True)]
            panel.errorbar(
                series.x, series.y, yerr=[below, above], marker="o", markersize=4, capsize=2.5, linewidth=1.6, **style
            )
            continue
        panel.plot(series.x, series.y, marker=points, markersize=4, linewidth=1.7, zorder=3 + nth / 100, **style)
        if len(series.low):
            panel.fill_between(series.x, series.low, series.high, color=colour, alpha=0.16, linewidth=0, zorder=2)
    if chart.log_x:
        panel.set_xscale("log")
    if chart.log_y:
        panel.set_yscale("log")
    for axis, ticks in ((panel.xaxis, drawable.x_ticks), (panel.yaxis, drawable.y_ticks)):
        if ticks is not None:
            low, high = axis.get_view_interval()
            axis.set_ticks(list(ticks), [_plain(label) for label in ticks.values()])
            axis.set_ticks([], minor=True)
            axis.axes.set(**{f"{axis.axis_name}lim": (low, high)})  # ticks beyond the values must not widen the axis
        elif axis is panel.xaxis and max(map(abs, panel.get_xlim())) >= 10_000:
            axis.set_major_formatter(EngFormatter(sep=""))
    panel.set_title(_plain(chart.title), fontsize=10.5, fontweight="bold", color=_INK, loc="left")
    panel.set_xlabel(_plain(chart.x_label), fontsize=9.5, color=_SOFT)
    panel.set_ylabel(_plain(chart.y_label), fontsize=9.5, color=_SOFT)
    panel.tick_params(labelsize=8.5, colors=_SOFT, color=_GRID)
    panel.grid(axis="y", color=_GRID, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color("#c4cad3")


def _group(charts: Sequence[Chart]) -> list[list[int]]:
    groups: list[list[int]] = []
    for i, chart in enumerate(charts):
        if groups and chart.group and charts[groups[-1][0]].group == chart.group:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _slug(chart: Chart) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", (chart.group or chart.title).lower()).strip("-")
    return words[:60].rstrip("-") or "chart"


def _plain(text: str) -> str:
    """A dollar would start a formula, an underscore in front would hide a name from the legend; fonts lack the rest."""
    return ("\u200b" if text.startswith("_") else "") + printable(text[:_LONGEST]).replace("$", r"\$")
