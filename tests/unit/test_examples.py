"""Every script in examples/ runs as it is, and the README's first example is one of them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from neoteny import experiments
from neoteny.cli import parser as cli
from neoteny.report.claim import Outcome
from support.experiment_worlds import World

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo.py"
EXPERIMENTS = sorted(path for path in (ROOT / "examples").glob("*.py") if "def sweep(" in path.read_text())
SCRIPTS = sorted(path for path in (ROOT / "examples").glob("*.py") if path not in EXPERIMENTS)
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
    printed = run(script, tmp_path, *simulator_for(script))
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

    if script.name == "stable_baselines3.py":
        (line,) = replaced_lines(printed)
        counts = [int(count) for count in re.findall(r" (\d+)(?:,|$)", line)]
        assert len(counts) == 4  # two hidden layers each of policy and value
        assert all(counts)
        (line,) = [line for line in printed.splitlines() if line.startswith("friction in force: ")]
        assert line.count(" steps") > 2, line  # the ground changed more than once


def simulator_for(script: Path) -> list[str]:
    """The argument of a script that needs a simulator; skips the test where there is none, or no framework."""
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


@pytest.mark.parametrize("path", [path for path in EXPERIMENTS if path != DEMO], ids=lambda path: path.name)
def test_other_experiment_files_run_and_report(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert cli.main(["run", str(path), "--scale", "smoke", "--out", str(out), "--jobs", "1"]) == 0
    assert cli.main(["report", str(out)]) == 0
    assert capsys.readouterr().out.rstrip().endswith("report.html")


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
"""Results of examples/imagenet_stand_in.py in which every claim of the paper holds."""


def test_the_stand_in_runs_all_that_its_claims_look_for() -> None:
    experiment = experiments.load(str(ROOT / "examples" / "imagenet_stand_in.py"))
    sweep = experiment.sweep("paper")
    made = {(setting.method, *sorted(setting.details.items())) for setting in sweep.settings}
    assert made == {(method, *sorted(details.items())) for method, details, _ in STAND_IN.settings}
    frame = replace(STAND_IN, tasks=sweep.problem.tasks).frame(runs=sweep.runs)
    for claim in experiment.claims:
        verdict = claim.judge(frame)
        assert verdict.outcome is Outcome.HOLDS, f"{claim.name}: {verdict.evidence}"
    first, whole, methods = experiment.figure(frame)
    assert 16 <= len(whole.series[0].x) <= 32
    for chart in (first, whole, methods):
        assert chart.series[-1].name == "linear baseline"


def guide_block(name: str) -> str:
    """The Python of a guide in docs/: all its blocks are one file."""
    text = (ROOT / "docs" / name).read_text()
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))


def test_the_guide_to_experiments_is_one(tmp_path: Path) -> None:
    (tmp_path / "my_experiment.py").write_text(guide_block("adding-an-experiment.md"))
    command = ["run", str(tmp_path / "my_experiment.py"), "--scale", "smoke", "--jobs", "1", "--out"]
    assert cli.main([*command, str(tmp_path / "out")]) == 0
    assert cli.main(["report", str(tmp_path / "out")]) == 0


def test_the_guide_to_methods_has_one_that_works() -> None:
    code = compile(guide_block("adding-a-method.md"), "adding-a-method.md", "exec", dont_inherit=True)
    exec(code, {"__name__": "__main__"})


BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)


def test_the_readme_shows_the_drop_in_example() -> None:
    """Word for word, so that running examples/drop_in.py is running the README."""
    assert BLOCKS[0].split() == (ROOT / "examples" / "drop_in.py").read_text().split()


@pytest.mark.parametrize("block", BLOCKS[1:])
def test_every_other_python_block_of_the_readme_runs(block: str) -> None:
    for package in ("stable_baselines3", "pybullet"):
        if package in block:
            pytest.importorskip(package, reason=f"{package} is not installed")
    exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})
