"""Finished small experiments for all tests of a file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from neoteny.cli import parser as cli
from support.suite import Zygote, write_experiment


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> Path:
    """A finished small experiment; do not change it."""
    folder = tmp_path_factory.mktemp("finished")
    experiment = write_experiment(folder / "small.py")
    log = folder / "log.txt"
    assert zygote.run("run", experiment, "--out", folder / "out", "--jobs", "1", output=log) == 0, log.read_text()
    return folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of small.py, still smaller, with its results in out/; do not change it."""
    folder = tmp_path_factory.mktemp("trained")
    experiment = write_experiment(folder / "small.py", tasks=2, examples=20)
    options = ("--out", str(folder / "out"), "--jobs", "1", "--kernel", "reference")
    assert cli.main(["run", str(experiment), *options]) == 0
    return folder


@pytest.fixture
def out(trained: Path, tmp_path: Path) -> Path:
    """A copy of these results."""
    return Path(shutil.copytree(trained / "out", tmp_path / "out"))
