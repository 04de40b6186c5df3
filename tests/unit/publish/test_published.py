"""Published numbers: what is kept of our runs, when both agree, and what the page says of it."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from neoteny import experiments
from neoteny.cli import parser as cli
from neoteny.experiments.published.numbers import Published
from neoteny.publish.field import keep_field
from neoteny.publish.keep import EvidenceError
from neoteny.publish.published import FOLDER, TRIED, WHY_NOT, read_published, write_published
from neoteny.report.statistics import estimate
from neoteny.report.verdict import Outcome
from neoteny.suite.store.results import Results

TRIALS = Path(__file__).parents[3] / "benchmarks" / "published_trials"


def numbers_of(name: str) -> tuple[Published, ...]:
    return importlib.import_module(experiments.module_of(name)).NUMBERS


@pytest.mark.parametrize("name", experiments.PUBLISHED)
def test_every_number_is_of_a_setting_and_the_published_sizes_are_the_same_at_both_large_scales(name: str) -> None:
    experiment = experiments.load(name)
    laptop, paper = experiment.make_sweep("laptop"), experiment.make_sweep("paper")
    labels = {setting.label for setting in laptop.settings}
    assert {number.setting for number in numbers_of(name)} == labels
    assert len({claim.name for claim in experiment.claims}) == len(numbers_of(name))
    assert laptop.problem == paper.problem
    assert 3 <= laptop.runs < paper.runs
    assert all(number.tasks < paper.problem.tasks for number in numbers_of(name))


def test_agreement_is_that_of_two_means_with_both_spreads() -> None:
    ours = pd.Series([0.70, 0.72, 0.74, 0.76])
    sd = float(np.std(ours, ddof=1))
    t = 3.182446305284263  # of 97.5%, 3 degrees of freedom
    presumed = Published("A", 0.0, 16, "").allow(estimate(ours))
    assert presumed == pytest.approx(t * sd * math.sqrt(1 / 4 + 1 / 16))
    given = Published("A", 0.0, 16, "", error=0.03)
    assert given.allow(estimate(ours)) == pytest.approx(t * math.hypot(sd / 2, 0.03))
    for apart, outcome in (
        (0.99, Outcome.HOLDS),
        (1.01, Outcome.FAILS),
        (-0.99, Outcome.HOLDS),
        (-1.01, Outcome.FAILS),
    ):
        number = Published("A", 0.73 + apart * presumed, 16, "")
        assert number.compare(ours).outcome is outcome
    assert Published("A", 0.73, 16, "").compare(ours[:2]).outcome is Outcome.INCONCLUSIVE
    assert Published("A", 0.73, 16, "").compare(pd.Series([0.7, 0.7, math.nan])).outcome is Outcome.INCONCLUSIVE
    assert Published("A", 0.73, 16, "").compare(pd.Series(dtype=float)).outcome is Outcome.INCONCLUSIVE


def test_our_values_are_means_over_the_first_tasks_of_that_setting() -> None:
    rows = [
        (setting, seed, task, metric, 100 * seed + task + (1000 if setting == "B" or metric == "loss" else 0))
        for setting in "AB"
        for seed in range(2)
        for task in range(4)
        for metric in ("accuracy", "loss")
    ]
    frame = pd.DataFrame(rows, columns=["setting", "seed", "task", "metric", "value"])
    assert Published("A", 0.0, 5, "", tasks=2).ours(frame, "accuracy").to_dict() == {0: 0.5, 1: 100.5}
    assert Published("B", 0.0, 5, "").ours(frame, "accuracy").to_dict() == {0: 1001.5, 1: 1101.5}
    assert Published("C", 0.0, 5, "").ours(frame, "accuracy").empty


def test_results_are_kept_and_shown(tmp_path: Path) -> None:
    name, out = "published-random-label-mnist", tmp_path / "results"
    assert (
        cli.main(["run", name, "--scale", "smoke", "--kernel", "reference", "--jobs", "1", "--out", str(out / name)])
        == 0
    )
    (path,) = keep_field(tmp_path, out)
    assert path == tmp_path / FOLDER / f"{name}.json"
    (kept,) = read_published(tmp_path)
    frame = Results.open(out / name).frame()
    for number in numbers_of(name):
        expected = number.ours(frame, "accuracy")
        assert len(expected) == 2
        assert kept.ours(number).to_numpy() == pytest.approx(expected.to_numpy(), rel=1e-5)
    page = "\n".join(write_published([kept]))
    assert page.count("| too few runs |") == 3
    assert "Where they disagree" not in page
    assert "0.2003 (5 seeds;" in page
    assert all(f"`neoteny run {other}`" in page for other in experiments.PUBLISHED if other != name)


def test_reasons_are_given_for_problems_that_are_run() -> None:
    titles = {experiments.load(name).title.removeprefix("Published numbers of ") for name in experiments.PUBLISHED}
    assert set(WHY_NOT) <= titles
    assert {problem for problem, *_ in TRIED} <= set(WHY_NOT)


@pytest.mark.parametrize("path", sorted(TRIALS.glob("*_mnist.py")), ids=lambda path: path.stem)
def test_trials_of_reasons_are_experiments(path: Path) -> None:
    trial = experiments.load(str(path))
    assert trial.title.startswith("Trials on ")
    settings = [trial.make_sweep(scale).settings for scale in ("smoke", "laptop")]
    assert len(settings[1]) >= len(settings[0]) >= 4


def test_the_page_names_numbers_that_do_not_agree(tmp_path: Path) -> None:
    name = "published-random-label-mnist"
    relu, leaky, _ = numbers_of(name)
    near = {str(seed): leaky.value + 0.001 * seed for seed in range(3)}
    values = {relu.name: {"0": 0.5, "1": 0.501, "2": 0.502}, leaky.name: near}
    path = tmp_path / FOLDER / f"{name}.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"experiment": name, "scale": "laptop", "metric": "accuracy", "values": values}))
    page = "\n".join(write_published(read_published(tmp_path)))
    assert "| **no**: +0.301, allowed 0.0031 |" in page
    assert "| yes: +0.001, allowed 0.0031 |" in page
    title = "L2-init's random-label MNIST"
    assert f"| {title} | {WHY_NOT[title]} |" in page
    for problem, *cells in TRIED:
        assert (f"| {problem} | {' | '.join(cells)} |" in page) == (problem == title)
    path.write_text("{}")
    with pytest.raises(EvidenceError, match="does not hold published numbers"):
        read_published(tmp_path)
