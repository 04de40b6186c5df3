"""The experiments on Slippery Ant: the paper's numbers, claims on made-up frames, pairing by friction, any figure."""

from __future__ import annotations

from typing import cast

import numpy as np
import pandas as pd
import pytest

from neoteny import experiments
from neoteny.experiments.ant.charts import CHANGES
from neoteny.experiments.ant.settings import DECAYS, METHODS, NOISES
from neoteny.experiments.ant.sweep import choose_best
from neoteny.methods import L2, Adam, ContinualBackprop, ShrinkAndPerturb
from neoteny.problems import SlipperyAnt
from neoteny.report.claim import Outcome
from neoteny.report.statistics import select
from neoteny.suite.rl.ppo import PPO
from neoteny.suite.sweep import SCALES, Setting
from support.ant_worlds import METHODS_WORLD, POINTS, SWEEP_WORLD, WORLDS, add_curves, true_frame
from support.experiment_worlds import Change, judge

EXPERIMENTS = {name: experiments.load(name) for name in WORLDS}


def add_frictions(frame: pd.DataFrame, size: float) -> pd.DataFrame:
    """The frame with something added to every seed's tasks, the same for all methods, as frictions do."""
    seeds, tasks = frame["seed"].to_numpy(), frame["task"].to_numpy()
    effects = size * np.random.default_rng(0).standard_normal((seeds.max() + 1, tasks.max() + 1))
    return frame.assign(value=frame["value"] + effects[seeds, tasks])


def test_methods_are_compared_over_the_same_frictions() -> None:
    frame = add_curves(add_frictions(METHODS_WORLD.frame(), size=2000.0))
    for claim in ("continual-ppo-is-best", "l2-is-better-than-ppo", "continual-ppo-loses-less-than-ppo"):
        assert judge("ant-methods", claim, frame) is Outcome.HOLDS
    # Of one method alone, six runs cannot tell a loss from other frictions.
    assert judge("ant-methods", "ppo-falls-over-tasks", frame) is Outcome.INCONCLUSIVE


def test_what_is_common_to_the_tasks_with_drawn_frictions_is_no_loss() -> None:
    harder = METHODS_WORLD.frame(Change({"method": "PPO"}, (1000.0,)))
    harder = harder.assign(value=harder["value"] + 500.0 * (harder["task"] == 0))
    assert judge("ant-methods", "ppo-ends-below-its-first-task", harder) is Outcome.HOLDS
    assert judge("ant-methods", "ppo-falls-over-tasks", harder) is Outcome.INCONCLUSIVE


def test_a_share_of_a_return_below_zero_is_not_judged() -> None:
    for knots in ((-500.0,), (-500.0, -5000.0)):
        frame = add_curves(METHODS_WORLD.frame(Change({"method": "Continual PPO"}, knots)))
        assert judge("ant-methods", "continual-ppo-almost-keeps-its-performance", frame) is Outcome.INCONCLUSIVE


def test_returns_below_zero_are_compared_like_others() -> None:
    frame = true_frame("ant-methods")
    lower = frame.assign(value=frame["value"] - 10_000.0)
    for claim in EXPERIMENTS["ant-methods"].claims:
        if "almost" not in claim.name:
            assert claim.evaluate(lower).outcome is Outcome.HOLDS


def test_noise_is_chosen_at_the_weight_decay_that_is_best_for_l2() -> None:
    better_elsewhere = Change({"method": "PPO+S&P", "l2": 1e-6, "noise_std": 1e-6}, (2100.0,))
    best = choose_best(SWEEP_WORLD.frame(better_elsewhere), "PPO+S&P")
    assert best[["l2", "noise_std"]].drop_duplicates().to_numpy().tolist() == [[1e-4, 1e-5]]
    without_l2 = SWEEP_WORLD.frame(better_elsewhere)
    best = choose_best(without_l2[without_l2["method"] != "PPO+L2"], "PPO+S&P")
    assert best[["l2", "noise_std"]].drop_duplicates().to_numpy().tolist() == [[1e-6, 1e-6]]


def test_no_run_chooses_the_weight_decay_at_which_it_is_judged() -> None:
    frame = SWEEP_WORLD.frame(Change({"method": "PPO+S&P", "l2": 1e-6, "noise_std": 1e-6}, (2100.0,)))
    seeds = sorted(frame["seed"].unique())
    # With every second run another weight decay is best for L2: the other half must be judged at that one.
    lifted = (frame["method"] == "PPO+L2") & (frame["l2"] == 1e-6) & frame["seed"].isin(seeds[::2])
    frame = frame.assign(value=frame["value"].where(~lifted, frame["value"] + 10_000.0))
    best = choose_best(frame, "PPO+S&P", by_others=True)
    assert set(best["method"]) == {"PPO+S&P"}
    taken = {seed: set(rows["l2"]) for seed, rows in best.groupby("seed")}
    assert taken == {seed: {1e-4} if number % 2 == 0 else {1e-6} for number, seed in enumerate(seeds)}


@pytest.mark.parametrize("name", WORLDS)
def test_figures_draw_any_part_of_the_results(name: str) -> None:
    frame = true_frame(name)
    draw = EXPERIMENTS[name].draw
    whole = [chart.title for chart in draw(frame)]
    diverged = frame.assign(value=frame["value"].where((frame["seed"] != 1) | (frame["task"] < 4)))
    unfinished = frame[(frame["seed"] == 0) | (frame["task"] < 4)]
    parts = (frame[frame["seed"] == 0], diverged, unfinished, frame.assign(value=np.nan), frame[frame["task"] == 0])
    for part in parts:
        assert [chart.title for chart in draw(part)] == whole
    some = frame[frame["setting"].isin(sorted(frame["setting"].unique())[::2])]
    for part in (some, frame[frame["method"] == "PPO"], frame[frame["metric"] == "return"], frame.iloc[:0]):
        for chart in draw(part):
            assert chart.series
            assert all(len(series.x) for series in chart.series)


def test_the_figure_of_methods_has_the_saw_both_means_and_whatever_was_measured() -> None:
    frame = true_frame("ant-methods")
    measured = [frame[frame["metric"] == "return"].assign(metric=metric, value=0.25) for metric in MEASURED]
    charts = EXPERIMENTS["ant-methods"].draw(pd.concat([frame, *measured]))
    saw, mean, middle, *others = charts
    assert [series.name for series in saw.series] == [*METHODS, CHANGES]
    assert list(saw.series[0].x[:2]) == pytest.approx([0.2, 0.4])
    assert saw.series[0].x[-1] == pytest.approx(100.0)
    comb = saw.series[-1]
    teeth = [x for x, y in zip(comb.x, comb.y, strict=True) if y > min(comb.y)]
    assert teeth == pytest.approx([10.0 * task for task in range(1, 10)])
    assert max(comb.y) < min(min(series.low) for series in saw.series[:-1])
    assert "10,000,000 steps" in saw.caption
    for chart, value in ((mean, 2200.0), (middle, 2200.0)):
        assert [series.name for series in chart.series] == list(METHODS)
        assert list(chart.series[-1].x) == [task + 1.0 for task in range(10)]
        assert chart.series[-1].y[0] == pytest.approx(value, abs=20.0)
        assert all(low < y < high for low, y, high in zip(*(cast(list, band(chart)) for band in BANDS), strict=True))
    assert "Continual PPO 21" in middle.caption
    assert {chart.title: chart.series[0].y[0] for chart in others} == {
        "Reward per step": 0.25,
        "Length of episodes": 0.25,
        "Dead units": 25.0,
        "Saturated units": 25.0,
        "Effective rank": 0.25,
        "Weight magnitude": 0.25,
        "Noise of the policy": 0.25,
        "What the value explains": 0.25,
    }
    assert len({chart.group for chart in charts}) == 4


MEASURED = (
    "reward_per_step", "episode_length", "dead_units", "saturated_units", "effective_rank", "weight_magnitude",
    "policy_std", "explained_variance",
)  # fmt: skip
BANDS = (lambda chart: chart.series[0].low, lambda chart: chart.series[0].y, lambda chart: chart.series[0].high)


def test_the_figure_of_the_search_is_over_each_hyperparameter_with_the_level_of_ppo() -> None:
    decay, noise, pairs, *trends = EXPERIMENTS["ant-sweep"].draw(true_frame("ant-sweep"))
    assert [series.name for series in decay.series] == ["PPO+L2", "PPO"]
    assert list(decay.series[0].x) == sorted(DECAYS)
    assert decay.series[0].y[2] == pytest.approx(1700.0, abs=20.0)
    assert [series.name for series in noise.series[:-1]] == [f"weight decay {l2:g}" for l2 in DECAYS]
    assert list(noise.series[0].x) == sorted(NOISES)
    assert [(series.name, list(series.x)) for series in pairs.series[:-1]] == [
        ("replacement rate 0.001", [0.1, 0.5]),
        ("replacement rate 0.0001", [0.5, 5.0]),
        ("replacement rate 1e-05", [10.0, 50.0]),
    ]
    assert all(chart.log_x and chart.markers for chart in (decay, noise, pairs))
    assert [series.name for series in trends[1].series] == [
        "PPO", "PPO+L2 (0.0001)", "PPO+S&P (0.0001 / 1e-05)", "Continual PPO (0.0001 / 5000)",
    ]  # fmt: skip


def test_the_papers_scale_has_the_papers_numbers() -> None:
    for name, runs in (("ant-methods", 100), ("ant-utilities", 100), ("ant-sweep", 10)):
        sweep = EXPERIMENTS[name].sweep("paper")
        assert sweep.problem == SlipperyAnt(10, "pybullet", 10_000_000, (1e-4, 1e4), None, "step", 1000)
        assert sweep.runs == runs
        for setting in sweep.settings:
            assert setting.agent == PPO(4096, 10, 128, 0.95, 0.99, 0.2)
            assert setting.methods[0] == Adam(1e-4, (0.9, 0.999))
            network = setting.network.make(sweep.problem)
            shapes = {name: tuple(tensor.shape) for name, tensor in network.named_parameters() if tensor.dim() == 2}
            assert list(shapes.values()) == [(256, 28), (256, 256), (8, 256), (256, 28), (256, 256), (1, 256)]


def test_the_grids_at_the_papers_scale_are_those_of_the_appendix() -> None:
    settings = EXPERIMENTS["ant-sweep"].sweep("paper").settings
    assert {cast(L2, one.methods[1]).strength for one in of(settings, "PPO+L2")} == {1e-3, 1e-4, 1e-5, 1e-6}
    pairs = [cast(ContinualBackprop, one.methods[1]) for one in of(settings, "Continual PPO")]
    assert {(one.replacement_rate, one.maturity_threshold) for one in pairs} == {
        (1e-3, 100), (1e-3, 500), (1e-4, 5000), (1e-4, 500), (1e-5, 10_000), (1e-5, 50_000),
    }  # fmt: skip
    assert {one.details["l2"] for one in of(settings, "PPO+S&P")} == set(DECAYS)
    assert len(settings) == 1 + 4 + 12 + 6


def of(settings: tuple[Setting, ...], method: str) -> list[Setting]:
    return [setting for setting in settings if setting.method == method]


def test_methods_run_with_a_setting_of_the_grid_and_shrink_and_perturb_with_the_decay_of_l2() -> None:
    for scale in ("laptop", "paper"):
        searched = {one.label for one in EXPERIMENTS["ant-sweep"].sweep(scale).settings}
        settings = EXPERIMENTS["ant-methods"].sweep(scale).settings
        assert {one.label for one in settings} <= searched
        assert [one.method for one in settings] == list(METHODS)
        assert settings[1].details["l2"] == settings[2].details["l2"]


def test_utilities_differ_in_the_utility_alone() -> None:
    for scale in SCALES:
        ppo, *others = EXPERIMENTS["ant-utilities"].sweep(scale).settings
        methods = [cast(ContinualBackprop, setting.methods[1]) for setting in others]
        assert [method.utility for method in methods] == ["overall", "mean_corrected_contribution"]
        assert len({(method.replacement_rate, method.maturity_threshold) for method in methods}) == 1
        assert ppo.methods == others[0].methods[:1]


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("scale", SCALES)
def test_every_setting_has_the_hyperparameters_its_details_tell(name: str, scale: str) -> None:
    sweep = EXPERIMENTS[name].sweep(scale)
    kinds = {"PPO+L2": L2, "PPO+S&P": ShrinkAndPerturb, "Continual PPO": ContinualBackprop}
    for setting in sweep.settings:
        assert [type(method) for method in setting.methods[1:]] == [
            kind for method, kind in kinds.items() if method == setting.method
        ]
        values = {key: value for method in setting.methods for key, value in method.hyperparameters().items()}
        for detail, value in setting.details.items():
            assert values[{"l2": "strength"}.get(detail, detail)] == value
    assert all(chosen.value and chosen.reason for chosen in sweep.chosen)
    assert len({chosen.what for chosen in sweep.chosen}) == len(sweep.chosen)
    problem = sweep.problem
    assert problem.steps_per_task // sweep.points_per_task >= cast(SlipperyAnt, problem).episode_steps


def test_what_is_chosen_is_said_where_it_is_true() -> None:
    said = {scale: " ".join(one.value for one in EXPERIMENTS["ant-methods"].sweep(scale).chosen) for scale in SCALES}
    for scale in ("laptop", "paper"):
        _, _, perturbed, continual = EXPERIMENTS["ant-methods"].sweep(scale).settings
        assert f"weight decay {short(perturbed.details['l2'])}" in said[scale]
        assert f"deviation {short(perturbed.details['noise_std'])}" in said[scale]
        assert f"replacement rate {short(continual.details['replacement_rate'])}" in said[scale]
        assert f"threshold {continual.details['maturity_threshold']}" in said[scale]
    assert "200,000 steps" in said["laptop"]
    assert "200,000 steps" not in said["paper"]
    noise = [one.value for one in EXPERIMENTS["ant-sweep"].sweep("paper").chosen if one.what.startswith("noise")]
    assert all(short(value) in noise[0] for value in NOISES)


def short(value: object) -> str:
    mantissa, exponent = f"{float(cast(float, value)):e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def test_smoke_runs_are_a_few_thousand_steps_in_all() -> None:
    for name in WORLDS:
        sweep = EXPERIMENTS[name].sweep("smoke")
        steps = sweep.problem.tasks * sweep.problem.steps_per_task
        assert len(sweep.settings) * sweep.runs * steps <= 2**14


def test_curves_of_made_up_frames_keep_the_means_of_their_tasks() -> None:
    frame = true_frame("ant-methods")
    curves = select(frame, "return.curve", method="PPO")
    means = curves.groupby([curves["seed"], curves["task"] // POINTS])["value"].mean().to_numpy()
    assert means == pytest.approx(select(frame, "return", method="PPO")["value"].to_numpy())
