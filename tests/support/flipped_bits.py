"""A small results folder with every kind of file, in which bits are flipped, and how each flip ends."""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from neoteny.cli import parser as cli
from neoteny.cli import run as launch
from neoteny.cli.analysis import Part, analyse
from neoteny.experiments import ExperimentError
from neoteny.suite.progress import status_text
from neoteny.suite.stopping import StopFlag
from neoteny.suite.store.errors import StoreError
from neoteny.suite.store.folder import ResultsFolder
from neoteny.suite.store.results import Results

KINDS = {
    "experiment.json": "experiment.json",
    "experiment.py": "experiment.py",
    "analysis": "analysis.json",
    "plan": "plan.json",
    "part, table": "parts/*.parquet",
    "part, description": "parts/*.json",
    "unfinished table": "unfinished/*.parquet",
    "progress": "progress/*.json",
    "checkpoint": "checkpoints/*/*.pt",
}
"""The kinds of files, each with where they are."""
RESULTS = ("refused", "harmless", "other", "traceback")
CONTINUED = 0.1
"""The share of flips outside checkpoints after which the run is continued."""
EXPERIMENT = '''
"""Two methods, small."""
from neoteny.methods import SGD, Adam
from neoteny.nets import MLP
from neoteny.problems import SlowlyChangingRegression
from neoteny.report.claim import Claim, above
from neoteny.report.statistics import paired, per_run, select
from neoteny.suite.sweep import Setting, Sweep, network

NET = network(MLP, hidden=(3,))


def sweep(scale):
    settings = (Setting("SGD", NET, (SGD(0.01),)), Setting("Adam", NET, (Adam(0.01),)))
    return Sweep(SlowlyChangingRegression(tasks=4, examples_per_task=4), settings, runs=2)


def figure(frame):
    return []


def check(frame):
    return above(paired(*(per_run(select(frame, "error", method=name)) for name in ("SGD", "Adam"))), what="error")


claims = (Claim("adam", "Adam has a lower error.", "nowhere", check),)
'''


class StopAt(StopFlag):
    """A Ctrl-C that comes when the flag is looked at for the n-th time: before every stack, after every block."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._looks = looks

    def __bool__(self) -> bool:
        self._looks -= 1
        return self._looks <= 0


class Silent(Exception):
    """A command gave other numbers, and nothing was said."""


class Bench:
    """A folder with every kind of file, and what commands give on it.

    Args:
        place: an empty folder to work in.
    """

    def __init__(self, place: Path) -> None:
        self.experiment, self.folder, self.pristine = place / "small.py", place / "results", place / "pristine"
        self.experiment.write_text(textwrap.dedent(EXPERIMENT).lstrip())
        # SGD takes one look before its stack and one after each task, Adam stops after its third.
        assert self._run(looks=1 + 4 + 1 + 3)[0] == launch.STOPPED
        shutil.copytree(self.folder, self.pristine)
        self.kinds = {kind: sorted(self.pristine.glob(pattern)) for kind, pattern in KINDS.items()}
        assert all(self.kinds.values()), self.kinds
        self.expected = self._look()
        assert self._run()[0] == 0
        self.finished = Results.open(self.folder).frame()

    def flip(self, draw: random.Random, kind: str) -> str:
        """Flip a bit in a file of a kind; returns how it ended."""
        shutil.rmtree(self.folder)
        shutil.copytree(self.pristine, self.folder)
        path = self.folder / draw.choice(self.kinds[kind]).relative_to(self.pristine)
        content = bytearray(path.read_bytes())
        at = draw.randrange(len(content) * 8)
        content[at // 8] ^= 1 << at % 8
        path.write_bytes(content)
        try:
            named = self._look_at_flipped(path)
            if kind == "checkpoint" or draw.random() < CONTINUED:
                named |= self._continue(path)
        except Silent as silent:
            print(f"OTHER NUMBERS {path.name}, bit {at}: {silent}", file=sys.stderr)
            return "other"
        except Exception as error:
            print(f"TRACEBACK {path.name}, bit {at}: {type(error).__name__}: {error}", file=sys.stderr)
            return "traceback"
        return "refused" if named else "harmless"

    def _look_at_flipped(self, path: Path) -> bool:
        """Whether some command named the damage; those that did not must give what they gave before."""
        found = self._look()
        changed = [name for name, value in found.items() if not same(value, self.expected[name])]
        named = any(isinstance(value, Refusal) for value in found.values()) or path.name in str(found["status"])
        silent = [name for name in changed if not isinstance(found[name], Refusal) and name != "status"]
        if silent or (changed and not named):
            raise Silent(", ".join(silent or changed))
        return named

    def _continue(self, path: Path) -> bool:
        """Run to the end, with --repair where it is refused without; the table must be that of a whole folder."""
        before = snapshot(self.folder)
        code, said = self._run()
        named = path.name in said
        if code != 0:
            if not named:
                raise Silent(f"run ended with {code}: {said}")
            if snapshot(self.folder) != before:
                raise Silent("run was refused and changed files")
            code, said = self._run("--repair")
            if code != 0:
                raise Silent(f"--repair ended with {code}: {said}")
        if not Results.open(self.folder).frame().equals(self.finished):
            raise Silent("run")
        return named

    def _run(self, *more: str, looks: int = 0) -> tuple[int, str]:
        """`neoteny run`, in this process; its exit status and what it said."""
        flag = launch.StopFlag
        launch.StopFlag = (lambda: StopAt(looks)) if looks else flag
        arguments = ["run", self.experiment, "--out", self.folder, "--jobs", "1", "--kernel", "reference", *more]
        try:
            with captured() as said:
                code = cli.main([*map(str, arguments), "--checkpoint-seconds", "0"])
        except SystemExit as error:
            return 2, str(error)
        finally:
            launch.StopFlag = flag
        return code, said.getvalue()

    def _look(self) -> dict[str, Any]:
        """What commands that read give: a value, or a refusal in words."""
        out = self.folder

        def judge(trust: bool) -> list[Any]:
            results = Results.open(out)
            analysis, _, note = analyse(results, Part(trust=trust))
            return [results.plan(), results.parts(), results.about, analysis, note]

        return {
            "status": words(lambda: status_text(ResultsFolder.open(out))),
            "frame": words(lambda: Results.open(out).frame()),
            "so far": words(lambda: Results.open(out).frame(so_far=True)),
            "claims": words(lambda: judge(trust=False)),
            "claims by the copy": words(lambda: judge(trust=True)),
        }


class Refusal(str):
    """An error in words."""


def words(call: Callable[[], Any]) -> Any:
    """What a call gives, or its refusal; any error that is not meant for the person is raised."""
    try:
        return call()
    except (StoreError, ExperimentError) as error:
        return Refusal(error)


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal bit for bit."""
    return type(one) is type(other) and bool(one.equals(other) if hasattr(one, "equals") else one == other)


def snapshot(folder: Path) -> dict[Path, bytes]:
    """All files of a folder but its locks."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}


@contextlib.contextmanager
def captured() -> Iterator[io.StringIO]:
    """What is printed meanwhile."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        yield said


def count_flips(place: Path, flips: int, seed: int) -> dict[str, Counter[str]]:
    """How flips ended, for each kind of file, in turn."""
    bench, draw = Bench(place), random.Random(seed)
    counts = {kind: Counter() for kind in bench.kinds}
    for number in range(flips):
        kind = list(counts)[number % len(counts)]
        counts[kind][bench.flip(draw, kind)] += 1
    return counts
