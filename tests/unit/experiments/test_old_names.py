"""Experiment files written for earlier versions still load: old module names lead to the new modules."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from neoteny import experiments
from neoteny.cli.parser import main
from neoteny.experiments import old_names
from neoteny.suite.sweep import Sweep
from support.suite import write_experiment


def write_old(path: Path) -> Path:
    """The small experiment as it was written before the modules moved."""
    write_experiment(path, tasks=2, examples=20, first=2)
    text = path.read_text().replace("from neoteny.suite.sweep import", "from neoteny.engine.sweep import")
    text = text.replace(
        "from neoteny.problems import SlowlyChangingRegression",
        "from neoteny.problems.slowly_changing_regression import SlowlyChangingRegression",
    )
    text = text.replace(
        "def figure(frame):", "def figure(frame):\n    from neoteny.engine import identity  # when drawn"
    )
    path.write_text(text)
    return path


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process: no old name has been imported yet."""
    for name in list(sys.modules):
        if name.removeprefix("neoteny.") in old_names.MODULES:
            monkeypatch.delitem(sys.modules, name)


def test_no_old_name_is_taken_and_every_new_one_exists() -> None:
    for old, new in old_names.MODULES.items():
        assert importlib.util.find_spec(f"neoteny.{new}") is not None, new
        place = Path(experiments.__file__).parents[1].joinpath(*old.split("."))
        assert not place.with_suffix(".py").exists(), old
        assert not (place / "__init__.py").exists(), old
    for old, names in old_names.NAMES.items():
        module = importlib.import_module(f"neoteny.{old_names.MODULES[old]}")
        assert all(hasattr(module, name) for name in names.values())


@pytest.mark.filterwarnings("ignore:neoteny:FutureWarning")
@pytest.mark.usefixtures("forgotten")
def test_a_module_that_was_divided_has_all_of_its_parts() -> None:
    old_names.install()
    old = importlib.import_module("neoteny.experiments.mnist_trends")
    assert callable(old.draw_over_tasks)
    assert callable(old.trend)
    assert callable(old.for_each)


@pytest.mark.usefixtures("forgotten")
def test_an_old_file_gives_the_same_runs_and_warns_with_the_new_name(tmp_path: Path) -> None:
    path = write_old(tmp_path / "small.py")
    with pytest.warns(FutureWarning, match=r"neoteny\.\S+ is now neoteny\.") as caught:
        old = experiments.load(str(path)).make_sweep("smoke")
    assert isinstance(old, Sweep)
    assert {(str(warning.message).split(";")[0], warning.filename) for warning in caught} == {
        ("neoteny.engine.sweep is now neoteny.suite.sweep", str(path)),
        ("neoteny.problems.slowly_changing_regression is now neoteny.problems.regression", str(path)),
    }
    new = experiments.load(str(write_experiment(tmp_path / "small.py", tasks=2, examples=20, first=2)))
    assert old == new.make_sweep("smoke")
    with warnings.catch_warnings():  # once is enough
        warnings.simplefilter("error")
        experiments.load(str(write_old(tmp_path / "small.py")))


@pytest.mark.filterwarnings("ignore:neoteny:FutureWarning")
def test_an_old_results_folder_is_run_reported_and_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = write_old(tmp_path / "small.py"), str(tmp_path / "out")
    assert main(["run", str(path), "--out", out, "--jobs", "1", "--kernel", "reference"]) == 0
    path.unlink()
    assert main(["status", out]) == 0
    assert "6 runs finished, 0 of 6 planned left" in capsys.readouterr().out
    assert main(["claims", out]) == 0
    assert "Continual backpropagation has a lower error." in capsys.readouterr().out
    assert main(["report", out]) == 0
    assert (tmp_path / "out" / "report.html").is_file()


def test_the_package_itself_does_not_see_old_names() -> None:
    done = subprocess.run([sys.executable, "-c", "import neoteny.engine"], capture_output=True, text=True)
    assert "No module named 'neoteny.engine'" in done.stderr
