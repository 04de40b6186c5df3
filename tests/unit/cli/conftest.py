"""One finished small experiment for all tests of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.suite import Zygote, write_experiment


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> Path:
    """A finished small experiment; do not change it."""
    folder = tmp_path_factory.mktemp("finished")
    experiment = write_experiment(folder / "small.py")
    log = folder / "log.txt"
    assert zygote.run("run", experiment, "--out", folder / "out", "--jobs", "1", output=log) == 0, log.read_text()
    return folder
