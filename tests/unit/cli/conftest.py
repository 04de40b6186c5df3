"""One process that forks commands, and one finished experiment, for a whole file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.suite import Zygote, write_experiment


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> Path:
    """A finished small experiment; do not change it."""
    folder = tmp_path_factory.mktemp("finished")
    experiment = write_experiment(folder / "small.py")
    log = folder / "log.txt"
    assert zygote.run("run", experiment, "--out", folder / "out", "--jobs", "1", output=log) == 0, log.read_text()
    return folder
