"""docs/field.md is what the kept tables say, and results of the field are kept and published in one command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from neoteny import experiments
from neoteny.cli import parser as cli
from neoteny.experiments.field.recipes import RECIPES
from neoteny.publish.field import FOLDER, fill_page, keep_field, publish_field, read_tables
from neoteny.publish.field_figures import order_methods
from neoteny.publish.field_page import BEGIN, END, TOLD, find_cost, write_field
from neoteny.publish.keep import EvidenceError
from neoteny.publish.methods import read_costs
from neoteny.publish.published import read_published
from neoteny.report.field import read_scores
from neoteny.suite.store.results import Results

ROOT = Path(__file__).parents[3]
METHODS = ("SGD", "Adam", "From scratch", "CBP", "Layer norm")


def make_document(name: str, seed: int = 0, diverged: bool = False) -> dict:
    """A made-up table: two tuning and four judging seeds; the first and the second of four settings were judged."""
    generator = np.random.default_rng(seed)
    settings = []
    for place, method in enumerate(METHODS):
        for number in range(4):
            seeds = range(6 if number < 2 else 2)
            values = {str(s): round(0.5 + 0.1 * place + 0.01 * float(generator.standard_normal()), 6) for s in seeds}
            role = "searched" if number else "published"
            setting = f"{method} (role={role}, step_size={number})"
            settings.append({"method": method, "role": role, "setting": setting, "values": values})
    if diverged:
        for one in settings[:2]:
            one["values"]["5"] = None
    return {
        "experiment": name,
        "scale": "smoke",
        "metric": "accuracy",
        "higher_is_better": True,
        "tasks": 3,
        "updates_per_task": 20,
        "base": "SGD",
        "settings": settings,
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with two kept tables, in one of which plain SGD diverged."""
    (tmp_path / FOLDER).mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    shutil.copytree(ROOT / "evidence" / "methods", tmp_path / "evidence" / "methods")
    for number, name in enumerate(experiments.FIELD[:2]):
        (tmp_path / FOLDER / f"{name}.json").write_text(json.dumps(make_document(name, number, diverged=number == 1)))
    (tmp_path / "docs" / "field.md").write_text(f"# Before\n\n{BEGIN}\nas it was\n{END}\nafter\n")
    return tmp_path


def test_the_page_is_what_the_kept_tables_say() -> None:
    page = (ROOT / "docs" / "field.md").read_text()
    made = fill_page(page, read_tables(ROOT), read_costs(ROOT), read_published(ROOT))
    assert made == page, "run `python -m neoteny.publish`"


def test_the_page_has_a_row_per_method_and_problem_and_figures_that_exist(root: Path) -> None:
    written = publish_field(root)
    page = (root / "docs" / "field.md").read_text()
    assert page.startswith("# Before\n")
    assert page.endswith(f"{END}\nafter\n")
    assert "as it was" not in page
    names = ["field.png", *(f"{name}.png" for name in experiments.FIELD[:2])]
    assert written == [root / "docs" / "field.md", *(root / "docs" / "figures" / name for name in names)]
    for name in names:
        assert f"(figures/{name})" in page
    for table in read_tables(root):
        section = page.partition(f"`{table.command}`")[2].partition("\n## ")[0]
        rows = [line for line in section.splitlines() if line.startswith("|")][2:]
        assert [row.split("|")[1].strip(" *†") for row in rows] == [one.method for one in table.standings]
        assert all(len(row.split("|")) == 10 for row in rows)
    assert all(f"neoteny run {name} " in page for name in experiments.FIELD[2:])
    assert publish_field(root) == []


def test_numbers_of_the_page_are_those_of_the_table(root: Path) -> None:
    table = read_tables(root)[0]
    page = write_field([table], read_costs(root))
    best = table.standings[0]
    assert best.method == "Layer norm"
    assert f"{best.value.mean:.4g} [{best.value.low:.4g}, {best.value.high:.4g}]" in page
    gain = best.gains["SGD"]
    assert best.certain["SGD"]
    assert f"**{gain.mean:+.3g} [{gain.low:+.3g}, {gain.high:+.3g}]**" in page
    values = json.loads((root / FOLDER / f"{table.experiment}.json").read_text())["settings"]
    chosen = next(one["values"] for one in values if one["setting"] == best.setting)
    assert best.value.mean == pytest.approx(np.mean([chosen[str(seed)] for seed in (2, 3, 4, 5)]))
    assert "2 tuning seeds, 4 judging" in page
    assert "Not run: Head reset, " not in page  # the smoke scale has none
    assert "Not run: L2, FIRE. " in page


def test_a_baseline_that_diverged_leaves_no_gain_and_the_page_says_so(root: Path) -> None:
    table = read_tables(root)[1]
    assert next(one for one in table.standings if one.method == "SGD").diverged == 1
    page = write_field([table], {})
    assert "diverged, 1 diverged" in page
    assert "nan" not in page


def test_methods_of_all_problems_come_in_the_order_of_their_ranks(root: Path) -> None:
    tables = read_tables(root)
    assert set(order_methods(tables)) == set(METHODS)
    assert order_methods(tables[:1]) == [one.method for one in tables[0].standings]


def test_results_are_kept_as_the_frame_has_them(tmp_path: Path) -> None:
    out = tmp_path / "results"
    run = ["run", "field-regression", "--scale", "smoke", "--methods", "SGD,L2", "--jobs", "1"]
    assert cli.main([*run, "--out", str(out / "field-regression")]) == 0
    (out / "other").mkdir()
    (path,) = keep_field(tmp_path, out)
    assert keep_field(tmp_path, out / "field-regression") == [path]
    (table,) = read_tables(tmp_path)
    scores = read_scores(Results.open(out / "field-regression").frame(), "error")
    keys = ["setting", "seed"]
    found, expected = (each.sort_values(keys).reset_index(drop=True) for each in (table.scores, scores))
    assert found[["method", "role", *keys]].equals(expected[["method", "role", *keys]])
    assert found["value"].to_numpy() == pytest.approx(expected["value"].to_numpy(), rel=1e-5)
    assert (table.base, table.tasks, table.higher_is_better) == ("SGD", 4, False)


def test_folders_without_results_damaged_tables_and_missing_marks_are_refused(root: Path) -> None:
    with pytest.raises(EvidenceError, match="no results of the field"):
        keep_field(root, root / "docs")
    with pytest.raises(EvidenceError, match="marks"):
        fill_page("no marks", [], {})
    (root / FOLDER / f"{experiments.FIELD[0]}.json").write_text("{}")
    with pytest.raises(EvidenceError, match="is not a table of the field"):
        read_tables(root)


def test_every_method_has_a_cost() -> None:
    costs = read_costs(ROOT)
    assert [name for name in RECIPES if find_cost(name, costs) == "not measured"] == []
    assert set(TOLD) <= set(RECIPES)
