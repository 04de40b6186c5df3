"""Figures for print: files that open, that are the same each time, and that leave matplotlib as it was."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib
import pytest
from PIL import Image

from neoteny.report.axes import prepare
from neoteny.report.chart import Chart, Series
from neoteny.report.figures import DOTS_PER_INCH, draw_figure, write_figures
from neoteny.report.palette import choose_looks
from support.made_up_report import make_report


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_figures(tmp_path_factory.mktemp("print"), make_report().charts)


def test_every_chart_or_group_gets_a_png_and_an_svg(written: list[Path]) -> None:
    assert [path.name for path in written][:4] == [
        "01-accuracy.png",
        "01-accuracy.svg",
        "02-correlates.png",
        "02-correlates.svg",
    ]
    assert len(written) == 8
    assert {path.parent.name for path in written} == {"figures"}
    assert sorted(written[0].parent.iterdir()) == sorted(written)


def test_files_open_and_have_200_dots_per_inch(written: list[Path]) -> None:
    with Image.open(written[0]) as picture:
        picture.load()
        assert picture.info["dpi"][0] == pytest.approx(DOTS_PER_INCH, rel=0.01)
        assert picture.width > 1000
    for path in written[1::2]:
        assert ET.parse(path).getroot().tag.endswith("svg")


def test_drawing_again_gives_the_same_bytes_and_leaves_matplotlib_alone(written: list[Path], tmp_path: Path) -> None:
    before, backend = dict(matplotlib.rcParams), matplotlib.get_backend(auto_select=False)
    chart = make_report().charts[0]
    again = write_figures(tmp_path, [chart])
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written[:2]]
    assert dict(matplotlib.rcParams) == before
    assert matplotlib.get_backend(auto_select=False) == backend


def draw(*charts: Chart):
    return draw_figure([prepare(chart) for chart in charts], choose_looks(charts))


def test_lines_bands_and_axes_are_those_of_the_chart() -> None:
    line = Series("BP", [1, 2, 3], [1.0, 0.1, math.nan], [0.5, -0.2, math.nan], [2.0, 0.4, math.nan])
    chart = Chart("T", "tasks", "error", [line, Series("CBP", [1, 2, 3], [1, 1, 1], dashed=True)], "Note.", log_y=True)
    figure = draw(chart)
    (panel,) = figure.axes
    assert panel.get_yscale() == "log"
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("tasks", "error")
    assert len(panel.lines) == 2
    assert len(panel.collections) == 1
    assert panel.lines[1].get_linestyle() == "--"
    (caption,) = figure.texts
    assert "Note." in caption.get_text()
    assert "drawn at 0.01" in caption.get_text()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["BP", "CBP"]


def test_panels_whose_names_look_different_have_their_own_legends() -> None:
    charts = [
        Chart(method, "rate", "error", [Series("0.1", [1], [1.0], method=method)], group="All")
        for method in ("L2", "CBP")
    ]
    figure = draw(*charts)
    assert figure.legends == []
    assert all(panel.get_legend() is not None for panel in figure.axes)


def test_dollars_and_underscores_are_text_and_an_empty_chart_is_drawn(tmp_path: Path) -> None:
    charts = [
        Chart("costs $5 or $x^", "", "", [Series("$a$ _b_", [1], [1.0]), Series("_c", [1], [1.0])], "A $ sign."),
        Chart("", "", ""),
    ]
    assert [path.name for path in write_figures(tmp_path, charts)][::2] == ["01-costs-5-or-x.png", "02-chart.png"]


def test_no_charts_write_nothing(tmp_path: Path) -> None:
    assert write_figures(tmp_path, []) == []
    assert list(tmp_path.iterdir()) == []
