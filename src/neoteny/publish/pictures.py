"""Figures for `docs/figures`: charts of a summary as small PNG files with few colours.

The library draws them (`neoteny.report.figures`), as in its reports, here a little smaller, so that their letters can
be read at the width of a page.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.figure import Figure
from PIL import Image

from neoteny.publish.entries import Entry, Picture
from neoteny.publish.keep import EvidenceError
from neoteny.publish.summary import Summary
from neoteny.report.axes import prepare
from neoteny.report.chart import Chart
from neoteny.report.figures import draw_figure
from neoteny.report.palette import choose_looks
from neoteny.text import nearest

WIDER, TALLER = 0.82, 0.92
"""Several panels side by side, against the report's size in inches; the letters of axes keep theirs."""
DOTS_PER_INCH = 160
COLOURS = 96


def choose_pictures(entry: Entry, summary: Summary) -> tuple[Picture, ...]:
    """The entry's pictures, or one of every group of charts."""
    if entry.pictures:
        return entry.pictures
    names = list(dict.fromkeys(chart.group or chart.title for chart in summary.charts))
    files = [entry.name if len(names) == 1 else f"{entry.name}-{number}" for number in range(1, len(names) + 1)]
    return tuple(Picture(file, (name,)) for file, name in zip(files, names, strict=True))


def draw(picture: Picture, charts: Sequence[Chart]) -> bytes:
    """One picture as the bytes of a PNG file, the same each time.

    Args:
        picture: which charts.
        charts: all of the folder; colours are chosen over all, so that a method has one in every picture.
    """
    chosen = _choose(picture, charts)
    looks = choose_looks(charts)
    figure = draw_figure([prepare(charts[i]) for i in chosen], [looks[i] for i in chosen])
    if len(chosen) > 1:
        _shrink(figure)
    return save(figure)


def save(figure: Figure) -> bytes:
    """A figure as the bytes of a PNG file with few colours, the same each time."""
    drawn, written = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    image = Image.open(drawn).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    image.save(written, format="png", optimize=True)
    return written.getvalue()


def _shrink(figure: Figure) -> None:
    """Make a figure smaller, and with it the legend and the caption, whose lines were broken for the old width."""
    wide, tall = figure.get_size_inches()
    figure.set_size_inches(WIDER * wide, TALLER * tall)
    below = [text for text in figure.texts if text.get_text() != figure.get_suptitle()]
    for text in [*below, *(text for legend in figure.legends for text in legend.get_texts())]:
        text.set_fontsize(WIDER * float(text.get_fontsize()))


def _choose(picture: Picture, charts: Sequence[Chart]) -> list[int]:
    chosen = []
    known = list(dict.fromkeys(name for chart in charts for name in (chart.group, chart.title) if name))
    for name in picture.charts:
        found = [i for i, chart in enumerate(charts) if name in (chart.group, chart.title)]
        if not found:
            raise EvidenceError(
                f"Picture {picture.file!r} wants the charts {name!r}.{nearest(name, known)} There are "
                f"{', '.join(map(repr, known))}."
            )
        chosen += found
    return chosen
