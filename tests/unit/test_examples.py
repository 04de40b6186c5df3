"""Every script in examples/ runs as it is, and the README's first example is one of them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from neoteny.cli import parser as cli
from support.pages import python_of

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo.py"
SCRIPTS = sorted(path for path in (ROOT / "examples").glob("*.py") if path != DEMO)
SHOW_REPLACED = ("any_module.py", "drop_in.py")


def run(script: Path, folder: Path, *arguments: str) -> str:
    """What a script prints, run from an empty folder: it must not need anything beside it."""
    # One thread: the suite runs on all cores already, and small networks gain nothing from more.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-W", "ignore:`torch.jit:DeprecationWarning", str(script), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{script.name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert done.stdout.strip(), f"{script.name} prints nothing"
    assert not list(folder.iterdir()), f"{script.name} leaves files behind"
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_runs(script: Path, tmp_path: Path) -> None:
    printed = run(script, tmp_path, *arguments_for(script))
    if script.name in SHOW_REPLACED:
        assert "replaced" in printed
        after = printed[printed.index("replaced") :]
        assert re.search(r"[1-9]", after), f"{script.name} shows no replaced units:\n{after}"
    if script.name == "any_module.py":
        counts = [[int(n) for n in re.findall(r" (\d+)(?:,|$)", line)] for line in replaced_lines(printed)]
        checked = re.findall(r"check on the model itself: (\d+) of (\d+)", printed)
        assert len(counts) == len(checked) == 6
        for replaced, (passed, found) in zip(counts, checked, strict=True):
            assert len(replaced) == int(passed) == int(found)  # every group passed the gate, every group has a count
            assert all(replaced)

    if script.name == "compare_methods.py":
        assert re.search(r"^from scratch .*\n(.*\n)*plain Adam|^plain Adam", printed, re.M)
        assert "14 learners, 2 seeds" in printed

    if script.name == "stable_baselines3.py":
        (line,) = replaced_lines(printed)
        counts = [int(count) for count in re.findall(r" (\d+)(?:,|$)", line)]
        assert len(counts) == 4  # two hidden layers each of policy and value
        assert all(counts)
        (line,) = [line for line in printed.splitlines() if line.startswith("friction in force: ")]
        assert line.count(" steps") > 2, line  # the ground changed more than once


def arguments_for(script: Path) -> list[str]:
    """The arguments of a script: a simulator where it needs one (skips where there is none), or a shorter run."""
    if script.name == "compare_methods.py":
        return ["--seeds", "2", "--tasks", "2"]
    if script.name != "stable_baselines3.py":
        return []
    for package in ("stable_baselines3", "gymnasium"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed (the extra sb3)")
    for package in ("pybullet", "mujoco"):
        if importlib.util.find_spec(package) is not None:
            return [package]
    pytest.skip("no simulator is installed (the extras pybullet and mujoco)")


def replaced_lines(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if line.startswith("replaced: ")]


def test_the_demo_is_an_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert cli.main(["run", str(DEMO), "--scale", "smoke", "--out", str(out), "--jobs", "1"]) == 0
    assert cli.main(["report", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "CBP (activation=relu)" in printed  # the table
    assert "[inconclusive]" in printed or "[holds]" in printed  # the verdicts
    assert printed.rstrip().endswith("report.html")  # the path of the page
    assert "examples/demo.py" in (ROOT / "Makefile").read_text()


def test_the_readme_shows_the_drop_in_example() -> None:
    """Word for word, so that running examples/drop_in.py is running the README."""
    assert python_of(ROOT / "README.md").split() == (ROOT / "examples" / "drop_in.py").read_text().split()
