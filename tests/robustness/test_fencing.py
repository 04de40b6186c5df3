"""A worker that was paused and lost its stack cannot write over its successor: real processes, real signals.

In a folder, without any lock of the operating system, and in a bucket of objects.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from neoteny.suite.store.objects import open_storage
from neoteny.suite.store.remote import fetch_results
from neoteny.suite.store.results import Results
from support.object_store import bucket
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


@dataclass(frozen=True)
class Place:
    """Where two workers meet, and what processes need to find it."""

    address: str
    environment: Mapping[str, str]

    def names(self, folder: str) -> list[str]:
        """The files in a folder of the results."""
        return sorted(open_storage(self.address).list(folder))

    def parts(self) -> dict[str, tuple[str, bytes]]:
        """Every file of the parts, with what a rewriting would change."""
        storage = open_storage(self.address)
        return {name: (stamp, storage.read(f"parts/{name}")) for name, stamp in sorted(storage.list("parts").items())}


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if request.param == "folder":
        yield Place((tmp_path / "out").as_uri(), {})
        return
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    with bucket() as (address, variables):
        yield Place(f"{address}/{tmp_path.name}", {**variables, "XDG_CACHE_HOME": str(tmp_path / "cache")})


@pytest.mark.parametrize("woken", ["after its successor has finished", "while its successor is at work"])
def test_a_paused_worker_that_wakes_up_late_is_refused(
    tmp_path: Path, zygote: Zygote, whole: tuple[Path, Path], place: Place, woken: str
) -> None:
    experiment, expected = whole
    logs = [tmp_path / "paused.txt", tmp_path / "successor.txt"]
    folder = place.address.startswith("file:")
    out = tmp_path / "out" if folder else place.address  # as a folder that machines share, not as a storage
    command = ("run", experiment, "--kernel", "reference", "--jobs", "1", "--out", out, "--shard", "0/1")
    command += ("--lease-seconds", "1", "--checkpoint-seconds", "0")
    paused = zygote.start(*command, output=logs[0], environment=place.environment)
    wait_until(lambda: bool(place.names("progress")))
    (stack,) = (name.removesuffix(".json") for name in place.names("progress"))
    wait_until(lambda: any(name[0].isdigit() for name in place.names(f"checkpoints/{stack}")))
    os.kill(paused, signal.SIGSTOP)
    assert not place.names("parts")
    successor = zygote.start(*command, output=logs[1], environment=place.environment)
    wait_until(lambda: "000002.json" in place.names(f"leases/{stack}"))
    if woken == "while its successor is at work":
        os.kill(paused, signal.SIGCONT)
        wait_until(lambda: "taken over" in logs[0].read_text())
        assert not place.names("parts")
    assert zygote.wait(successor) == 0, logs[1].read_text()
    before = place.parts()
    assert len(before) == 2
    if woken == "after its successor has finished":
        os.kill(paused, signal.SIGCONT)
    assert zygote.wait(paused) == 0, logs[0].read_text()

    assert "taken over" in logs[0].read_text()
    assert place.parts() == before
    results = Results.open(fetch_results(place.address))
    (part,) = results.parts()
    assert part["lease"] == 2
    assert part["resumed"] == 1
    assert results.frame().equals(Results.open(expected).frame())
    assert not place.names(f"leases/{stack}")
    assert not place.names(f"checkpoints/{stack}")
