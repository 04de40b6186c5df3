"""The two-stage protocol."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from neoteny.cli import parser as cli
from neoteny.methods import SGD, ContinualBackprop
from neoteny.suite.selection import choose
from neoteny.suite.stacks import runs_of
from neoteny.suite.store.results import Results
from neoteny.suite.sweep import Selection, Setting, seeds_after
from support.small_sweeps import NET, make_sweep

EXPERIMENT = """
from neoteny.methods import SGD
from neoteny.nets import MLP
from neoteny.problems import SlowlyChangingRegression
from neoteny.suite.sweep import Selection, Setting, Sweep, network

def sweep(scale):
    net = network(MLP, hidden=(5,))
    return Sweep(
        problem=SlowlyChangingRegression(tasks=2, examples_per_task=20),
        settings=(
            Setting("one", net, (SGD(0.01),), more_runs=3),
            Setting("two", net, (SGD(0.02),)),
        ),
        runs=2,
        selection=Selection(1),
    )

def figure(frame):
    return []

claims = ()
"""


def test_the_best_setting_of_each_method_is_chosen_and_one_that_diverged_is_not() -> None:
    settings = [Setting("BP", NET, (SGD(size),), {"step_size": size}) for size in (0.1, 0.2, 0.3)]
    settings.append(Setting("CBP", NET, (SGD(0.1), ContinualBackprop(1e-4))))
    sweep = make_sweep(*settings, selection=Selection(more_runs=3))
    values = {settings[0].label: [3.0, 2.0], settings[1].label: [1.0, math.nan], settings[2].label: [2.0, 2.0]}
    values[settings[3].label] = [9.0, 9.0]
    frame = pd.DataFrame(
        [
            {"setting": label, "seed": seed, "metric": "error", "value": value, "task": 0}
            for label, each in values.items()
            for seed, value in enumerate(each)
        ]
        # a run beyond the first round must not count
        + [{"setting": settings[0].label, "seed": 2, "metric": "error", "value": -100.0, "task": 0}]
    )
    assert choose(sweep, frame) == [settings[2], settings[3]]


def test_a_setting_may_say_how_many_more_runs_it_gets(tmp_path: Path) -> None:
    (tmp_path / "uneven.py").write_text(EXPERIMENT)
    out = tmp_path / "out"
    assert cli.main(["run", str(tmp_path / "uneven.py"), "--out", str(out), "--jobs", "1", "--device", "cpu"]) == 0
    frame = Results.open(out).frame()
    seeds = {method: sorted(rows["seed"].unique()) for method, rows in frame.groupby("method")}
    assert seeds == {"one": [0, 1, 2, 3, 4], "two": [0, 1, 2]}


def test_more_runs_without_a_selection_are_refused() -> None:
    with pytest.raises(ValueError, match=r"has more_runs=3, which only a selection gives: add selection=Selection"):
        make_sweep(Setting("BP", NET, (SGD(0.1),), more_runs=3))


def test_further_runs_begin_at_the_first_seed_that_a_selection_names(tmp_path: Path) -> None:
    (tmp_path / "later.py").write_text(EXPERIMENT.replace("Selection(1)", "Selection(1, first_seed=7)"))
    out = tmp_path / "out"
    command = ["run", str(tmp_path / "later.py"), "--out", str(out), "--jobs", "1", "--device", "cpu"]
    assert cli.main(command) == 0
    frame = Results.open(out).frame()
    seeds = {method: sorted(rows["seed"].unique()) for method, rows in frame.groupby("method")}
    assert seeds == {"one": [0, 1, 7, 8, 9], "two": [0, 1, 7]}
    planned = Results.open(out).plan()["runs"]
    assert cli.main([*command, "--methods", "one"]) == 0
    assert set(Results.open(out).plan()["runs"]) == set(planned)


def test_a_first_seed_by_which_settings_are_chosen_is_refused() -> None:
    setting = Setting("BP", NET, (SGD(0.1),), runs=4)
    assert make_sweep(setting, selection=Selection(1, first_seed=4)).selection == Selection(1, first_seed=4)
    with pytest.raises(ValueError, match=r"by the seeds below 4, and Selection has first_seed=3; .* or fewer runs"):
        make_sweep(setting, selection=Selection(1, first_seed=3))


def test_seeds_count_from_the_first_seed_and_the_further_ones_are_behind_them() -> None:
    one, two = (Setting(name, NET, (SGD(0.1),), runs=runs) for name, runs in (("one", None), ("two", 3)))
    sweep = make_sweep(one, two, selection=Selection(more_runs=2), first_seed=40)
    own = sweep.runs
    assert [run.seed for run in runs_of(sweep, [one], "reference")] == list(range(40, 40 + own))
    assert list(seeds_after(sweep, one)) == [40 + own, 41 + own]
    assert [run.seed for run in runs_of(sweep, [two], "reference")] == [40, 41, 42]
    assert list(seeds_after(sweep, two)) == [43, 44]


def test_only_the_runs_of_the_first_stage_choose_wherever_their_seeds_begin() -> None:
    settings = [Setting("BP", NET, (SGD(size),), {"step_size": size}) for size in (0.1, 0.2)]
    sweep = make_sweep(*settings, selection=Selection(more_runs=3), first_seed=40)
    errors = {40: (2.0, 1.0), 40 + sweep.runs: (-100.0, 1.0), 0: (-100.0, 1.0)}
    frame = pd.DataFrame(
        [
            {"setting": setting.label, "seed": seed, "metric": "error", "value": value, "task": 0}
            for seed, both in errors.items()
            for setting, value in zip(settings, both, strict=True)
        ]
    )
    assert choose(sweep, frame) == [settings[1]]


def test_a_selections_first_seed_must_be_behind_the_sweeps() -> None:
    with pytest.raises(ValueError, match=r"chooses by the seeds below 4\d, and Selection has first_seed=12"):
        make_sweep(Setting("one", NET, (SGD(0.1),)), selection=Selection(more_runs=2, first_seed=12), first_seed=40)
