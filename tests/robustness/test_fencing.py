"""A worker that was paused and lost its stack cannot write over its successor: real processes, real signals."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from neoteny.suite.store.results import Results
from support.suite import Zygote, wait_until, write_experiment


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> tuple[Path, Path]:
    """An experiment of one stack, and the results of an undisturbed run."""
    folder = tmp_path_factory.mktemp("fencing")
    experiment = write_experiment(folder / "fenced.py", tasks=60, examples=25, first=2)
    log = folder / "log.txt"
    command = ("run", experiment, "--kernel", "reference", "--jobs", "1", "--out", folder / "whole")
    assert zygote.run(*command, output=log) == 0, log.read_text()
    return experiment, folder / "whole"


def state_of(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file of the parts, with what a rewriting would change."""
    return {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted((folder / "parts").iterdir())
    }


@pytest.mark.parametrize("woken", ["after its successor has finished", "while its successor is at work"])
def test_a_paused_worker_that_wakes_up_late_is_refused(
    tmp_path: Path, zygote: Zygote, whole: tuple[Path, Path], woken: str
) -> None:
    experiment, expected = whole
    out, logs = tmp_path / "out", [tmp_path / "paused.txt", tmp_path / "successor.txt"]
    command = ("run", experiment, "--kernel", "reference", "--jobs", "1", "--out", out, "--shard", "0/1")
    command += ("--lease-seconds", "1", "--checkpoint-seconds", "0")
    paused = zygote.start(*command, output=logs[0])
    wait_until(lambda: any(out.glob("checkpoints/*/[0-9]*.pt")))
    os.kill(paused, signal.SIGSTOP)
    assert not list(out.glob("parts/*.parquet"))
    successor = zygote.start(*command, output=logs[1])
    wait_until(lambda: any(out.glob("leases/*/000002.json")))
    if woken == "while its successor is at work":
        os.kill(paused, signal.SIGCONT)
        wait_until(lambda: "taken over" in logs[0].read_text())
        assert not list(out.glob("parts/*.parquet"))
    assert zygote.wait(successor) == 0, logs[1].read_text()
    before = state_of(out)
    assert len(before) == 2
    if woken == "after its successor has finished":
        os.kill(paused, signal.SIGCONT)
    assert zygote.wait(paused) == 0, logs[0].read_text()

    assert "taken over" in logs[0].read_text()
    assert state_of(out) == before
    results = Results.open(out)
    (part,) = results.parts()
    assert part["lease"] == 2
    assert part["resumed"] == 1
    assert results.frame().equals(Results.open(expected).frame())
    assert not list(out.glob("leases/*/*"))
    assert not list(out.glob("checkpoints/*"))
