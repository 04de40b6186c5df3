"""The experiments on slowly-changing regression: the paper's numbers, claims on made-up frames, any figure."""

from __future__ import annotations

import numpy as np
import pytest

from neoteny import experiments
from neoteny.experiments.regression.settings import ACTIVATIONS, OPTIMIZERS
from neoteny.experiments.regression.utilities import UTILITIES
from neoteny.experiments.scales import pick
from neoteny.methods import ContinualBackprop
from neoteny.problems import SlowlyChangingRegression
from neoteny.report.claim import Outcome
from neoteny.report.trends import (
    first_round,
)
from neoteny.suite.sweep import SCALES, Sweep
from support.experiment_worlds import Change, judge
from support.regression_worlds import ACTIVATION_WORLD, METHOD_WORLD, UTILITY_WORLD, WORLDS, true_frame

EXPERIMENTS = {name: experiments.load(name) for name in WORLDS}


@pytest.mark.parametrize("name", WORLDS)
def test_figures_draw_any_part_of_the_results(name: str) -> None:
    frame = true_frame(name)
    draw = EXPERIMENTS[name].figure
    whole = [chart.title for chart in draw(frame)]
    diverged = frame.assign(value=frame["value"].where((frame["seed"] != 1) | (frame["task"] < 10)))
    unfinished = frame[(frame["seed"] == 0) | (frame["task"] < 13)]
    parts = (frame[frame["seed"] == 0], diverged, unfinished, frame.assign(value=np.nan), frame[frame["task"] == 0])
    for part in parts:
        assert [chart.title for chart in draw(part)] == whole
    some = frame[frame["setting"].isin(sorted(frame["setting"].unique())[::5])]
    for part in (some, frame[frame["method"] == "BP"], frame[frame["method"] == "Linear"], frame.iloc[:0]):
        for chart in draw(part):
            assert chart.series
            assert all(len(series.x) for series in chart.series)


def test_a_rise_is_not_judged_without_the_linear_baseline() -> None:
    for name, claims in {
        "scr-activations": ("relu-loses-plasticity", "adam-loses-plasticity", "adam-is-usually-worse"),
        "scr-cbp": ("cbp-maintains-plasticity-with-sgd", "cbp-maintains-plasticity-with-adam"),
    }.items():
        frame = true_frame(name)
        for claim in claims:
            assert judge(name, claim, frame[frame["method"] != "Linear"]) is Outcome.INCONCLUSIVE


def test_an_error_that_rises_from_above_the_linear_baseline_was_not_low_at_first() -> None:
    change = Change({"activation": "relu", "optimizer": "SGD", "step_size": 0.003}, (1.2, 1.2, 1.4))
    assert judge("scr-activations", "relu-loses-plasticity", ACTIVATION_WORLD.frame(change)) is Outcome.FAILS


def test_the_linear_level_is_judged_on_the_mean_over_step_sizes() -> None:
    one_low = Change({"activation": "relu", "optimizer": "SGD", "step_size": 0.001}, (0.8, 0.8, 0.85, 0.88))
    claim = "relu-and-tanh-fall-to-the-linear-level"
    assert judge("scr-activations", claim, ACTIVATION_WORLD.frame(one_low)) is Outcome.HOLDS


def test_what_is_chosen_is_said_where_it_is_true() -> None:
    utilities, methods = EXPERIMENTS["scr-utilities"], EXPERIMENTS["scr-cbp"]
    for experiment in (utilities, methods):
        runs = {scale: [one for one in experiment.sweep(scale).chosen if one.what == "runs"] for scale in SCALES}
        assert {scale: len(found) for scale, found in runs.items()} == {"smoke": 0, "laptop": 0, "paper": 1}
        assert not any("step sizes at the laptop" in one.what for one in experiment.sweep("laptop").chosen)
    assert any("0.03, 0.01, 0.003" in one.value for one in EXPERIMENTS["scr-activations"].sweep("laptop").chosen)
    assert any("leaky" in one.what for one in methods.sweep("paper").chosen)
    assert not any("leaky" in one.what for one in methods.sweep("laptop").chosen)


def test_the_first_round_is_the_seeds_that_all_settings_have() -> None:
    frame = UTILITY_WORLD.frame()
    winner = frame["setting"] == frame["setting"].iloc[0]
    assert set(first_round(frame[winner | (frame["seed"] < 3)])["seed"]) == {0, 1, 2}
    apart = frame[winner == (frame["seed"] < 3)]
    assert first_round(apart) is apart


def test_the_figure_of_activations_has_the_papers_panels_and_bins() -> None:
    charts = EXPERIMENTS["scr-activations"].figure(ACTIVATION_WORLD.frame())
    assert [chart.title for chart in charts] == list(ACTIVATIONS.values()) * 2
    assert len({chart.group for chart in charts}) == 2
    names = [series.name for series in charts[0].series]
    assert names == ["step size 0.01", "step size 0.003", "step size 0.001", "linear baseline"]
    # 30 tasks of 10,000 examples in bins of 40,000.
    assert list(charts[0].series[0].x[:2]) == [40_000, 80_000]
    assert len(charts[0].series[0].x) == 7
    assert "40,000 examples" in charts[0].caption
    assert "8 runs" in charts[0].caption


def test_the_figure_of_methods_shows_each_at_its_best_setting() -> None:
    charts = EXPERIMENTS["scr-cbp"].figure(METHOD_WORLD.frame())
    assert [series.name for series in charts[0].series] == [
        "BP", "L2 0.0001", "S&P 0.0001 / 0.0001", "CBP 0.0001", "linear baseline",
    ]  # fmt: skip


def test_the_figure_of_utilities_is_over_replacement_rates() -> None:
    rates, over_time = EXPERIMENTS["scr-utilities"].figure(UTILITY_WORLD.frame())
    assert rates.log_x
    assert [series.name for series in rates.series] == [*UTILITIES.values(), "BP"]
    assert list(rates.series[0].x) == [1e-4, 1e-2]
    assert rates.series[0].y[0] == pytest.approx(0.7, abs=0.01)
    assert len(over_time.series) == 7


def test_activations_at_the_papers_scale_have_the_papers_numbers() -> None:
    sweep = EXPERIMENTS["scr-activations"].sweep("paper")
    assert sweep.problem == SlowlyChangingRegression(300, 10_000, 21, 15, 100, 0.7)
    assert sweep.runs == 100
    bp = [setting for setting in sweep.settings if setting.method == "BP" and setting.details["optimizer"] == "SGD"]
    assert {setting.details["step_size"] for setting in bp} == {0.01, 0.003, 0.001}
    assert {setting.details["activation"] for setting in bp} == set(ACTIVATIONS)
    assert len(bp) == 18
    assert all(dict(setting.network.options)["hidden"] == (5,) for setting in bp)


def test_utilities_at_the_papers_scale_are_the_six_with_tanh_and_adam() -> None:
    sweep = EXPERIMENTS["scr-utilities"].sweep("paper")
    cbp = [setting for setting in sweep.settings if setting.method == "CBP"]
    assert len(cbp) == 30
    for setting in cbp:
        adam, method = setting.methods
        assert isinstance(method, ContinualBackprop)
        assert (type(adam).__name__, adam.hyperparameters()["step_size"]) == ("Adam", 0.01)
        assert dict(setting.network.options)["activation"] == "tanh"
        assert method.utility == setting.details["utility"]
        assert method.replacement_rate == setting.details["replacement_rate"]


def test_methods_are_compared_for_all_activations_and_both_optimizers() -> None:
    sweep = EXPERIMENTS["scr-cbp"].sweep("paper")
    for method in ("BP", "L2", "S&P", "CBP"):
        mine = [setting.details for setting in sweep.settings if setting.method == method]
        pairs = {(details["activation"], details["optimizer"]) for details in mine}
        assert pairs == {(activation, optimizer) for activation in ACTIVATIONS for optimizer in OPTIMIZERS}
    assert sweep.selection is not None
    assert sweep.runs + sweep.selection.more_runs == 100
    longer = [setting for setting in sweep.settings if setting.more_runs]
    assert {setting.method for setting in longer} == {"CBP", "Linear"}
    assert {setting.details.get("activation") for setting in longer} == {None, *ACTIVATIONS}
    assert {sweep.runs + (setting.more_runs or 0) for setting in longer} == {400}


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("scale", SCALES)
def test_every_setting_has_the_hyperparameters_its_details_tell(name: str, scale: str) -> None:
    sweep: Sweep = EXPERIMENTS[name].sweep(scale)
    named = {
        "step_size": "step_size",
        "l2": "strength",
        "noise_std": "noise_std",
        "replacement_rate": "replacement_rate",
    }
    for setting in sweep.settings:
        values = {key: value for method in setting.methods for key, value in method.hyperparameters().items()}
        for detail, hyperparameter in named.items():
            if detail in setting.details:
                assert values[hyperparameter] == setting.details[detail]
        assert type(setting.methods[0]).__name__ == setting.details["optimizer"]
    assert all(chosen.value and chosen.reason for chosen in sweep.chosen)


def test_an_unknown_scale_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="Did you mean 'laptop'"):
        EXPERIMENTS["scr-cbp"].sweep("laptob")
    assert pick("smoke", smoke=1, laptop=2, paper=3) == 1
