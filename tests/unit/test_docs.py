"""The Python in docs/ runs as it stands there, page by page, and its tables name what there is."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from neoteny import methods
from neoteny.cli import parser as cli
from support.pages import PAGES, ROOT, python_of

# README.md is an example (test_examples.py), frameworks.md has one recipe per block (integrations/test_recipes.py).
ELSEWHERE = ("README.md", "frameworks.md", "adding-an-experiment.md")
WITH_PYTHON = [page for page in PAGES if page.name not in ELSEWHERE and python_of(page)]
MAY_BE_MISSING = ("pybullet", "stable_baselines3")


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.stem)
def test_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = python_of(page)
    for package in MAY_BE_MISSING:
        if package in code and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(page), "exec", dont_inherit=True), {"__name__": "__main__"})


def test_the_guide_to_experiments_is_one(tmp_path: Path) -> None:
    (tmp_path / "my_experiment.py").write_text(python_of(ROOT / "docs" / "adding-an-experiment.md"))
    command = ["run", str(tmp_path / "my_experiment.py"), "--scale", "smoke", "--jobs", "1", "--out"]
    assert cli.main([*command, str(tmp_path / "out")]) == 0
    assert cli.main(["report", str(tmp_path / "out")]) == 0


def test_the_page_on_methods_has_them_all() -> None:
    table = re.findall(r"`neoteny\.(?:methods\.)?(\w+)`", (ROOT / "docs" / "methods.md").read_text())
    assert set(methods.__all__) - {"Method", "UnitMethod"} <= set(table)
