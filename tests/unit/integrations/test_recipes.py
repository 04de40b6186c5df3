"""Every recipe of docs/frameworks.md runs as it stands there, and replaces units."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "frameworks.md"
RECIPES = re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("title", "code"), RECIPES, ids=[title for title, _ in RECIPES])
def test_a_recipe_runs(title: str, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    for package in ("lightning", "transformers", "accelerate", "peft", "stable_baselines3", "fastai"):
        if re.search(rf"^(?:from|import) {package}\b", code, re.MULTILINE):
            pytest.importorskip(package, reason=f"{package} is not installed")
    exec(compile(code, str(PAGE), "exec"), {"__name__": "__main__"})
    replaced = ast.literal_eval(capsys.readouterr().out.strip().splitlines()[-1])
    assert sum(replaced.values()) > 0


def test_every_framework_has_its_recipe() -> None:
    assert [title for title, _ in RECIPES] == [
        "Lightning",
        "Hugging Face Trainer",
        "accelerate",
        "peft",
        "Stable-Baselines3",
        "fastai",
        "Several GPUs",
    ]
