"""The Python in docs/ runs as it stands there, page by page, and its tables name what there is."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import neoteny
from neoteny import methods, optim
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


def test_the_reference_has_every_public_name() -> None:
    pages = "".join(page.read_text() for page in (*(ROOT / "docs" / "api").glob("*.md"), ROOT / "docs" / "methods.md"))
    shown = set(re.findall(r"^\.\. auto\w+:: neoteny\.([\w.]+)", pages, re.MULTILINE))
    modules = {"methods": methods.__all__, "optim": optim.__all__}  # named one by one; the others as a whole
    public = set(neoteny.__all__) - {"__version__", *modules}
    inner = {f"{module}.{name}" for module, names in modules.items() for name in names if name not in public}
    assert (public | inner) - shown == set()
