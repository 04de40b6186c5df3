"""What both renderers share: clipping on logarithmic axes, tick marks, notes, and colours."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from neoteny.report.axes import MOST_POINTS, choose_log_ticks, prepare, share_caption
from neoteny.report.chart import Chart, Series
from neoteny.report.palette import KNOWN, choose_colours, choose_keys, choose_looks

finite = st.floats(-1e6, 1e6, allow_nan=False)


def make_chart(*series: Series, **options: Any) -> Chart:
    return Chart("Title", "x", "y", series, caption="Ten runs.", **options)


@given(st.lists(st.tuples(finite, st.floats(0, 1e6)), min_size=1, max_size=10))
@example([(0.0, 0.0), (5e-324, 0.0)])
def test_everything_on_a_logarithmic_axis_is_positive(points: list[tuple[float, float]]) -> None:
    y = [value for value, _ in points]
    line = Series("a", range(len(y)), y, [v - w for v, w in points], [v + w for v, w in points])
    drawable = prepare(make_chart(line, log_y=True))
    chart = drawable.chart
    if not any(value > 0 for value in y):
        assert not chart.log_y
        return
    drawn = np.array([chart.series[0].y, chart.series[0].low, chart.series[0].high])
    assert (drawn > 0).all()
    assert drawn.min() >= min(value for value in y if value > 0) / 10.0001
    assert ("at or below zero" in drawable.notes) == any(value - width <= 0 for value, width in points)


def test_a_linear_axis_is_left_alone() -> None:
    line = Series("a", [0, 1], [-1.0, 2.0], [-3.0, 1.0], [0.0, 3.0])
    drawable = prepare(make_chart(line))
    assert drawable.notes == ""
    assert list(drawable.chart.series[0].low) == [-3.0, 1.0]
    assert drawable.x_ticks is None
    assert drawable.y_ticks is None


def test_zero_on_a_logarithmic_x_axis_stands_at_the_left_end_with_its_own_label() -> None:
    line = Series("CBP", [0.0, 1e-6, 1e-5], [1.0, 2.0, 3.0])
    drawable = prepare(make_chart(line, log_x=True, markers=True))
    assert list(drawable.chart.series[0].x) == pytest.approx([1e-7, 1e-6, 1e-5])
    assert drawable.x_ticks is not None
    assert list(drawable.x_ticks) == pytest.approx([1e-7, 1e-6, 1e-5])
    assert list(drawable.x_ticks.values()) == ["0", "10⁻⁶", "10⁻⁵"]
    assert "left end" in drawable.notes


def test_diverged_lines_end_and_the_caption_names_them() -> None:
    broken = Series("Adam", [1, 2, 3], [1.0, math.inf, math.nan], [0.5, math.nan, math.nan], [1.5, math.inf, math.nan])
    drawable = prepare(make_chart(Series("BP", [1], [1.0]), broken))
    assert drawable.notes == "A line ends where one of its runs diverged, or is not finite: Adam."
    assert np.isnan(drawable.chart.series[1].y[1:]).all()


def test_the_infinite_interval_of_one_run_falls_on_the_line() -> None:
    chart = prepare(make_chart(Series("BP", [1], [2.0], [-math.inf], [math.inf]))).chart
    assert (list(chart.series[0].low), list(chart.series[0].high)) == ([2.0], [2.0])


@given(st.floats(1e-12, 1e12), st.floats(1.0, 1e12))
def test_logarithmic_ticks_are_few_rising_and_reach_both_ends(low: float, ratio: float) -> None:
    ticks = list(choose_log_ticks([low, low * ratio]))
    assert ticks == sorted(set(ticks))
    assert 2 <= len(ticks) <= 10 or ratio < 1.01
    assert ticks[0] <= low * 1.01
    assert ticks[-1] >= low * ratio * 0.1


def test_panels_with_one_caption_share_it() -> None:
    same, other = prepare(make_chart()), prepare(Chart("T", "x", "y", caption="Five runs."))
    assert share_caption([same, same]) == "Ten runs."
    assert share_caption([same, other]) == ""
    assert share_caption([same]) == ""


def test_an_empty_chart_is_drawable() -> None:
    for options in ({}, {"log_x": True, "log_y": True, "markers": True}):
        assert prepare(make_chart(**options)).chart.series == ()
        assert prepare(make_chart(Series("a", [], []), **options)).chart.series[0].name == "a"


def make_named(*names: str) -> Chart:
    return make_chart(*(Series(name, [1], [1.0]) for name in names))


def test_known_methods_keep_their_colours_whatever_the_chart() -> None:
    first = choose_colours([make_named("BP", "CBP", "mine")])
    second = choose_colours([make_named("other", "CBP"), make_named("mine", "L2")])
    assert list(second) == ["other", "CBP", "mine", "L2"]
    assert first["CBP"] == second["CBP"] == KNOWN["CBP"]
    assert len({first["mine"], KNOWN["BP"], KNOWN["CBP"]}) == 3
    assert len(set(second.values())) == 4


def test_with_more_names_than_colours_those_of_one_chart_still_differ() -> None:
    charts = [make_named("BP", *(f"{panel}{number}" for number in range(4))) for panel in "abcdef"]
    colours = choose_colours(charts)
    for chart in charts:
        assert len({colours[series.name] for series in chart.series}) == 5


def test_known_methods_have_colours_of_their_own_in_both_themes() -> None:
    agents = {name: colour for name, colour in KNOWN.items() if "PPO" in name or "friction" in name}
    learners = {name: colour for name, colour in KNOWN.items() if name not in {*agents, "overall utility"}}
    assert len(learners) == 8
    for theme in ("light", "dark"):
        for family in (learners, agents):  # which are never in one chart
            assert len({getattr(colour, theme) for colour in family.values()}) == len(family)
    assert agents["Continual PPO"] == KNOWN["CBP"] == KNOWN["overall utility"]


def test_toggles_go_by_method_and_by_name_where_there_is_one_method() -> None:
    steps = make_chart(
        *(Series(f"step size {k}", [1], [1.0], method="BP") for k in (1, 2)),
        Series("linear", [1], [1.0], method="Linear", dashed=True),
    )
    assert choose_keys([steps]) == {"step size 1": False, "step size 2": False, "linear": True}
    methods = make_chart(*(Series(f"{name}, tanh", [1], [1.0], method=name) for name in ("BP", "CBP")))
    assert list(choose_keys([methods])) == ["BP", "CBP"]
    assert list(choose_keys([steps, methods])) == ["BP", "Linear", "CBP"]


def test_series_of_one_method_differ_in_dash_and_shade() -> None:
    chart = make_chart(
        Series("a", [1], [1.0], method="CBP"),
        Series("b", [1], [1.0], method="CBP"),
        Series("c", [1], [1.0], method="BP"),
    )
    first, second, third = choose_looks([chart])[0]
    assert first.key == second.key == "CBP"
    assert first.dash != second.dash
    assert first.colour != second.colour
    assert first.colour == KNOWN["CBP"]
    assert third.dash == "solid"


def test_a_line_of_very_many_points_is_thinned_and_says_so() -> None:
    many = list(range(MOST_POINTS * 3 + 1))
    line = prepare(Chart("A", "x", "y", [Series("a", many, many, many, many), Series("b", [1], [1])]))
    assert "every n-th point" in line.notes
    assert line.notes.endswith(": a.")
    drawn = line.chart.series[0]
    assert list(drawn.x) == list(drawn.low) == many[::4]
    assert prepare(Chart("A", "x", "y", [Series("a", many[:MOST_POINTS], many[:MOST_POINTS])])).notes == ""
