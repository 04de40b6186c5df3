"""The numbers behind figures and claims: hand-computed cases, divergence, unfinished runs, speed."""

from __future__ import annotations

import math
import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neoteny.report.statistics import best_setting, curve, estimate, estimate_share, paired, per_run, select
from support.frames import Curve, make_frame

finite = st.floats(-1e6, 1e6, allow_nan=False)


def make_rows(table: np.ndarray) -> pd.DataFrame:
    """Rows of one setting and metric from values (runs, tasks)."""
    runs, tasks = np.indices(table.shape)
    return pd.DataFrame(
        {"setting": "BP", "metric": "error", "seed": runs.ravel(), "task": tasks.ravel(), "value": table.ravel()}
    )


def test_estimate_is_student_t_by_hand() -> None:
    found = estimate([1.0, 2.0, 3.0, 4.0])
    # Standard deviation sqrt(5/3), standard error sqrt(5/12); t(0.975, 3 degrees) = 3.182446.
    assert found.mean == 2.5
    assert found.spread == pytest.approx(math.sqrt(5 / 12))
    assert found.high == pytest.approx(2.5 + 3.182446 * math.sqrt(5 / 12), rel=1e-6)
    assert found.low == pytest.approx(2.5 - 3.182446 * math.sqrt(5 / 12), rel=1e-6)
    assert found.runs == 4


def test_a_wider_level_gives_a_wider_interval() -> None:
    assert estimate([1.0, 2.0, 4.0], level=0.99).high > estimate([1.0, 2.0, 4.0], level=0.9).high


def test_one_run_has_an_infinite_interval_and_none_is_nan() -> None:
    one, none = estimate([0.5]), estimate([])
    assert (one.mean, one.low, one.high, one.runs) == (0.5, -math.inf, math.inf, 1)
    assert math.isnan(none.mean)
    assert none.runs == 0
    assert str(one) == "0.5 (1 run)"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_diverged_run_is_not_left_out(bad: float) -> None:
    found = estimate([1.0, 2.0, bad])
    assert math.isnan(found.mean)
    assert found.runs == 3
    assert str(found) == "diverged (3 runs)"


@given(st.lists(finite, min_size=2, max_size=20), finite)
def test_an_interval_holds_its_mean_and_moves_with_its_values(values: list[float], shift: float) -> None:
    first, moved = estimate(values), estimate([value + shift for value in values])
    assert first.low <= first.mean <= first.high
    assert moved.mean == pytest.approx(first.mean + shift, abs=1e-6)
    assert moved.high - moved.low == pytest.approx(first.high - first.low, rel=1e-4, abs=1e-5)


def test_pairing_uses_common_seeds_and_cancels_what_they_share() -> None:
    first = pd.Series({0: 10.1, 1: 20.1, 2: 30.1, 7: 99.0})
    second = pd.Series({2: 30.0, 1: 20.0, 0: 10.0, 8: -5.0})
    found = paired(first, second)
    assert found.runs == 3
    assert found.mean == pytest.approx(0.1)
    assert found.high - found.low < 1e-10
    assert paired(first, pd.Series({9: 1.0})).runs == 0


def test_pairing_of_two_infinite_runs_is_nan_without_a_warning() -> None:
    assert math.isnan(paired(pd.Series({0: math.inf, 1: 1.0}), pd.Series({0: math.inf, 1: 1.0})).mean)


def test_select_finds_numbers_words_and_nothing() -> None:
    frame = make_frame(
        [
            Curve("BP", {"step_size": 0.1 + 0.2, "activation": "relu"}, {"error": 1.0}),
            Curve("BP", {"step_size": 0.3, "activation": "tanh"}, {"error": 2.0, "dead_units": 0.0}),
            Curve("CBP", {"width": 100}, {"error": 3.0}),
        ],
        runs=2,
        tasks=3,
    )
    assert set(select(frame, "error", step_size=0.3)["value"]) == {1.0, 2.0}
    assert set(select(frame, "error", step_size=0.3, activation="tanh")["value"]) == {2.0}
    assert set(select(frame, "error", width=100)["value"]) == {3.0}
    assert select(frame, "error", dropout=0.1).empty
    assert select(frame, "accuracy").empty
    assert len(select(frame, "dead_units")) == 6


def test_per_run_counts_tasks_like_a_slice() -> None:
    rows = make_rows(np.arange(12.0).reshape(2, 6))
    assert per_run(rows).to_dict() == {0: 2.5, 1: 8.5}
    assert per_run(rows, 0, 2).to_dict() == {0: 0.5, 1: 6.5}
    assert per_run(rows, -2, None).to_dict() == {0: 4.5, 1: 10.5}
    assert per_run(rows, 1, -1).to_dict() == {0: 2.5, 1: 8.5}


def test_per_run_is_nan_only_where_the_run_had_diverged() -> None:
    table = np.ones((2, 4))
    table[1, 2:] = np.nan
    rows = make_rows(table)
    assert per_run(rows, 0, 2).to_dict() == {0: 1.0, 1: 1.0}
    assert math.isnan(per_run(rows, -1, None)[1])
    assert per_run(rows, -1, None)[0] == 1.0


def test_per_run_refuses_a_mixture_and_accepts_nothing() -> None:
    frame = make_frame([("BP", {}, {"error": 1.0}), ("CBP", {}, {"error": 1.0})], runs=2, tasks=2)
    with pytest.raises(ValueError, match=r"one setting and one metric.*'BP', 'CBP'"):
        per_run(frame)
    assert per_run(frame.iloc[:0]).empty


def test_curve_is_mean_and_standard_error_by_hand() -> None:
    found = curve(make_rows(np.array([[1.0, 5.0], [3.0, 5.0]])), "BP", method="BP", dashed=True)
    assert (found.name, found.method, found.dashed) == ("BP", "BP", True)
    assert found.x == [1.0, 2.0]
    assert found.y == [2.0, 5.0]
    assert found.low == pytest.approx([1.0, 5.0])  # standard deviation sqrt(2), over sqrt(2) runs
    assert found.high == pytest.approx([3.0, 5.0])


def test_curve_bins_whole_bins_only() -> None:
    found = curve(make_rows(np.array([[1.0, 3.0, 5.0, 7.0, 100.0]])), "BP", bin_tasks=2, x_scale=10.0)
    assert found.x == [20.0, 40.0]
    assert found.y == [2.0, 6.0]


def test_curve_shorter_than_a_bin_is_one_point() -> None:
    found = curve(make_rows(np.array([[1.0, 3.0, 5.0]])), "BP", bin_tasks=50)
    assert (found.x, found.y) == ([3.0], [3.0])


def test_bins_go_by_task_numbers_where_a_metric_is_measured_at_some_tasks() -> None:
    frame = make_frame([("BP", {}, {"rank": lambda task: task})], runs=3, tasks=20, measure_every=5)
    found = curve(frame, "BP", bin_tasks=10)
    assert found.x == [10.0, 20.0]
    assert found.y == [2.5, 12.5]  # measured at 0 and 5, at 10 and 15


def test_curve_is_nan_from_the_bin_in_which_a_run_diverged() -> None:
    table = np.ones((3, 6))
    table[1, 3:] = np.nan
    found = curve(make_rows(table), "BP", bin_tasks=2)
    assert found.y[0] == 1.0
    assert np.isnan(found.y[1:]).all()
    assert np.isnan(found.low[1:]).all()


def test_an_unfinished_run_is_left_out_of_the_bins_it_lacks() -> None:
    rows = make_rows(np.array([[1.0, 1.0, 1.0, 1.0], [3.0, 3.0, 3.0, 3.0]]))
    unfinished = rows[(rows["seed"] == 0) | (rows["task"] < 3)]
    assert curve(unfinished, "BP").y == [2.0, 2.0, 2.0, 1.0]
    assert curve(unfinished, "BP", bin_tasks=2).y == [2.0, 1.0]


def test_curve_of_one_run_has_a_band_as_wide_as_the_line() -> None:
    for band in ("standard_error", "bootstrap"):
        found = curve(make_rows(np.array([[1.0, 2.0]])), "BP", band=band)
        assert found.y == found.low == found.high == [1.0, 2.0]


def test_curve_of_nothing_is_empty() -> None:
    assert list(curve(make_rows(np.ones((1, 1))).iloc[:0], "BP").x) == []


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 25), st.integers(1, 9))
def test_curve_agrees_with_reshaping(runs: int, tasks: int, bin_tasks: int) -> None:
    table = np.random.default_rng(runs * 100 + tasks).standard_normal((runs, tasks))
    whole = tasks // bin_tasks * bin_tasks
    bins = table[:, :whole].reshape(runs, -1, bin_tasks).mean(2) if whole else table.mean(1, keepdims=True)
    found = curve(make_rows(table), "BP", bin_tasks=bin_tasks)
    np.testing.assert_allclose(found.y, bins.mean(0), atol=1e-12)
    spread = bins.std(0, ddof=1) / math.sqrt(runs) if runs > 1 else 0.0
    np.testing.assert_allclose(found.high, bins.mean(0) + spread, atol=1e-12)


def test_bootstrap_band_is_the_same_every_time_and_about_two_standard_errors_wide() -> None:
    rows = make_rows(np.random.default_rng(0).standard_normal((40, 30)))
    first, again = (curve(rows, "BP", band="bootstrap") for _ in range(2))
    plain = curve(rows, "BP")
    assert first == again
    assert first.y == plain.y
    ratio = (np.array(first.high) - first.low) / (np.array(plain.high) - plain.low)
    assert 1.75 < ratio.mean() < 2.1  # 1.96 for many runs


def test_bootstrap_band_is_nan_where_the_mean_is() -> None:
    table = np.random.default_rng(0).standard_normal((5, 4))
    table[2, 2:] = np.nan
    found = curve(make_rows(table), "BP", band="bootstrap")
    assert np.isfinite([found.low[:2], found.high[:2]]).all()
    assert np.isnan([found.y[2:], found.low[2:], found.high[2:]]).all()


def test_an_unknown_band_is_refused() -> None:
    with pytest.raises(ValueError, match='"standard_error" or "bootstrap"; got \'sd\''):
        curve(make_rows(np.ones((1, 1))), "BP", band="sd")


def make_three(**diverged: dict[int, int]) -> pd.DataFrame:
    values = {"a": 0.3, "b": 0.2, "c": 0.1}
    return make_frame(
        [
            Curve("BP", {"name": name}, {"error": value, "rank": 1.0}, diverged=diverged.get(name, {}))
            for name, value in values.items()
        ],
        runs=3,
        tasks=4,
    )


def test_best_setting_is_lowest_error_or_highest_accuracy_with_all_its_metrics() -> None:
    best = best_setting(make_three(), "error", higher_is_better=False)
    assert set(best["name"]) == {"c"}
    assert set(best["metric"]) == {"error", "rank"}
    assert set(best_setting(make_three(), "error", higher_is_better=True)["name"]) == {"a"}


@pytest.mark.parametrize("higher", [True, False])
def test_a_setting_with_a_diverged_run_loses(higher: bool) -> None:
    frame = make_three(a={0: 3}, c={2: 3})
    assert set(best_setting(frame, "error", higher)["name"]) == {"b"}


def test_when_all_settings_diverged_the_one_that_lasted_longest_is_taken() -> None:
    frame = make_three(a={0: 1}, b={0: 3}, c={0: 2})
    assert set(best_setting(frame, "error", higher_is_better=False)["name"]) == {"b"}


def test_settings_are_ranked_on_common_seeds_and_the_winner_keeps_all_its_runs() -> None:
    difficulty = np.array([0.0, 0.0, 1.0, 1.0])  # of the streams; the further runs of the winner had the hard ones

    def rows(name: str, level: float, runs: int) -> pd.DataFrame:
        return make_rows(np.repeat((level + difficulty[:runs])[:, None], 3, axis=1)).assign(setting=name)

    frame = pd.concat([rows("better", 0.1, 4), rows("worse", 0.2, 2)])
    best = best_setting(frame, "error", higher_is_better=False)
    assert set(best["setting"]) == {"better"}
    assert set(best["seed"]) == {0, 1, 2, 3}


def test_settings_are_ranked_on_common_tasks_and_on_what_they_have_where_none_is_common() -> None:
    rising = make_rows(np.array([[1.0, 2.0, 9.0]])).assign(setting="finished")
    shorter = make_rows(np.array([[1.5, 2.5]])).assign(setting="unfinished")
    assert set(best_setting(pd.concat([rising, shorter]), "error", False)["setting"]) == {"finished"}
    apart = pd.concat([rising, shorter.assign(seed=7)])
    assert set(best_setting(apart, "error", False)["setting"]) == {"unfinished"}


def test_best_of_nothing_is_empty() -> None:
    assert best_setting(make_three(), "accuracy", higher_is_better=True).empty


def test_a_frame_of_a_million_rows_takes_no_time() -> None:
    runs, tasks = 30, 800
    base = make_frame([Curve("BP", {"k": float(k)}, {"m": 1.0}) for k in range(42)], runs=runs, tasks=tasks, noise=1.0)
    assert len(base) > 1_000_000
    start = time.process_time()
    rows = select(base, "m", k=3.0)
    curve(rows, "BP", bin_tasks=5, band="bootstrap")
    per_run(rows, -80, None)
    best_setting(base, "m", higher_is_better=True)
    assert time.process_time() - start < 3  # half a second on a slow core; a Python function for each group took longer


def test_noise_of_made_up_frames_is_shared_by_the_runs_of_a_seed() -> None:
    frame = make_frame([("BP", {}, {"error": 1.0}), ("CBP", {}, {"error": 1.0})], runs=200, tasks=5, noise=1.0)
    first, second = (per_run(select(frame, "error", method=method)) for method in ("BP", "CBP"))
    assert np.corrcoef(first, second)[0, 1] > 0.8
    assert paired(first, second).spread < 0.5 * estimate(first).spread


@pytest.mark.parametrize(
    ("successes", "runs", "low", "high"),
    [(5, 5, 0.4782, 1.0), (0, 5, 0.0, 0.5218), (1, 10, 0.0025, 0.4450), (8, 10, 0.4439, 0.9748)],
)
def test_the_interval_of_a_share_is_exact(successes: int, runs: int, low: float, high: float) -> None:
    """Clopper and Pearson's tables."""
    share = estimate_share([True] * successes + [False] * (runs - successes))
    assert (share.mean, share.runs) == (successes / runs, runs)
    assert (share.low, share.high) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("bound", [0.1, 0.4782, 0.5, 0.9])
def test_p_values_and_intervals_decide_alike(bound: float) -> None:
    rng = np.random.default_rng(3)
    for value in (estimate(rng.normal(0.5, 0.3, 6)), estimate_share(rng.random(6) < 0.6)):
        assert (value.p_above(bound) < 0.025) == (value.low > bound)
        assert (value.p_below(bound) < 0.025) == (value.high < bound)
    assert estimate([1.0, 1.0, 1.0]).p_above(0.5) == 0.0
    assert estimate([1.0, 1.0, 1.0]).p_above(1.0) == 1.0
    assert estimate([]).p_above(0.0) == estimate_share([]).p_below(0.5) == 1.0
