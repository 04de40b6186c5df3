"""Variants run and report, and check the paper's claims on their own runs: the same checks, on the right rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from neoteny.cli import parser as cli
from neoteny.experiments import VARIANTS, load
from neoteny.experiments.mnist import sensitivity as mnist_sensitivity
from neoteny.experiments.variants.reuse import omit, reuse
from neoteny.report.claim import Outcome
from neoteny.suite.identity import setting_digest
from neoteny.suite.stacks import runs_of
from support.experiment_worlds import World
from support.frames import Curve, make_frame
from support.mnist_worlds import QUIET, WORLDS

HUNDRED, CHANGE, WIDE = map(load, ("hundred-units", "hundred-units-change", "two-thousand-units"))


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_runs_by_its_name_and_reports(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert cli.main(["run", name, "--scale", "smoke", "--out", str(out), "--jobs", "1"]) == 0
    assert not (out / "experiment.py").exists()
    # Variants were files once, and their folders have a copy that needs modules of that time: it must not be read.
    (out / "experiment.py").write_text("raise RuntimeError('the file as it was when the runs began')")
    assert cli.main(["report", str(out)]) == 0
    assert capsys.readouterr().out.rstrip().endswith("report.html")


def judge(experiment, frame: pd.DataFrame, lender: str = "") -> dict[str, Outcome]:
    """Outcomes by name, of all claims or of those of one experiment of the suite."""
    claims = [claim for claim in experiment.claims if claim.name.startswith(lender)]
    verdicts = {claim.name: experiment.evaluate(claim, frame) for claim in claims}
    raised = [f"{name}: {verdict.evidence}" for name, verdict in verdicts.items() if "raised" in verdict.evidence]
    assert not raised
    return {name: verdict.outcome for name, verdict in verdicts.items()}


def accuracy(method: str, level: float, **details: float) -> Curve:
    return Curve(method, {"step_size": 0.003, **details}, {"accuracy": level})


@pytest.mark.parametrize("experiment", [HUNDRED, CHANGE, WIDE], ids=lambda experiment: experiment.name)
def test_reused_names_are_those_of_the_suite_and_unique(experiment) -> None:
    names = [claim.name for claim in experiment.claims]
    assert len(set(names)) == len(names)
    for lender, _, name in (name.partition("@")[0].partition("/") for name in names if "/" in name):
        assert name in [claim.name for claim in load(lender).claims]


def test_hundred_units_judges_or_sets_aside_every_claim_of_three_experiments() -> None:
    lent = [claim for name in ("mnist-step-size", "mnist-methods", "mnist-sensitivity") for claim in load(name).claims]
    first = [claim for claim in HUNDRED.claims if "@" not in claim.name]
    assert len(first) + len(HUNDRED.unchecked) == len(lent)
    assert {each.statement for each in (*first, *HUNDRED.unchecked)} == {each.statement for each in lent}
    again = {claim.name.removesuffix("@retuned") for claim in HUNDRED.claims if claim.name.endswith("@retuned")}
    assert again == {claim.name for claim in first if claim.name.startswith("mnist-methods/")}


@pytest.mark.parametrize("lender", ["mnist-step-size", "mnist-methods", "mnist-sensitivity"])
def test_a_world_in_which_the_suites_claims_hold_is_one_in_which_the_reused_hold(lender: str) -> None:
    """With any name of the folder's scale; those limited to the paper's scale stay open."""
    world, cases = WORLDS[lender]
    outcomes = judge(HUNDRED, world.frame(noise=QUIET, scale="laptop"), lender)
    limited = {claim.name for claim in load(lender).claims if claim.scale == "paper"}
    guarded = [outcomes[f"{lender}/{name}"] for name in limited if f"{lender}/{name}" in outcomes]
    assert set(guarded) <= {Outcome.INCONCLUSIVE}
    plain = [name for name, case in cases.items() if not case.holds and case.tasks == 40 and name not in limited]
    decided = [outcomes[f"{lender}/{name}"] for name in plain if f"{lender}/{name}" in outcomes]
    assert len(decided) >= 9
    assert set(decided) == {Outcome.HOLDS}


def test_a_reused_claim_fails_where_the_suites_fails() -> None:
    world, cases = WORLDS["mnist-methods"]
    frame = world.frame(cases["cbp-best"].fails, noise=QUIET, scale="laptop")
    names = ("mnist-methods/cbp-best", "mnist-methods/cbp-best@retuned")
    assert judge(HUNDRED, frame, "mnist-methods/cbp-best") == dict.fromkeys(names, Outcome.FAILS)


def test_a_claim_on_the_papers_numbers_stays_open_on_a_narrow_network_and_says_what_was_found() -> None:
    world, cases = WORLDS["mnist-step-size"]
    (claim,) = (claim for claim in HUNDRED.claims if claim.name == "mnist-step-size/middle-step-size-best")
    for change, found in (({}, Outcome.HOLDS), (cases["middle-step-size-best"].fails, Outcome.FAILS)):
        verdict = claim.evaluate(world.frame(change, noise=QUIET, scale="paper"))
        assert (verdict.outcome, verdict.at_this_scale) == (Outcome.INCONCLUSIVE, found)
        assert verdict.evidence.startswith(f"needs the paper's scale; at this one: {found}: mean accuracy")


def test_l2_is_judged_at_the_papers_strength_and_at_its_best() -> None:
    curves = [
        accuracy("L2", 0.90, l2=1e-4),
        accuracy("L2", 0.95, l2=1e-3),
        accuracy("S&P", 0.91, l2=1e-4, noise_std=1e-5),
        accuracy("S&P", 0.94, l2=1e-3, noise_std=1e-5),
        accuracy("CBP", 0.93, replacement_rate=1e-4),
        *(Curve(name, {"step_size": 0.003}, {"accuracy": 0.80}) for name in ("BP", "Online norm", "Adam")),
        accuracy("Dropout", 0.80, dropout=0.1),
    ]
    frame = make_frame(curves, runs=4, tasks=20, noise={"accuracy": 0.001}, scale="laptop")
    assert judge(HUNDRED, frame, "mnist-methods/cbp-best") == {
        "mnist-methods/cbp-best": Outcome.HOLDS,
        "mnist-methods/cbp-best@retuned": Outcome.FAILS,
    }


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
    assert claim.evaluate(same).outcome is Outcome.FAILS
    assert claim.evaluate(same[same["setting"] != level[0]]).outcome is Outcome.INCONCLUSIVE


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
        reuse("mnist-methods", only=["cbp-bset"])
    with pytest.raises(ValueError, match="no claim 'nothing'"):
        omit("mnist-methods", ["nothing"], "a reason")


STAND_IN = World(
    "accuracy",
    [
        ("BP", {"step_size": 0.03}, (0.90, 0.80, 0.74, 0.70, 0.70)),
        ("BP", {"step_size": 0.01}, (0.80, 0.88, 0.90, 0.84, 0.79, 0.785, 0.785)),
        ("BP", {"step_size": 0.003}, (0.75, 0.80, 0.84, 0.86, 0.82, 0.79, 0.785)),
        ("BP", {"step_size": 0.001}, (0.6, 0.7)),
        ("BP", {"step_size": 0.1}, (0.5,)),
        ("L2", {"step_size": 0.03, "l2": 3e-6}, (0.85, 0.84, 0.82)),
        ("S&P", {"step_size": 0.01, "l2": 1e-5, "noise_std": 1e-5}, (0.85, 0.85, 0.84)),
        ("CBP", {"step_size": 0.01, "replacement_rate": 3e-4}, (0.86, 0.89, 0.92)),
        ("Linear", {"step_size": 0.001}, (0.77,)),
        ("Linear", {"step_size": 0.003}, (0.75,)),
        ("Linear", {"step_size": 0.01}, (0.72,)),
    ],
    tasks=80,
    quiet=0.002,
    loud=0.8,
)
"""Results of imagenet-stand-in in which every claim of the paper holds."""


def test_the_stand_in_runs_all_that_its_claims_look_for() -> None:
    experiment = load("imagenet-stand-in")
    sweep = experiment.sweep("paper")
    made = {(setting.method, *sorted(setting.details.items())) for setting in sweep.settings}
    assert made == {(method, *sorted(details.items())) for method, details, _ in STAND_IN.settings}
    frame = replace(STAND_IN, tasks=sweep.problem.tasks).frame(runs=sweep.runs)
    for claim in experiment.claims:
        verdict = claim.evaluate(frame)
        if claim.name == "imagenet-bp/step-size-0.1-diverges":  # five of five runs may be a share of 0.48
            assert verdict.at_this_scale is Outcome.INCONCLUSIVE
            continue
        assert (verdict.at_this_scale or verdict.outcome) is Outcome.HOLDS, f"{claim.name}: {verdict.evidence}"
    first, whole, methods = experiment.figure(frame)
    assert 16 <= len(whole.series[0].x) <= 32
    for chart in (first, whole, methods):
        assert chart.series[-1].name == "linear baseline"
