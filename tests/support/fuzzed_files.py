"""Results folders with one damaged file, and whether the commands notice: right numbers or a clear error."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from neoteny.cli.parser import RunOptions
from neoteny.cli.run import prepare
from neoteny.suite.session import Job
from neoteny.suite.stopping import StopFlag
from neoteny.suite.store.errors import Stopped, StoreError
from neoteny.suite.store.results import Results
from neoteny.suite.worker import Worker
from support.fuzzing import RUN, TINY, Ending, Said, call, first_fault

SHAPES: tuple[Any, ...] = (None, [], {}, "", 0, -1, 1e308, True, "x" * 300, [[]], {"runs": {}}, [None], 2**70)
"""JSON of another shape."""
_KEYS = ["run_id", "metric", "task"]


class _StopSoon(StopFlag):
    """Asks to stop when it was looked at a few times."""

    looks = 0

    def __bool__(self) -> bool:
        self.looks += 1
        return self.looks > 2


class Folders:
    """Copies of one results folder that holds a file of every kind: one stack is finished, one has checkpoints."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._experiment = folder / "tiny.py"
        self._experiment.write_text(TINY)
        self._prepared, self.root = folder / "prepared", folder / "results"
        self._make()
        self.files = sorted(path.relative_to(self._prepared) for path in self._prepared.rglob("*") if path.is_file())
        assert {path.parts[0] for path in self.files} >= {"experiment.json", "parts", "unfinished", "checkpoints"}

        self._copy()
        self._so_far = Results.open(self.root).frame(so_far=True)
        self._claims = call("claims", self.root)
        assert self._run().status == 0
        self._table = Results.open(self.root).frame()
        assert len(self._table) > len(self._so_far) > 0

    def check(self, draw: random.Random) -> Ending:
        """Damage one file, look at the folder with every command, and run it to its end, with --repair if need be."""
        self._copy()
        path = draw.choice(self.files)
        damage = draw.choice(list(DAMAGES))
        what = f"{path} {damage}"
        if not DAMAGES[damage](self.root / path, draw):
            return Ending(what, False, "")
        said = [call("claims", self.root), call("status", self.root)]
        said.append(call("claims", self.root, self._experiment, "--so-far"))
        if draw.random() < 0.1:
            said.append(call("report", self.root))
        problem = first_fault(said) or self._read(said[0])
        said.append(self._run())
        if not problem and said[-1].status == 1:
            said.append(self._run("--repair"))
        problem = problem or first_fault(said)
        if not problem and said[-1].status == 0:
            problem = self._finished()
        return Ending(what, any(each.status for each in said), problem)

    def _make(self) -> None:
        assert call("run", self._experiment, *RUN, "--methods", "BP", "--out", self._prepared).status == 0
        launch = prepare(RunOptions(str(self._experiment), kernel="reference", out=self._prepared))
        stop, device = _StopSoon(), launch.device
        job = Job(launch.results, launch.streams, device, launch.kernel, 0.0, 1, stop, lambda line: None)
        try:
            Worker(launch.sweep, job).run()
        except Stopped:
            return
        raise AssertionError("it did not stop")

    def _copy(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self._prepared, self.root)

    def _run(self, *flags: str) -> Said:
        return call("run", self._experiment, *RUN, *flags, "--out", self.root)

    def _read(self, claims: Said) -> str:
        """What is wrong with the tables of the damaged folder."""
        for so_far in (False, True):
            try:
                found = Results.open(self.root).frame(so_far=so_far)
            except StoreError:
                continue
            except Exception as error:
                return f"frame(so_far={so_far}) raised {type(error).__name__}: {error}"
            wrong = _difference(found, self._table)
            if wrong:
                return f"frame(so_far={so_far}): {wrong}"
            complete = not so_far and found["run_id"].nunique() == 2
            if complete and claims.status == 0 and claims.out != self._claims.out:
                return f"other claims: {claims.out}"
        return ""

    def _finished(self) -> str:
        """What is wrong with the table after a run that says it is done."""
        try:
            found = Results.open(self.root).frame()
        except StoreError as error:
            return f"done, but {error}"
        return "" if found.equals(self._table) else f"done, {_difference(found, self._table) or 'runs are missing'}"


def _difference(found: pd.DataFrame, expected: pd.DataFrame) -> str:
    """Rows that are not among those of the undamaged table; missing ones are not other numbers."""
    if found.empty:
        return ""
    if list(found.columns) != list(expected.columns):
        return f"columns {list(found.columns)}"
    if found.duplicated(_KEYS).any():
        return "rows twice"
    both = found.merge(expected, how="left", indicator=True)  # on all columns
    others = both[both["_merge"] != "both"]
    return f"{len(others)} other rows, such as {others.iloc[0].to_dict()}" if len(others) else ""


def _truncate(path: Path, draw: random.Random) -> bool:
    os.truncate(path, int(path.stat().st_size * draw.random()))
    return True


def _flip(path: Path, draw: random.Random) -> bool:
    content = bytearray(path.read_bytes())
    if content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
    return bool(content)


def _insert(path: Path, draw: random.Random) -> bool:
    content = path.read_bytes()
    at = int(len(content) * draw.random())
    new = draw.choice([b"\0", b"{", b'"', b"\xff\xfe", b"9", draw.randbytes(50)])
    path.write_bytes(content[:at] + new + content[at + draw.choice([0, len(new)]) :])
    return True


def _swap(path: Path, draw: random.Random) -> bool:
    others = [other for other in path.parents[0].iterdir() if other.is_file() and other != path]
    if others:
        other, between = draw.choice(sorted(others)), path.with_name("between")
        path.rename(between)
        other.rename(path)
        between.rename(other)
    return bool(others)


def _duplicate(path: Path, draw: random.Random) -> bool:
    name = draw.choice(["0123456789abcdef", "copy of " + path.stem, "." + path.stem, "f" * 16, path.stem + "-2"])
    shutil.copyfile(path, path.with_name(name + path.suffix))
    return True


def _other_shape(path: Path, draw: random.Random) -> bool:
    path.write_text(json.dumps(draw.choice(SHAPES)))
    return True


def _other_value(path: Path, draw: random.Random) -> bool:
    """Somewhere in a JSON file a value becomes another, or goes."""
    if path.suffix != ".json":
        return False
    content = json.loads(path.read_text())
    place = content
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return False
        key = draw.choice(keys)
        if isinstance(place[key], (dict, list)) and place[key] and draw.random() < 0.7:
            place = place[key]
            continue
        before = place[key]
        if draw.random() < 0.2:
            del place[key]
        else:
            place[key] = draw.choice([shape for shape in SHAPES if shape != before])
        path.write_text(json.dumps(content))
        return True


def _other_version(path: Path, draw: random.Random) -> bool:
    if path.suffix != ".json":
        return False
    content = json.loads(path.read_text())
    for name in ("format", "results_version"):
        if name in content:
            content[name] = draw.choice([0, 2, 99, "1", None])
    path.write_text(json.dumps(content))
    return True


def _directory(path: Path, draw: random.Random) -> bool:
    path.unlink()
    path.mkdir()
    if draw.random() < 0.5:
        (path / "inside").touch()
    return True


def _link(path: Path, draw: random.Random) -> bool:
    path.unlink()
    path.symlink_to(draw.choice(["nowhere", path.name, "/dev/zero", "/dev/null", "/proc/self/mem", ".."]))
    return True


def _pipe(path: Path, draw: random.Random) -> bool:
    path.unlink()
    os.mkfifo(path)
    return True


def _delete(path: Path, draw: random.Random) -> bool:
    path.unlink()
    return True


def _empty(path: Path, draw: random.Random) -> bool:
    os.truncate(path, 0)
    return True


def _protect(path: Path, draw: random.Random) -> bool:
    path.chmod(0)
    return True


DAMAGES: dict[str, Callable[[Path, random.Random], bool]] = {
    "cut short": _truncate,
    "with another bit": _flip,
    "with other bytes": _insert,
    "exchanged with its neighbour": _swap,
    "under a second name": _duplicate,
    "of another shape": _other_shape,
    "with another value": _other_value,
    "of another version": _other_version,
    "as a folder": _directory,
    "as a link": _link,
    "as a pipe": _pipe,
    "deleted": _delete,
    "empty": _empty,
    "unreadable": _protect,
}
"""Ways to damage a file; each says whether it could be done."""
