"""Standings of many methods on one problem: against plain loops, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from neoteny.report.field import (
    COLUMNS,
    choose_settings,
    compare,
    find_standings,
    judged_values,
    rank_methods,
    read_scores,
    split_seeds,
)
from reference import field_standings as naive
from support.frames import Curve, make_frame

TUNING, JUDGING = [0, 1], [2, 3, 4, 5, 6]


def make_runs(seed: int, methods: int = 5, settings: int = 4, digits: int = 2) -> naive.Runs:
    """Values with ties. The first setting of each method and one other have judging seeds."""
    generator = np.random.default_rng(seed)
    runs: naive.Runs = {}
    for m in range(methods):
        for s in range(settings):
            seeds = [*TUNING, *JUDGING] if s in (0, 1 + m % (settings - 1)) else TUNING
            values = np.round(0.5 + 0.03 * m + 0.05 * generator.standard_normal(len(seeds)), digits)
            runs[f"method {m}", f"method {m} ({s})"] = dict(zip(seeds, values.tolist(), strict=True))
    return runs


def as_scores(runs: naive.Runs) -> pd.DataFrame:
    rows = [
        (method, "published" if setting.endswith("(0)") else "searched", setting, seed, value)
        for (method, setting), values in runs.items()
        for seed, value in values.items()
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_standings_are_those_of_plain_loops(seed: int, higher: bool) -> None:
    runs = make_runs(seed)
    judged = {setting for (_, setting), values in runs.items() if 2 in values}
    best = naive.best_settings(runs, TUNING, judged, higher)
    values = {method: runs[method, setting] for method, setting in best.items()}
    ranks = naive.ranks(values, JUDGING, higher)
    standings = find_standings(as_scores(runs), ("method 0", "method 3", "absent"), higher)
    assert sorted(one.method for one in standings) == sorted(best)
    means = [one.rank.mean for one in standings]
    assert means == sorted(means)
    for one in standings:
        assert one.setting == best[one.method]
        for found, expected in (
            (one.value, [values[one.method][each] for each in JUDGING]),
            (one.published, [runs[one.method, f"{one.method} (0)"][each] for each in JUDGING]),
            (one.rank, ranks[one.method]),
        ):
            assert (found.mean, found.low, found.high) == pytest.approx(naive.interval(expected), abs=1e-12)
    for baseline in ("method 0", "method 3"):
        others = [one for one in standings if one.method != baseline]
        gains = [naive.gain(values[one.method], values[baseline], JUDGING, higher) for one in others]
        corrected = naive.holm([naive.two_sided_p(each) for each in gains])
        for one, gain, p in zip(others, gains, corrected, strict=True):
            found = one.gains[baseline]
            assert (found.mean, found.low, found.high) == pytest.approx(naive.interval(gain), abs=1e-12)
            assert one.certain[baseline] == (p < 0.05)
        own = next(one for one in standings if one.method == baseline)
        assert baseline not in own.gains


def test_some_gain_is_certain_before_the_correction_and_not_after_it() -> None:
    """Four methods of which one is a little better: alone it counts, among four it does not."""
    base = pd.Series([0.5] * 6)
    noise = pd.Series([0.01, -0.01, 0.02, -0.02, 0.015, -0.015])
    values = {"plain": base, "one": base + 0.02 + noise, "two": base + noise, "three": base - noise}
    values["four"] = base + noise.iloc[::-1].to_numpy()
    assert compare({"plain": base, "one": values["one"]}, "plain", True)["one"][1]
    assert not compare(values, "plain", True)["one"][1]


def test_judging_seeds_do_not_choose() -> None:
    """A setting that is best on judging seeds alone is not taken."""
    runs: naive.Runs = {
        ("A", "A (0)"): {0: 0.9, 1: 0.9, 2: 0.1, 3: 0.1},
        ("A", "A (1)"): {0: 0.8, 1: 0.8, 2: 1.0, 3: 1.0},
        ("A", "A (2)"): {0: 1.0, 1: 1.0},  # better still, but it was never judged
        ("A", "A (3)"): {0: 0.1, 1: 0.1},
    }
    scores = as_scores(runs)
    assert split_seeds(scores) == ([0, 1], [2, 3])
    assert choose_settings(scores, True) == {"A": "A (0)"}
    assert judged_values(scores, "A (0)").to_dict() == {2: 0.1, 3: 0.1}


def test_a_setting_that_diverged_in_tuning_is_the_last_choice() -> None:
    runs: naive.Runs = {
        ("A", "A (0)"): {0: 0.9, 1: math.nan, 2: 0.9, 3: 0.9},
        ("A", "A (1)"): {0: 0.1, 1: 0.1, 2: 0.1, 3: 0.1},
        ("B", "B (0)"): {0: math.nan, 1: 0.5, 2: 0.5, 3: 0.5},
        ("B", "B (1)"): {0: 0.5, 1: math.nan},
    }
    assert choose_settings(as_scores(runs), True) == {"A": "A (1)", "B": "B (0)"}


def test_a_judging_run_that_diverged_is_last_and_leaves_no_mean() -> None:
    runs: naive.Runs = {
        ("A", "A (0)"): {0: 0.9, 1: 0.9, 2: 0.9, 3: math.nan},
        ("A", "A (1)"): {0: 0.1, 1: 0.1},
        ("B", "B (0)"): {0: 0.5, 1: 0.5, 2: 0.5, 3: 0.5},
    }
    a, b = sorted(find_standings(as_scores(runs), ("B",), True), key=lambda one: one.method)
    assert (a.diverged, b.diverged) == (1, 0)
    assert math.isnan(a.value.mean)
    assert math.isnan(a.gains["B"].mean)
    assert not a.certain["B"]
    assert (a.rank.mean, b.rank.mean) == (1.5, 1.5)
    table = rank_methods({"a": pd.Series([1.0, math.nan]), "b": pd.Series([0.0, 0.0])}, True)
    assert table.to_numpy().tolist() == [[1.0, 2.0], [2.0, 1.0]]


def test_without_judging_runs_there_are_no_standings() -> None:
    runs = {key: {seed: value for seed, value in values.items() if seed < 2} for key, values in make_runs(1).items()}
    assert find_standings(as_scores(runs), ("method 0",), True) == []
    assert find_standings(read_scores(make_frame([Curve("A", {}, {"error": 1.0})]), "accuracy"), (), True) == []


def test_scores_are_means_over_tasks_and_nan_where_a_run_diverged() -> None:
    frame = make_frame([Curve("A", {"role": "published"}, {"error": 1.0})])
    rows = (frame["seed"] == 0) & (frame["metric"] == "error")
    frame.loc[rows & (frame["task"] == frame["task"].max()), "value"] = math.nan
    scores = read_scores(frame, "error").set_index("seed")["value"]
    assert math.isnan(scores[0])
    kept = frame[(frame["seed"] == 1) & (frame["metric"] == "error")]["value"]
    assert scores[1] == pytest.approx(kept.mean())
