"""Checkpoints that cannot be used: each is skipped with a reason, and the one before it is used."""

from __future__ import annotations

import hashlib
import os
import pickle
import resource
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from neoteny.suite.session import Job, Session
from neoteny.suite.stacks import runs_of, stacks_of
from neoteny.suite.store.checkpoints import Checkpoints
from neoteny.suite.store.errors import StoreError
from neoteny.suite.store.results import CHECKPOINT, Results
from support.small_sweeps import CPU, PROBLEM, make_sweep

STATE = {"training": {}, "device": "cpu", "kernel": "reference", "threads": 1, "seconds": 0.5, "resumed": 0}


class Evil:
    """Runs a command when it is unpickled without care."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("evil",)


def put(folder: Path, content: bytes, number: int = 9) -> Path:
    """A file whose name says that it is whole."""
    path = folder / f"{number:06d}-{hashlib.sha256(content).hexdigest()[:16]}.pt"
    path.write_bytes(content)
    return path


def saved(folder: Path, value: Any) -> bytes:
    torch.save(value, folder / "made")
    content = (folder / "made").read_bytes()
    (folder / "made").unlink()
    return content


def zipped(folder: Path) -> bytes:
    with zipfile.ZipFile(folder / "made", "w") as file:
        file.writestr("letter.txt", "a zip file of another kind")
    content = (folder / "made").read_bytes()
    (folder / "made").unlink()
    return content


def test_every_file_that_cannot_be_used_is_skipped_for_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "0123456789abcdef"
    checkpoints = Checkpoints(folder, CHECKPOINT)
    good = checkpoints.save(STATE)
    less = {name: value for name, value in STATE.items() if name != "seconds"}
    cases = {
        "it cannot be loaded": [b"", b"text", zipped(folder), pickle.dumps(Evil()), saved(folder, Evil())],
        "found a list": [saved(folder, [1, 2])],
        "found format 99": [saved(folder, {"format": 99, **STATE})],
        "it is of stack 'another'": [saved(folder, {"format": 2, "stack": "another", **STATE})],
        "it is of stack None": [saved(folder, {"format": 2, **STATE})],
        "field seconds must be of type float, found nothing": [saved(folder, {"format": 1, **less})],
        "field training must be of type dict, found list": [saved(folder, {"format": 1, **STATE, "training": []})],
    }
    for reason, contents in cases.items():
        for content in contents:
            path = put(folder, content)
            state, notes = checkpoints.load(CPU)
            assert state is not None
            assert state["seconds"] == 0.5
            assert len(notes) == 1
            assert str(path) in notes[0]
            assert reason in notes[0]
            path.unlink()
    assert not (tmp_path / "evil").exists()
    good.write_bytes(good.read_bytes()[:-1])
    state, notes = checkpoints.load(CPU)
    assert state is None
    assert "its checksum differs" in notes[0]
    assert "starts from the beginning" in notes[1]


def test_checkpoints_of_the_earlier_format_are_read_and_foreign_names_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "0123456789abcdef"
    folder.mkdir()
    put(folder, saved(folder, {"format": 1, **STATE}), 4)
    for name in ("notes.pt", "7-notes.pt", "9x-0123456789abcdef.pt"):
        (folder / name).write_text("")
    checkpoints = Checkpoints(folder, CHECKPOINT)
    state, notes = checkpoints.load(CPU)
    assert state is not None
    assert notes == []
    assert checkpoints.save(STATE).name.startswith("000005-")


def test_a_state_that_does_not_fit_ends_in_words(tmp_path: Path) -> None:
    sweep = make_sweep(runs=1)
    about = {"experiment": "one", "scale": "smoke", "data": "", "configuration": {}, "versions": {}}
    results = Results.create(tmp_path, about)
    (stack,) = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    job = Job(results, {PROBLEM: PROBLEM.open()}, CPU, "reference", 60.0, notify=lambda line: None)
    checkpoints = results.checkpoints(stack.stack_id)
    session = Session(job, stack)
    whole = session._training.state_dict()
    for change in ({"stack": {}}, {"total": torch.zeros(5)}, {"rows": []}, {"task": None}, {"task": 7}):
        checkpoints.save({**STATE, "training": {**whole, **change}})
        with pytest.raises(StoreError, match="its checkpoint does not fit this experiment"):
            Session(job, stack)
        checkpoints.clear()


@pytest.mark.parametrize("floats", [10, 10_000, 1_000_000])  # the buffer of a file holds the first of them
def test_a_checkpoint_for_which_there_is_no_space_says_so_and_leaves_the_one_before(
    tmp_path: Path, floats: int
) -> None:
    checkpoints = Checkpoints(tmp_path / "0123456789abcdef", CHECKPOINT)
    good = checkpoints.save(STATE)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(StoreError, match=r"No space left to write .*free some space and repeat the command"):
            checkpoints.save({**STATE, "training": {"weight": torch.zeros(floats)}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(good.parent.iterdir()) == [good]
