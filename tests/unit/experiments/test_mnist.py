"""The experiments on online permuted MNIST: the paper's numbers, honest claims, figures that survive any frame."""

from __future__ import annotations

import functools
import math

import numpy as np
import pandas as pd
import pytest
import torch

import neoteny
from neoteny.experiments import load
from neoteny.experiments.mnist.charts import short
from neoteny.experiments.scales import CBP_COUNT
from neoteny.nets import MLP, OnlineNorm
from neoteny.problems import PermutedMNIST
from neoteny.report.claim import Claim, Outcome
from neoteny.suite.sweep import SCALES, Setting
from support.mnist_worlds import LOUD, WORLDS

torch.set_num_threads(1)

EXPERIMENTS = {name: load(name) for name in WORLDS}
CLAIMS = [(name, claim) for name, experiment in EXPERIMENTS.items() for claim in experiment.claims]
DECIDED = (Outcome.HOLDS, Outcome.FAILS)
PAPERS_NUMBERS = {
    "quarter-of-units-dead",
    "one-unit-every-five-examples",
    "norm-dies-after-200-tasks",
    "dropout-and-sp-rank-settles",
}
IDS = [f"{name}:{claim.name}" for name, claim in CLAIMS]


@functools.cache
def quiet_frame(experiment: str, tasks: int) -> pd.DataFrame:
    return WORLDS[experiment][0].frame(tasks=tasks)


@functools.cache
def loud_frame(experiment: str, tasks: int) -> pd.DataFrame:
    # Of seventy intervals of 95% a few miss the truth by chance; with this seed none does.
    return WORLDS[experiment][0].frame(tasks=tasks, noise=LOUD, seed=1)


def test_a_changed_frame_is_the_frame_of_the_changed_world() -> None:
    world, cases = WORLDS["mnist-width"]
    changes = cases["every-width-loses"].fails
    order = ["setting", "metric", "seed", "task"]
    changed = world.change(quiet_frame("mnist-width", 40), changes, 40).sort_values(order, ignore_index=True)
    pd.testing.assert_frame_equal(changed, world.frame(changes).sort_values(order, ignore_index=True))


@pytest.mark.parametrize("experiment", WORLDS)
def test_every_claim_has_its_made_up_frames(experiment: str) -> None:
    names = [claim.name for claim in EXPERIMENTS[experiment].claims]
    assert len(set(names)) == len(names)
    assert set(WORLDS[experiment][1]) == set(names)


@pytest.mark.parametrize(("experiment", "claim"), CLAIMS, ids=IDS)
def test_claim_holds_where_it_is_true(experiment: str, claim: Claim) -> None:
    world, cases = WORLDS[experiment]
    case = cases[claim.name]
    verdict = claim.evaluate(world.change(quiet_frame(experiment, case.tasks), case.holds, case.tasks))
    assert verdict.outcome is Outcome.HOLDS, verdict.evidence


@pytest.mark.parametrize(("experiment", "claim"), CLAIMS, ids=IDS)
def test_claim_fails_where_it_is_false(experiment: str, claim: Claim) -> None:
    world, cases = WORLDS[experiment]
    case = cases[claim.name]
    verdict = claim.evaluate(world.change(quiet_frame(experiment, case.tasks), case.fails, case.tasks))
    assert verdict.outcome is Outcome.FAILS, verdict.evidence


@pytest.mark.parametrize(("experiment", "claim"), CLAIMS, ids=IDS)
def test_claim_is_inconclusive_where_noise_hides_it(experiment: str, claim: Claim) -> None:
    case = WORLDS[experiment][1][claim.name]
    verdict = claim.evaluate(loud_frame(experiment, case.tasks))
    assert verdict.outcome is Outcome.INCONCLUSIVE, verdict.evidence


@pytest.mark.parametrize("experiment", WORLDS)
@pytest.mark.parametrize("lack", ["two runs", "one setting", "a diverged run"])
def test_too_few_results_prove_nothing(experiment: str, lack: str) -> None:
    frame = WORLDS[experiment][0].frame(tasks=4, runs=2 if lack == "two runs" else 4)
    if lack == "one setting":
        frame = frame[frame["setting"] == frame["setting"].iloc[0]]
    if lack == "a diverged run":
        frame.loc[frame["seed"] == 1, "value"] = np.nan
    decided = {claim.name for claim in EXPERIMENTS[experiment].claims if claim.evaluate(frame).outcome in DECIDED}
    about_one_setting = {"quarter-of-units-dead"} if lack == "one setting" else set()
    assert decided <= about_one_setting


@pytest.mark.parametrize("experiment", WORLDS)
def test_claims_and_what_is_left_out_are_written_in_full(experiment: str) -> None:
    for claim in EXPERIMENTS[experiment].claims:
        assert claim.statement.endswith(".")
        assert claim.source.startswith(("Figure", "Section", "Appendix"))
    for left in EXPERIMENTS[experiment].unchecked:
        assert left.statement.endswith(".")
        assert left.reason.endswith(".")


@pytest.mark.parametrize("experiment", WORLDS)
@pytest.mark.parametrize("scale", SCALES)
def test_sweeps_are_well_formed_at_every_scale(experiment: str, scale: str) -> None:
    sweep = EXPERIMENTS[experiment].sweep(scale)
    for setting in sweep.settings:
        problem = setting.problem or sweep.problem
        assert isinstance(problem, PermutedMNIST)
        assert problem.source == ("synthetic" if scale == "smoke" else "mnist")
        net = setting.network.make(problem) if scale == "smoke" else None
        assert net is None or isinstance(net, MLP)


def test_an_unknown_scale_is_refused_with_the_nearest() -> None:
    for experiment in EXPERIMENTS.values():
        with pytest.raises(ValueError, match="laptop"):
            experiment.sweep("labtop")


def test_what_the_paper_does_not_say_is_marked_at_its_own_scale() -> None:
    of_all = ["initial weights", "pixels"]
    of_methods = [*of_all, "shrink and perturb", "accuracy of dropout", "maturity threshold", "normalisation"]
    expected = {
        "mnist-step-size": of_all,
        "mnist-width": [*of_all, "step size", "number of runs"],
        "mnist-change-rate": [*of_all, "step size", "number of runs"],
        "mnist-methods": [*of_methods, "strength of L2", "step size of Adam", "replacement rate"],
        "mnist-sensitivity": of_methods,
    }
    for name, experiment in EXPERIMENTS.items():
        sweep = experiment.sweep("paper")
        said = [entry.what for entry in sweep.chosen]
        assert len(set(said)) == len(said)
        assert [words for words in expected[name] if not any(words in what for what in said)] == []
        assert (CBP_COUNT in sweep.chosen) == any(setting.method == "CBP" for setting in sweep.settings)
        assert not any("this scale" in what for what in said)
        assert any("this scale" in entry.what for entry in experiment.sweep("laptop").chosen)


@pytest.mark.parametrize(("experiment", "claim"), CLAIMS, ids=IDS)
def test_claims_on_the_papers_own_numbers_wait_for_its_scale(experiment: str, claim: Claim) -> None:
    verdict = claim.evaluate(quiet_frame(experiment, 40).assign(scale="laptop"))
    waits = "needs the paper's scale" in verdict.evidence
    about_numbers = claim.name in PAPERS_NUMBERS or claim.name.startswith(("middle-", "lower-dropout-"))
    assert waits == about_numbers


def hidden(setting: Setting) -> tuple[int, ...]:
    return dict(setting.network.options)["hidden"]


def test_paper_scale_has_the_papers_numbers() -> None:
    steps = EXPERIMENTS["mnist-step-size"].sweep("paper")
    assert steps.problem == PermutedMNIST(tasks=800, examples_per_task=60_000)
    assert (steps.runs, steps.probe_examples) == (30, 2000)
    assert sorted(setting.details["step_size"] for setting in steps.settings) == [0.001, 0.003, 0.01]
    assert {hidden(setting) for setting in steps.settings} == {(2000, 2000, 2000)}

    width = EXPERIMENTS["mnist-width"].sweep("paper")
    assert width.problem.tasks == 150
    assert [hidden(setting) for setting in width.settings] == [(n, n, n) for n in (100, 1000, 10_000)]

    rate = EXPERIMENTS["mnist-change-rate"].sweep("paper")
    problems = [setting.problem for setting in rate.settings]
    assert [problem.tasks for problem in problems if problem] == [4800, 480, 48]
    assert all(isinstance(each, PermutedMNIST) and each.replacement for each in problems)
    assert {each.tasks * each.examples_per_task for each in problems if isinstance(each, PermutedMNIST)} == {48_000_000}

    methods = EXPERIMENTS["mnist-methods"].sweep("paper")
    assert [s.method for s in methods.settings] == ["BP", "L2", "S&P", "Dropout", "Online norm", "Adam", "CBP"]
    assert methods.runs == 30
    assert {setting.details["step_size"] for setting in methods.settings if setting.method != "Adam"} == {0.003}

    sensitivity = EXPERIMENTS["mnist-sensitivity"].sweep("paper")
    runs = {setting.method: setting.runs or sensitivity.runs for setting in sensitivity.settings}
    assert runs == {"BP": 30, "L2": 10, "S&P": 10, "Dropout": 10, "Online norm": 3, "Adam": 10, "CBP": 30}
    for name, values in {
        "l2": {1e-3, 1e-4, 1e-5},
        "noise_std": {1e-4, 1e-5, 1e-6},
        "dropout": {0.01, 0.03, 0.1},
        "replacement_rate": {1e-4, 1e-5, 1e-6},
    }.items():
        assert {s.details[name] for s in sensitivity.settings if name in s.details} == values


@pytest.mark.parametrize("experiment", WORLDS)
def test_smoke_settings_take_a_step(experiment: str) -> None:
    sweep = EXPERIMENTS[experiment].sweep("smoke")
    for setting in sweep.settings:
        problem = setting.problem or sweep.problem
        nets = [setting.network.make(problem) for _ in range(2)]
        runs = neoteny.stack(nets, *setting.methods, loss=problem.loss, example=torch.zeros(1, 784))
        losses = runs.step(torch.rand(2, 1, 784), torch.tensor([[3], [7]])).losses
        assert torch.isfinite(losses).all(), setting.label


PANELS = {
    "mnist-step-size": ["accuracy", "dead", "weight", "rank"],
    "mnist-width": ["accuracy"],
    "mnist-change-rate": ["accuracy"],
    "mnist-methods": ["accuracy", "dead", "weight", "rank"],
    "mnist-sensitivity": ["accuracy"] * 6,
}


@pytest.mark.parametrize("experiment", WORLDS)
def test_figures_have_the_papers_panels(experiment: str) -> None:
    charts = EXPERIMENTS[experiment].figure(quiet_frame(experiment, 40))
    assert len(charts) == len(PANELS[experiment])
    for chart, word in zip(charts, PANELS[experiment], strict=True):
        assert word in chart.y_label.lower()
        names = [series.name for series in chart.series]
        assert len(names) >= 3
        assert len(set(names)) == len(names)
        assert "5 runs" in chart.caption
        assert "standard error" in chart.caption
        assert "diverged" not in chart.caption
        for series in chart.series:
            assert len(series.x) == 40
            assert all(low <= y <= high for low, y, high in zip(series.low, series.y, series.high, strict=True))


@pytest.mark.parametrize("experiment", WORLDS)
def test_figures_survive_partial_frames(experiment: str) -> None:
    world = WORLDS[experiment][0]
    whole = world.frame(tasks=6)
    broken = whole.copy()
    broken.loc[(broken["seed"] == 1) & (broken["task"] > 3), "value"] = np.nan
    one_setting = whole[whole["setting"] == whole["setting"].iloc[0]].dropna(axis="columns", how="all")
    frames = [
        world.frame(runs=1, tasks=1),
        broken,
        one_setting,
        whole[whole["metric"] == "accuracy"],
        whole[(whole["seed"] > 0) | (whole["task"] < 2)],
        whole.iloc[:0],
    ]
    counts = {len(EXPERIMENTS[experiment].figure(frame)) for frame in frames}
    assert counts == {len(PANELS[experiment])}
    chart = EXPERIMENTS[experiment].figure(broken)[0]
    assert "A line ends where a run diverged." in chart.caption
    cut = chart.series[0]
    assert math.isfinite(cut.y[0])
    assert math.isnan(cut.y[-1])


def test_lines_are_in_the_order_of_the_sweep_however_results_come() -> None:
    frame = quiet_frame("mnist-methods", 40)
    chart = EXPERIMENTS["mnist-methods"].figure(frame.iloc[::-1])[0]
    assert [line.name for line in chart.series] == ["BP", "L2", "S&P", "Dropout", "Online norm", "Adam", "CBP"]


def test_accuracy_is_drawn_in_percent_and_long_curves_in_bins() -> None:
    frame = WORLDS["mnist-width"][0].frame(tasks=450, runs=3)
    chart = EXPERIMENTS["mnist-width"].figure(frame)[0]
    assert 80 < chart.series[0].y[0] < 100
    assert len(chart.series[0].x) == 150
    assert "mean of 3 tasks" in chart.caption


def test_change_rates_are_drawn_over_examples() -> None:
    frame = WORLDS["mnist-change-rate"][0].frame(tasks=10, runs=3)
    chart = EXPERIMENTS["mnist-change-rate"].figure(frame)[0]
    assert [series.x[-1] for series in chart.series] == pytest.approx([0.1, 1.0, 10.0])
    assert chart.series[0].name == "change every 10,000"


def test_legends_show_short_numbers() -> None:
    assert [short(value) for value in (1e-4, 3e-5, 0.003, 0.9999, 100, 1_000_000)] == [
        "1e-4",
        "3e-5",
        "0.003",
        "0.9999",
        "100",
        "1,000,000",
    ]


def test_mlp_hands_decay_rates_to_online_normalisation() -> None:
    net = MLP(4, [3, 3], 2, normalization="online", forward_decay=0.9, backward_decay=0.8)
    norms = [layer for layer in net.children() if isinstance(layer, OnlineNorm)]
    assert [(norm.forward_decay, norm.backward_decay) for norm in norms] == [(0.9, 0.8)] * 2
    with pytest.raises(ValueError, match="backward_decay"):
        MLP(4, [3], 2, normalization="online", backward_decay=1.0)
