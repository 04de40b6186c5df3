"""Interquartile means and their stratified bootstrap: a case by hand, naive loops, scipy's trimmed mean, divergence."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import trim_mean

from neoteny.report import interquartile
from neoteny.report.interquartile import curve_of_tasks, interquartile_mean, tabulate, trim
from neoteny.report.tables import performance_table
from support.frames import Curve, make_frame

finite = st.floats(-1e6, 1e6, allow_nan=False)


def make_rows(table: np.ndarray, setting: str = "PPO") -> pd.DataFrame:
    """Rows of one setting and metric from values (runs, tasks)."""
    runs, tasks = np.indices(table.shape)
    return pd.DataFrame(
        {"setting": setting, "metric": "return", "seed": runs.ravel(), "task": tasks.ravel(), "value": table.ravel()}
    )


def test_the_middle_half_by_hand() -> None:
    # 12 scores; three go at either end, of any run or task: 0, 1, 2 and 9, 10, 1000.
    scores = [[1000.0, 3.0, 0.0], [1.0, 10.0, 4.0], [9.0, 2.0, 5.0], [6.0, 7.0, 8.0]]
    found = interquartile_mean(scores)
    assert found.mean == (3 + 4 + 5 + 6 + 7 + 8) / 6
    assert found.runs == 4


@given(st.lists(st.lists(finite, min_size=1, max_size=30), min_size=1, max_size=1))
def test_trimming_is_scipys_trimmed_mean_for_any_number_of_scores(scores: list[list[float]]) -> None:
    assert trim(np.array(scores))[0] == pytest.approx(trim_mean(scores[0], 0.25), rel=1e-9, abs=1e-6)


def naive_interval(table: np.ndarray, resamples: int) -> tuple[float, float]:
    """Each resample by loops, runs drawn again for every task."""
    generator = np.random.default_rng(7)
    runs, tasks = table.shape
    means = []
    for _ in range(resamples):
        scores = []
        for task in range(tasks):
            for _ in range(runs):
                scores.append(table[generator.integers(runs), task])
        scores.sort()
        cut = len(scores) // 4
        middle = scores[cut : len(scores) - cut]
        means.append(sum(middle) / len(middle))
    means.sort()
    return means[int(0.025 * resamples)], means[int(0.975 * resamples)]


def test_the_interval_is_that_of_loops_over_runs_within_each_task() -> None:
    table = np.random.default_rng(1).gamma(2.0, size=(7, 5)) + 3.0 * np.arange(5)
    found = interquartile_mean(table)
    low, high = naive_interval(table, 2000)
    width = high - low
    assert found.low == pytest.approx(low, abs=0.07 * width)
    assert found.high == pytest.approx(high, abs=0.07 * width)
    assert found.low < found.mean < found.high
    assert found.spread == pytest.approx(width / 3.92, rel=0.1)


def test_runs_are_drawn_within_their_task_and_not_across_tasks() -> None:
    # Every run scores the same in a task: a stratified resample cannot differ, however much tasks do.
    found = interquartile_mean(np.tile([0.0, 10.0, 500.0, -7.0], (6, 1)))
    assert found.low == found.mean == found.high


def test_tasks_are_resampled_independently_of_each_other() -> None:
    # One run is good in every task. Drawn as a whole it would be in all tasks or in none, which is a wide interval.
    table = np.zeros((4, 400))
    table[0] = 1.0
    assert interquartile_mean(table).high < 0.1


def test_the_draws_are_the_same_every_time_and_for_any_size_of_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.random.default_rng(0).normal(size=(5, 3))
    once = interquartile_mean(table)
    assert interquartile_mean(table) == once
    monkeypatch.setattr(interquartile, "_CHUNK_SCORES", 1001)
    assert interquartile_mean(table) == once


def test_a_wider_level_gives_a_wider_interval_and_a_level_beyond_one_is_refused() -> None:
    table = np.random.default_rng(0).normal(size=(8, 3))
    assert interquartile_mean(table, level=0.99).high > interquartile_mean(table, level=0.8).high
    with pytest.raises(ValueError, match="between 0 and 1"):
        interquartile_mean(table, level=95)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_diverged_run_is_not_left_out_even_where_it_would_be_cut_off(bad: float) -> None:
    table = np.arange(40.0).reshape(10, 4)
    table[3, 2] = bad
    found = interquartile_mean(table)
    assert math.isnan(found.mean)
    assert str(found) == "diverged (10 runs)"


def test_one_run_has_no_interval_and_none_is_nan() -> None:
    one = interquartile_mean([[1.0, 2.0, 3.0, 10.0]])
    assert (one.mean, one.low, one.high, one.runs) == (2.5, -math.inf, math.inf, 1)
    assert interquartile_mean(np.zeros((0, 0))).runs == 0


def test_a_list_of_scores_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(runs, tasks\); got the shape \(3,\)"):
        interquartile_mean([1.0, 2.0, 3.0])


def test_a_table_leaves_out_unfinished_runs_and_keeps_diverged_ones() -> None:
    values = np.arange(12.0).reshape(4, 3)
    values[2, 1:] = np.nan
    rows = make_rows(values)
    table = tabulate(rows[(rows["seed"] != 1) | (rows["task"] < 2)])
    assert table.index.tolist() == [0, 2, 3]
    assert table.columns.tolist() == [0, 1, 2]
    assert table.isna().to_numpy()[1].tolist() == [False, True, True]
    assert tabulate(rows.iloc[:0]).empty


def test_a_table_of_two_settings_is_refused() -> None:
    rows = pd.concat([make_rows(np.zeros((2, 2))), make_rows(np.zeros((2, 2)), setting="Continual PPO")])
    with pytest.raises(ValueError, match="one setting and one metric"):
        tabulate(rows)


@settings(max_examples=20, deadline=None)
@given(runs=st.integers(1, 9), tasks=st.integers(1, 4))
def test_a_line_has_the_interquartile_mean_of_every_task(runs: int, tasks: int) -> None:
    values = np.random.default_rng(runs).normal(size=(runs, tasks))
    line = curve_of_tasks(make_rows(values), "PPO", method="PPO")
    assert list(line.x) == [task + 1.0 for task in range(tasks)]
    assert list(line.y) == pytest.approx([trim_mean(values[:, task], 0.25) for task in range(tasks)])
    assert all(low <= y <= high for low, y, high in zip(line.low, line.y, line.high, strict=True))


def test_a_line_of_nothing_is_empty() -> None:
    assert list(curve_of_tasks(make_rows(np.zeros((0, 0))), "PPO").x) == []


def test_a_table_of_returns_has_the_interquartile_mean_and_is_against_ppo() -> None:
    curves = [Curve("PPO", {}, {"return": -100.0}), Curve("Continual PPO", {}, {"return": (0.0, 10.0, 20.0, 90.0)})]
    table = performance_table(make_frame(curves, runs=4, tasks=4), "return", higher_is_better=True)
    assert list(table.header)[4:] == ["all tasks", "interquartile mean", "last tasks against PPO"]
    assert [row[5] for row in table.rows] == ["-100.0 [-100.0, -100.0]", "15.00 [15.00, 15.00]"]
    assert [row[6] for row in table.rows] == ["-", "+190.0 [+190.0, +190.0]"]
    assert "stratified bootstrap" in table.caption


def test_a_table_of_errors_has_no_interquartile_mean() -> None:
    table = performance_table(make_frame([Curve("BP", {}, {"error": 1.0})]), "error", higher_is_better=False)
    assert "interquartile mean" not in table.header
    assert "interquartile" not in table.caption
