"""`neoteny list` and `neoteny status` answer at once: they import nothing heavy, and still say what is true."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neoteny import experiments, methods, nets
from neoteny.cli.catalogue import list_experiments, list_things
from neoteny.methods import Method
from neoteny.methods.remedies import REMEDIES
from neoteny.problems import PROBLEMS
from neoteny.suite.measures import MEASURES
from neoteny.suite.plasticity_probe import LEARNING_MEASURES
from neoteny.suite.rl.ppo import PPO

HEAVY = {"torch", "numpy", "pandas", "pyarrow", "numba", "scipy", "matplotlib", "plotly", "rich", "gymnasium"}
EVIDENCE = Path(__file__).parents[3] / "evidence"


def imported(*arguments: str) -> tuple[int, str, set[str]]:
    """Exit status and output of a command in a new process, and the packages it imported."""
    program = (
        "import sys\nfrom neoteny.cli import main\n"
        f"status = main({list(arguments)!r})\n"
        "print('\\n' + str(status), *sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    output, _, last = done.stdout.rstrip("\n").rpartition("\n")
    status, *packages = last.split()
    return int(status), output + done.stderr, set(packages)


def test_list_imports_nothing_heavy() -> None:
    status, output, packages = imported("list")
    assert status == 0
    assert "ContinualBackprop" in output
    assert not packages & HEAVY


@pytest.mark.parametrize("folder", ["mnist-width-laptop", "hundred-units"])
def test_status_imports_nothing_heavy_and_reads_folders_of_older_versions(folder: str) -> None:
    status, output, packages = imported("status", str(EVIDENCE / folder))
    assert status == 0
    assert "runs finished" in output
    assert not packages & HEAVY


def test_status_of_a_folder_without_a_plan(tmp_path: Path) -> None:
    (tmp_path / "experiment.json").write_text('{"format": 1, "experiment": "old", "scale": "smoke"}')
    status, output, packages = imported("status", str(tmp_path))
    assert status == 0
    assert "0 runs finished, 0 of 0 planned left" in output
    assert not packages & HEAVY


def test_a_refusal_imports_nothing_heavy(tmp_path: Path) -> None:
    status, output, packages = imported("status", str(tmp_path / "absent"))
    assert status == 1
    assert "is not a results folder" in output
    assert not packages & HEAVY


def with_presets(kind: type) -> list[tuple[str, Any]]:
    """A class and its public class methods, by name."""
    own = [name for name, value in vars(kind).items() if isinstance(value, classmethod) and not name.startswith("_")]
    return [(kind.__name__, kind), *((f"{kind.__name__}.{name}", getattr(kind, name)) for name in own)]


def test_the_list_has_what_importing_would_find() -> None:
    things = {
        "problem": PROBLEMS,
        "method": {name: getattr(methods, name) for name in methods.__all__},
        "agent": {"PPO": PPO},
        "network": {name: getattr(nets, name) for name in nets.__all__ if name not in REMEDIES},
        "measure": {**MEASURES, **LEARNING_MEASURES},
    }
    things["method"] = {
        name: kind
        for name, kind in things["method"].items()
        if issubclass(kind, Method) and dataclasses.is_dataclass(kind)  # not what others derive from
    }
    things["method"] = {name: each for kind in things["method"].values() for name, each in with_presets(kind)}
    expected = {
        kind: [(name, (inspect.getdoc(thing) or "").partition("\n")[0]) for name, thing in named.items()]
        for kind, named in things.items()
    }
    expected["layer"] = [(name, remedy.what) for name, remedy in REMEDIES.items()]
    assert list_things() == expected
    assert set(nets.__all__) - set(REMEDIES) == {"ActorCritic", "ConvNet", "GPT", "MLP", "ResNet"}
    assert all(line for lines in expected.values() for _, line in lines)


def test_the_list_has_every_experiment_with_its_title() -> None:
    names = (experiments.NAMES, experiments.VARIANTS, experiments.FIELD, experiments.PUBLISHED)
    titles = [[(name, experiments.load(name).title) for name in group] for group in names]
    assert list(list_experiments().values()) == titles
