"""Experiment files in examples/ that judge the suite's claims on their own runs: the same checks, on the right rows."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from neoteny.experiments import load
from neoteny.experiments.mnist import sensitivity as mnist_sensitivity
from neoteny.experiments.variants.reuse import borrow, set_aside
from neoteny.report.claim import Outcome
from neoteny.suite.identity import setting_digest
from neoteny.suite.stacks import runs_of
from support.frames import Curve, make_frame
from support.mnist_worlds import QUIET, WORLDS

EXAMPLES = Path(__file__).parents[3] / "examples"
HUNDRED, CHANGE, WIDE = (
    load(str(EXAMPLES / f"{name}.py")) for name in ("hundred_units", "hundred_units_change", "two_thousand_units")
)


def judge(experiment, frame: pd.DataFrame, lender: str = "") -> dict[str, Outcome]:
    """Outcomes by name, of all claims or of those of one experiment of the suite."""
    claims = [claim for claim in experiment.claims if claim.name.startswith(lender)]
    verdicts = {claim.name: experiment.judge(claim, frame) for claim in claims}
    raised = [f"{name}: {verdict.evidence}" for name, verdict in verdicts.items() if "raised" in verdict.evidence]
    assert not raised
    return {name: verdict.outcome for name, verdict in verdicts.items()}


def accuracy(method: str, level: float, **details: float) -> Curve:
    return Curve(method, {"step_size": 0.003, **details}, {"accuracy": level})


@pytest.mark.parametrize("experiment", [HUNDRED, CHANGE, WIDE], ids=lambda experiment: experiment.name)
def test_borrowed_names_are_those_of_the_suite_and_unique(experiment) -> None:
    names = [claim.name for claim in experiment.claims]
    assert len(set(names)) == len(names)
    for lender, _, name in (name.partition("/") for name in names if "/" in name):
        assert name in [claim.name for claim in load(lender).claims]


def test_hundred_units_judges_or_sets_aside_every_claim_of_three_experiments() -> None:
    lent = [claim for name in ("mnist-step-size", "mnist-methods", "mnist-sensitivity") for claim in load(name).claims]
    assert len(HUNDRED.claims) + len(HUNDRED.unchecked) == len(lent)
    assert {each.statement for each in (*HUNDRED.claims, *HUNDRED.unchecked)} == {each.statement for each in lent}


@pytest.mark.parametrize("lender", ["mnist-step-size", "mnist-methods", "mnist-sensitivity"])
def test_a_world_in_which_the_suites_claims_hold_is_one_in_which_the_borrowed_hold(lender: str) -> None:
    """Also those limited to the paper's scale, whatever the folder's scale is called."""
    world, cases = WORLDS[lender]
    outcomes = judge(HUNDRED, world.frame(noise=QUIET, scale="laptop"), lender)
    plain = [name for name, case in cases.items() if not case.holds and case.tasks == 40]
    decided = [outcomes[f"{lender}/{name}"] for name in plain if f"{lender}/{name}" in outcomes]
    assert len(decided) > 10
    assert set(decided) == {Outcome.HOLDS}


def test_a_borrowed_claim_fails_where_the_suites_fails() -> None:
    world, cases = WORLDS["mnist-methods"]
    frame = world.frame(cases["cbp-best"].fails, noise=QUIET, scale="laptop")
    assert judge(HUNDRED, frame, "mnist-methods/cbp-best") == {"mnist-methods/cbp-best": Outcome.FAILS}


def test_methods_are_compared_at_their_best_settings_but_bp_and_dropout_at_the_papers() -> None:
    curves = [
        Curve("BP", {"step_size": 0.001}, {"accuracy": 0.99}),
        Curve("BP", {"step_size": 0.003}, {"accuracy": 0.80}),
        accuracy("L2", 0.90, l2=1e-4),
        accuracy("L2", 0.95, l2=1e-3),
        accuracy("S&P", 0.91, l2=1e-4, noise_std=1e-5),
        accuracy("S&P", 0.96, l2=1e-3, noise_std=1e-6),
        accuracy("Dropout", 0.85, dropout=0.01),
        accuracy("Dropout", 0.70, dropout=0.1),
    ]
    frame = make_frame(curves, runs=3, tasks=20, noise={"accuracy": 0.001}, scale="laptop")
    charts = HUNDRED.draw(frame)
    assert "L2 0.001, S&P, noise 1e-6 and shrinkage 0.001, Dropout 0.1." in charts[0].caption
    lines = {series.name: series.y[-1] for series in charts[0].series}
    assert {name: round(value) for name, value in lines.items()} == {"BP": 80, "L2": 95, "S&P": 96, "Dropout": 70}


@pytest.mark.parametrize("missing", [["S&P", "Adam"], ["L2", "S&P", "Dropout", "Online norm", "Adam", "CBP"]])
def test_methods_that_have_not_run_leave_claims_open_without_an_error(missing: list[str]) -> None:
    frame = WORLDS["mnist-sensitivity"][0].frame(noise=QUIET, scale="laptop")
    frame = frame[~frame["method"].isin(missing)].dropna(axis=1, how="all")
    outcomes = judge(HUNDRED, frame)
    assert outcomes["mnist-methods/no-known-method-keeps-plasticity"] is Outcome.INCONCLUSIVE
    assert HUNDRED.draw(frame)


def test_one_setting_of_normalisation_that_has_not_run_leaves_it_open_whether_rates_move_its_best() -> None:
    world = WORLDS["mnist-sensitivity"][0]
    frame = world.frame(noise=QUIET)
    level = frame[(frame["method"] == "Online norm") & (frame["metric"] == "accuracy")]["setting"].unique()
    (claim,) = (claim for claim in mnist_sensitivity.claims if claim.name == "norm-rates-move-peak")
    same = frame.assign(value=frame["value"].where(~frame["setting"].isin(level), 1.0 - 0.01 * frame["task"]))
    assert claim.judge(same).outcome is Outcome.FAILS
    assert claim.judge(same[same["setting"] != level[0]]).outcome is Outcome.INCONCLUSIVE


def test_the_rate_of_change_is_judged_under_either_name_of_the_scale() -> None:
    world, _ = WORLDS["mnist-change-rate"]
    for scale in ("laptop", "paper"):
        assert set(judge(CHANGE, world.frame(noise=QUIET, scale=scale)).values()) == {Outcome.HOLDS}
    (chart,) = CHANGE.draw(world.frame(noise=QUIET, scale="laptop"))
    assert next(series.name for series in chart.series) == "change every 10,000"


def test_the_wide_network_is_judged_at_the_step_sizes_it_has() -> None:
    steps = WORLDS["mnist-step-size"][0].frame(noise=QUIET, scale="laptop")
    methods = WORLDS["mnist-methods"][0].frame(noise=QUIET, scale="laptop")
    frame = pd.concat([steps[steps["step_size"] != 0.001], methods[methods["method"].isin(["L2", "CBP"])]])
    assert set(judge(WIDE, frame).values()) == {Outcome.HOLDS}


def test_the_narrow_networks_have_the_papers_values_and_run_under_any_name_of_the_scale() -> None:
    for experiment in (HUNDRED, CHANGE, WIDE):
        laptop, paper = experiment.make_sweep("laptop"), experiment.make_sweep("paper")
        digests = [
            [setting_digest(run.configuration) for run in runs_of(sweep, sweep.settings, "reference")]
            for sweep in (laptop, paper)
        ]
        assert digests[0] == digests[1]
    wide = load("mnist-sensitivity").make_sweep("paper")
    labels = {setting.label for setting in HUNDRED.make_sweep("paper").settings}
    assert {setting.label for setting in wide.settings} <= labels
    methods = dict.fromkeys(setting.method for setting in HUNDRED.make_sweep("paper").settings)
    assert list(methods) == ["BP", "L2", "S&P", "Dropout", "Online norm", "Adam", "CBP"]


def test_an_unknown_claim_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"no claim 'cbp-bset'\. Did you mean 'cbp-best'"):
        borrow("mnist-methods", only=["cbp-bset"])
    with pytest.raises(ValueError, match="no claim 'nothing'"):
        set_aside("mnist-methods", ["nothing"], "a reason")
