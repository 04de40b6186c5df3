"""Command lines made of the parser's own commands and flags, with good and bad values, each in a folder of its own."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
from pathlib import Path

from neoteny.cli import parser as cli
from support.fuzzing import RUN, TINY, Ending, call

GOOD = {
    "experiment": ("tiny.py", "./tiny.py"),
    "folder": ("done", "./done/"),
    "out": ("new", "deep/er/new", "with space", "ünï 中", "done"),
    "methods": ("BP", "BP,", " BP "),
    "runs": ("1", "2"),
    "scale": cli.SCALES,
    "device": ("cpu", "auto"),
    "kernel": ("reference",),
    "jobs": ("1", "7"),  # there is one stack to train
    "data": ("empty", "."),
    "tasks": ("1", "2"),
    "checkpoint_seconds": ("0", "60", "1e300"),
}
"""Values that are right, by the name of the argument; of arguments that are not here, every value is a guess."""
BAD = (
    *("", " ", ",", "-1", "0", "00", "1.5", "nan", "inf", "-inf", "1e999", "²", "٣", "9" * 30, "9" * 5000, "x" * 5000),
    *("nowhere", "nowhere/at/all", "done", "file.txt", "empty", "loop", "tiny.py", "/proc", "/dev/null", "/", ".."),
    *("scr-cpb", "a\0b", "a\nb", "ünï", "\udcff", "{x}", "%s", "--", "-", "--unknown", "--out", "[]", "{}", "null"),
)


class CommandLines:
    """Draws command lines and runs them in a new folder with an experiment, finished results and odd files."""

    def __init__(self, folder: Path) -> None:
        self._prepared, self._place = folder / "prepared", folder / "place"
        self._prepared.mkdir()
        text = TINY.partition("claims =")[0] + "claims = ()\n"
        text = text.replace("(bp, cbp), runs=2", "(bp,), runs=1").replace("tasks=3", "tasks=2")
        (self._prepared / "tiny.py").write_text(text)
        (self._prepared / "file.txt").write_text("somebody's file\n")
        (self._prepared / "empty").mkdir()
        (self._prepared / "loop").symlink_to("loop")
        with contextlib.chdir(self._prepared):
            assert call("run", "tiny.py", *RUN, "--out", "done").status == 0
        self._commands = dict(_commands(cli.make_parser()))
        assert len(self._commands) >= 7

    def check(self, draw: random.Random) -> Ending:
        """One command line: how it ended, and what it wrote."""
        shutil.rmtree(self._place, ignore_errors=True)
        shutil.copytree(self._prepared, self._place, symlinks=True)
        before = _contents(self._place)
        line = self._draw(draw)
        what = " ".join(repr(word if len(word) < 60 else word[:9] + "...") for word in line)
        with contextlib.chdir(self._place), _environment(NEOTENY_DATA=str(self._place / "empty")):
            said = call(*line)
        after = _contents(self._place)
        changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        problem = said.fault()
        if not problem:
            problem = _written(line, said.status, changed)
        return Ending(what, said.status != 0, problem)

    def _draw(self, draw: random.Random) -> list[str]:
        """A command with most of its arguments, some of them wrong, in any order."""
        command = draw.choice([name for name in self._commands for _ in range(1 if name[:1] in SLOWER else 4)])
        groups: list[list[str]] = []
        wrong = draw.random() * 0.5
        for action in self._commands[command]:
            if isinstance(action, argparse._HelpAction) and draw.random() < 0.95:
                continue
            needed = not action.option_strings
            for _ in range(draw.choice([1] * 20 + [0, 2]) if needed else draw.choice([0, 0, 0, 1, 1, 2])):
                flag = [] if needed else [draw.choice(action.option_strings)]
                values = [] if action.nargs == 0 else [_value(draw, command, action, wrong)]
                joined = len(flag) == len(values) == 1 and draw.random() < 0.3
                groups.append([f"{flag[0]}={values[0]}"] if joined else [*flag, *values])
        if draw.random() < 0.05:
            groups.append([draw.choice(BAD)])
        draw.shuffle(groups)
        return [*command, *(word for group in groups for word in group)]


SLOWER = (("report",), ("list",), ())
"""Commands that take longer than others, and are drawn less often."""


def _value(draw: random.Random, command: tuple[str, ...], action: argparse.Action, wrong: float) -> str:
    good = GOOD.get(action.dest)
    if good is not None and draw.random() > wrong:
        return draw.choice(good)
    bad = [value for value in BAD if not (action.dest == "runs" and value == "9" * 30)]  # it would be done, some day
    return draw.choice(bad)


def _commands(
    parser: argparse.ArgumentParser, name: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], list[argparse.Action]]]:
    """Every command with its arguments."""
    found: list[tuple[tuple[str, ...], list[argparse.Action]]] = []
    own = [action for action in parser._actions if not isinstance(action, argparse._SubParsersAction)]
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    found.append((name, own))
    for action in below:
        for word, child in action.choices.items():
            found += _commands(child, (*name, word))
    return found


def _contents(folder: Path) -> dict[str, bytes | None]:
    """Every path below with its contents; None of what is not a file."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in folder.rglob("*")
    }


def _written(line: list[str], status: int, changed: list[str]) -> str:
    """What was written and should not have been: anything by a command that was refused, or outside its folder."""
    others = [path for path in changed if not path.startswith(("done/locks", "done/.create.lock"))]
    if status and others:
        return f"status {status}, but it wrote {others}"
    if line[:1] not in (["run"], ["report"]) and others:
        return f"it wrote {others}"
    outs = [word.removeprefix("--out=") for number, word in enumerate(line) if "--out" in (line[number - 1], word[:5])]
    homes = {os.path.normpath(word) for word in [*outs, "results", "done"]}
    strays = [path for path in others if not any(path == home or _below(path, home) for home in homes)]
    return f"it wrote {strays}" if strays else ""


def _below(path: str, home: str) -> bool:
    return path.startswith(f"{home}/") or home.startswith(f"{path}/")


@contextlib.contextmanager
def _environment(**values: str):
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
