"""Trends: what claims compare, by hand and on noise."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from neoteny.report.statistics import estimate
from neoteny.report.trends import (
    Trend,
    average,
    best_by_others,
    best_of,
    early_and_late,
    fall,
    find_drops,
    find_loss,
    peak,
    rise,
    spread_over_settings,
    take_early,
    take_first,
    take_late,
    trend,
)
from support.experiment_worlds import World
from support.mnist_worlds import WORLDS


def test_the_drop_of_a_flat_curve_is_nothing_on_average() -> None:
    draws = np.random.default_rng(0).standard_normal((100, 400))
    table = Trend(pd.DataFrame(draws))
    assert abs(estimate(table.drop).mean) < 0.1
    own_best = table.bins.iloc[:-1].max() - table.last
    assert estimate(own_best).mean > 0.5  # what choosing each run's own best bin would have claimed


def test_a_trend_by_hand() -> None:
    table = Trend(pd.DataFrame({0: [1.0, 4.0, 3.0, 2.0], 1: [2.0, 5.0, 4.0, 1.0]}))
    assert table.peak.tolist() == [4.0, 5.0]
    assert table.drop.tolist() == [2.0, 4.0]
    assert table.rise.tolist() == [3.0, 3.0]
    assert table.growth.tolist() == [1.0, -1.0]
    assert table.late_growth.tolist() == [-1.0, -3.0]
    assert table.slope(1).tolist() == pytest.approx([-1.0, -2.0])
    assert table.peak_bin == 1
    assert table.fall_speed.tolist() == pytest.approx([1.0, 2.0])


def test_a_trend_leaves_unfinished_runs_out_and_keeps_diverged_ones() -> None:
    frame = WORLDS["mnist-width"][0].frame(tasks=6)
    frame = frame[(frame["seed"] != 2) | (frame["task"] < 3)].copy()
    frame.loc[(frame["seed"] == 1) & (frame["task"] > 3), "value"] = np.nan
    table = trend(frame, "accuracy", method="BP", width=100)
    assert table.last.index.tolist() == [0, 1, 3, 4]
    assert math.isnan(table.last[1])
    with pytest.raises(ValueError, match="one setting"):
        trend(frame, "accuracy", method="BP")


def test_unfinished_runs_have_no_rise_and_do_not_count_as_diverged() -> None:
    rows = World("error", [("BP", {}, (1.0, 2.0))], 12, 0.0, 0.0).frame(runs=3)
    found = rise(rows[(rows["seed"] != 1) | (rows["task"] < 6)])
    assert found.index.tolist() == [0, 2]
    assert (found > 0).all()


def test_a_fall_is_of_finished_runs_alone_and_nan_for_one_that_diverged() -> None:
    rows = World("accuracy", [("BP", {}, (0.6, 0.9, 0.6))], 21, 0.0, 0.0).frame(runs=4)
    found = fall(rows[(rows["seed"] != 1) | (rows["task"] < 6)], 3)
    assert found.index.tolist() == [0, 2, 3]
    assert (found > 0.2).all()
    diverged = rows.assign(value=rows["value"].mask((rows["seed"] == 1) & (rows["task"] > 15)))
    assert fall(diverged, 3).isna().to_dict() == {0: False, 1: True, 2: False, 3: False}


def test_early_and_late_are_the_second_thirtieth_to_sixth_and_the_last_sixth() -> None:
    rows = World("error", [("BP", {}, tuple(float(task) for task in range(60)))], 60, 0.0, 0.0).frame(runs=2)
    early, late = early_and_late(rows)
    assert early.tolist() == [np.mean(range(2, 10))] * 2
    assert late.tolist() == [np.mean(range(50, 60))] * 2


def test_the_peak_of_pure_noise_is_not_above_its_mean() -> None:
    noise = pd.DataFrame(np.random.default_rng(0).standard_normal((40, 400)))
    assert noise.max().mean() > 2.0
    assert abs(peak(noise).mean()) < 0.15


def test_the_peak_is_found_where_there_is_one_and_nan_where_a_run_diverged() -> None:
    bins = pd.DataFrame([[1.0, 1.1], [2.0, 2.1], [0.0, 0.1]], columns=[5, 7])
    assert peak(bins).to_dict() == {5: 2.0, 7: 2.1}
    assert peak(bins.replace(2.1, np.nan)).isna().to_dict() == {5: False, 7: True}
    assert peak(bins[[5]]).isna().all()  # nobody else to choose for it


def test_spread_over_settings_is_the_standard_deviation_of_their_means() -> None:
    rows = World(
        "error", [("CBP", {"replacement_rate": rate}, (rate,)) for rate in (1.0, 2.0, 3.0)], 4, 0.0, 0.0
    ).frame()
    assert spread_over_settings(rows).tolist() == [1.0] * 8
    assert spread_over_settings(rows[rows["setting"] == rows["setting"].iloc[0]]).empty


def test_averages_are_over_the_seeds_that_all_have_and_keep_divergence() -> None:
    first, second = pd.Series([1.0, 2.0, np.nan], index=[0, 1, 2]), pd.Series([4.0, 5.0, 6.0], index=[1, 2, 3])
    averaged = average([first, second])
    assert averaged.loc[1] == 3.0
    assert np.isnan(averaged.loc[2])
    assert len(averaged) == 2
    assert average([first, pd.Series(dtype=np.float64)]).empty


def test_early_tasks_follow_the_first_and_are_as_many_as_the_last() -> None:
    rows = World("return", [("PPO", {}, tuple(float(task) for task in range(10)))], 10, 0.0, 0.0).frame(runs=2)
    assert take_first(rows).tolist() == [0.0, 0.0]
    assert take_early(rows).tolist() == [2.0, 2.0]  # tasks 1, 2 and 3
    assert take_late(rows).tolist() == [8.0, 8.0]
    assert find_loss(rows).tolist() == [-6.0, -6.0]
    unfinished = rows[(rows["seed"] == 0) | (rows["task"] < 9)]
    assert find_loss(unfinished).index.tolist() == [0]


def test_drops_are_from_the_end_of_a_task_to_the_beginning_of_the_next() -> None:
    # Two runs of three tasks of four points; a tenth of four points is one.
    values = np.array([[0, 1, 2, 10, 4, 5, 6, 20, 5, 0, 0, 0], [0, 0, 0, 3, 3, 0, 0, 7, 8, 0, 0, 0]], dtype=float)
    runs, points = np.indices(values.shape)
    rows = pd.DataFrame(
        {
            "setting": "PPO",
            "metric": "return.curve",
            "seed": runs.ravel(),
            "task": points.ravel(),
            "value": values.ravel(),
        }
    )
    assert find_drops(rows, 4).to_dict() == {0: ((10 - 4) + (20 - 5)) / 2, 1: ((3 - 3) + (7 - 8)) / 2}
    assert find_drops(rows[rows["task"] < 4], 4).empty
    assert find_drops(rows.iloc[:0], 4).empty
    diverged = rows.assign(value=rows["value"].where((rows["seed"] == 0) | (rows["task"] < 9)))
    assert find_drops(diverged, 4).isna().to_dict() == {0: False, 1: False}  # the first point after it was reached
    assert find_drops(diverged.assign(value=diverged["value"].where(rows["task"] < 8)), 4).isna().all()


def test_a_setting_is_chosen_by_other_runs_than_those_that_it_is_judged_on() -> None:
    """Of settings that do not differ, the best by the same runs looks better than it is."""
    settings = [("L2", {"l2": strength}, (0.5,)) for strength in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)]
    chosen, crossed = [], []
    for seed in range(40):
        rows = World("error", settings, 2, 0.1, 0.1).frame(runs=4, seed=seed)
        chosen.append(best_of(rows, "error", higher_is_better=False)["value"].mean())
        crossed.append(best_of(rows, "error", higher_is_better=False, by_others=True)["value"].mean())
        assert best_by_others(rows, "error", False)["seed"].nunique() == 4
    spread = np.std(crossed) / np.sqrt(40)
    assert np.mean(chosen) < 0.5 - 3 * spread
    assert abs(np.mean(crossed) - 0.5) < 3 * spread


def test_one_run_or_a_clear_winner_is_chosen_as_before() -> None:
    rows = World("error", [("L2", {"l2": value}, (value,)) for value in (1.0, 2.0)], 2, 0.0, 0.0).frame(runs=5)
    assert best_by_others(rows, "error", False)["setting"].unique().tolist() == ["L2 (l2=1)"]
    assert best_by_others(rows[rows["seed"] == 0], "error", True)["setting"].unique().tolist() == ["L2 (l2=2)"]
    assert best_by_others(rows.iloc[:0], "error", True).empty
