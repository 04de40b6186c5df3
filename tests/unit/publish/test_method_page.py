"""docs/methods.md says of every method what the code says of itself, and `neoteny list` names all of them plainly."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from neoteny.cli.catalogue import list_things
from neoteny.methods.remedies import REMEDIES
from neoteny.publish.keep import EvidenceError
from neoteny.publish.methods import BEGIN, END, fill_page, find_methods, publish_methods, read_costs

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "methods.md"


def test_the_page_is_what_the_code_says() -> None:
    page = PAGE.read_text()
    assert fill_page(page, read_costs(ROOT)) == page, "run `python -m neoteny.publish`"


def test_every_method_and_layer_has_a_row_a_section_and_a_measured_cost() -> None:
    page = PAGE.read_text()
    for name in (*find_methods(), *REMEDIES):
        assert page.count(f"\n### {name}\n") == 1, name
        (row,) = re.findall(rf"^\| \[`[\w.]+\.{name}`\].*$", page, re.M)
        assert len(row.split("|")) == 8
        assert "not measured" not in row
    assert len(find_methods()) + len(REMEDIES) >= 30


def test_text_outside_the_marks_stays_and_missing_marks_are_refused(tmp_path: Path) -> None:
    assert publish_methods(tmp_path) == []
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "methods.md"
    page.write_text(f"# Before\n{BEGIN}\nold\n{END}\nafter\n")
    assert publish_methods(tmp_path) == [page]
    text = page.read_text()
    assert text.startswith("# Before\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert publish_methods(tmp_path) == []
    with pytest.raises(EvidenceError, match="marks"):
        fill_page("no marks", {})


def test_the_list_names_every_method_in_one_plain_line() -> None:
    things = list_things()
    listed = dict(things["method"])
    assert {name for name in listed if "." not in name} == set(find_methods())
    assert {"HardReset.from_scratch", "HardReset.head", "ContinualBackprop.nature"} < set(listed)
    assert {name for name, _ in things["layer"]} == set(REMEDIES)
    for name, line in (*things["method"], *things["layer"]):
        assert 20 < len(line) <= 120, name
        assert "\\" not in line, name
        assert line.endswith("."), name


def test_the_benchmark_of_methods_measures_every_one() -> None:
    path = ROOT / "benchmarks" / "methods_parts" / "settings.py"
    found = importlib.util.spec_from_file_location("benchmark_settings", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    assert sorted(type(method).__name__ for method in module.settings()) == sorted(find_methods())
