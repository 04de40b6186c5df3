"""The field: every method gets the same number of settings, trains on every problem, and is judged by other seeds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import pytest
import torch

import neoteny
from neoteny import methods
from neoteny.cli import parser as cli
from neoteny.experiments import FIELD, GROUPS, load, module_of
from neoteny.experiments.field import recipes, regression
from neoteny.experiments.field.bench import (
    BUDGET,
    FIRST_JUDGE,
    PUBLISHED,
    SEARCHED,
    SMOKE,
    Recipe,
    judging_runs,
    load_bench,
    make_settings,
    tuning_runs,
)
from neoteny.experiments.field.recipes import COSTS, RECIPES
from neoteny.methods.remedies import REMEDIES
from neoteny.nets import MLP
from neoteny.report.field import split_seeds
from neoteny.suite.store.results import Results
from neoteny.suite.sweep import SCALES, Setting


def by_method(settings: tuple[Setting, ...]) -> dict[str, list[Setting]]:
    found: dict[str, list[Setting]] = {}
    for setting in settings:
        found.setdefault(setting.method, []).append(setting)
    return found


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", FIELD)
def test_every_method_has_four_settings_of_which_the_first_is_published(name: str, scale: str) -> None:
    sweep, bench = load(name).make_sweep(scale), load_bench(name, scale)
    found = by_method(sweep.settings)
    least = len([each for each in SMOKE if bench.build is MLP or not RECIPES[each].options])
    assert len(found) >= (least if scale == "smoke" else 40 if bench.build is MLP else 30)
    assert {"SGD", "Adam", "From scratch"} <= set(found)
    for settings in found.values():
        assert [setting.details["role"] for setting in settings] == [PUBLISHED] + [SEARCHED] * (BUDGET - 1)
        pairs = {tuple(value for key, value in setting.details.items() if key != "role") for setting in settings}
        assert len(pairs) == BUDGET
    assert sweep.selection is not None
    assert sweep.selection.by == ("method", "role")
    assert (sweep.runs, sweep.selection.more_runs) == (bench.seeds or (tuning_runs(scale), judging_runs(scale)))


@pytest.mark.parametrize("name", FIELD)
def test_published_values_are_the_first_setting(name: str) -> None:
    module = __import__(module_of(name), fromlist=["PUBLISHED"])
    found = by_method(load(name).make_sweep("paper").settings)
    for method, values in module.PUBLISHED.items():
        first = found[method][0]
        for key, value in values.items():
            given = {**first.details, **{k: v for each in first.methods for k, v in each.hyperparameters().items()}}
            assert given[key] == value, (method, key)


def test_the_field_has_every_method_and_remedy_of_the_package() -> None:
    classes = {name for name in methods.__all__ if dataclasses.is_dataclass(getattr(methods, name))}
    built = {type(each).__name__ for each in _every_method()}
    assert classes - built == {"DASH"}  # it needs the data of a new task, of which these problems do not tell
    assert RECIPES["DASH"].needs_tasks
    options = [dict(recipe.options) for recipe in RECIPES.values()]
    known = {"layer", "online", "crelu", "fourier", "aid", "smooth_leaky", "randomized_smooth_leaky"}
    used = {str(value).partition("(")[0] for each in options for value in each.values()}
    assert known <= used
    assert any("dropout" in each for each in options)
    assert len(REMEDIES) == len(known) + 1


def _every_method() -> list[methods.Method]:
    return [each for setting in regression.sweep("paper").settings for each in setting.methods]


def test_names_of_costs_are_methods() -> None:
    assert set(COSTS) <= set(RECIPES)
    for name in COSTS.values():
        assert hasattr(methods, name)


@pytest.mark.parametrize("base", ["SGD", "Adam"])
def test_every_recipe_trains_in_one_stack_of_its_four_settings(base: str) -> None:
    """The four settings of a method differ in numbers that a stack takes one of per run; each run learns."""
    bench = dataclasses.replace(regression.make_bench("smoke"), base=base)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(BUDGET, 4, 22, generator=generator)
    for name, recipe in RECIPES.items():
        if recipe.needs_tasks:
            continue
        settings = list(make_settings(name, recipe, bench))
        columns = zip(*(setting.methods for setting in settings), strict=True)
        merged = [merge(column) for column in columns]
        nets = [settings[0].network.make(bench.problem) for _ in settings]
        stack = neoteny.stack(nets, *merged, example=torch.zeros(1, 22))
        before = {key: value.clone() for key, value in stack.module(0).state_dict().items()}
        for _ in range(3):
            stack.step(x, x.sum(-1, keepdim=True))
        after = stack.module(0).state_dict()
        assert any(not torch.equal(before[key], after[key]) for key in before), name


def merge(column: tuple[methods.Method, ...]) -> methods.Method:
    """One method for several runs: what differs becomes one number per run."""
    values = {}
    for key, value in column[0].hyperparameters().items():
        each = tuple(method.hyperparameters()[key] for method in column)
        values[key] = value if len(set(each)) == 1 else each
    return type(column[0])(**values)


def test_a_group_runs_all_its_problems_each_in_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert GROUPS["field"] == FIELD
    names = ("field-regression", "field-warm-start", "field-shakespeare")  # an MLP, a ResNet, a GPT
    monkeypatch.setitem(GROUPS, "field", names)
    arguments = ["run", "field", "--scale", "smoke", "--out", str(tmp_path / "out"), "--jobs", "1"]
    assert cli.main([*arguments, "--methods", "SGD"]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(names)
    for name in names:
        frame = Results.open(tmp_path / "out" / name).frame()
        scores = pd.DataFrame(frame[["setting", "seed"]]).drop_duplicates()
        assert split_seeds(scores) == ([0, 1], [FIRST_JUDGE, FIRST_JUDGE + 1])
        judged = frame[frame["seed"] > 1].drop_duplicates("setting")
        assert set(judged["role"]) == {PUBLISHED, SEARCHED}
    capsys.readouterr()
    assert cli.main(["status", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert all(f"{tmp_path / 'out' / name}:" in said for name in names)
    assert cli.main(["report", str(tmp_path / "out" / names[0])]) == 0
    assert capsys.readouterr().out.rstrip().endswith("report.html")


def test_a_recipe_needs_two_values_for_what_it_searches() -> None:
    with pytest.raises(ValueError, match="a column needs two values"):
        Recipe(recipes._alone, "strength", ())
