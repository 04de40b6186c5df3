"""What all fuzzing shares: a command called in this process, and what is wrong with how it ended."""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import signal
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from neoteny.cli import parser as cli

SECONDS = 120
"""A command that takes longer waits for something that does not come."""

_BARE = re.compile(
    r"\b(KeyError|AttributeError|IndexError|UnboundLocalError|NotImplementedError|jinja2|AssertionError)\b"
)


@dataclass(frozen=True)
class Said:
    """What a command said, and its exit status; -1 where it raised."""

    status: int
    out: str
    err: str

    def fault(self, place: str = "") -> str:
        """What is wrong with it: a traceback, no message, or an error's bare name; "" if nothing.

        Args:
            place: a message that holds this text may name any error: it says where the error is.
        """
        if self.status not in (0, 1, 2, 130):
            return f"status {self.status}: {self.err}"
        if "Traceback (most recent call last)" in self.out + self.err:
            return f"traceback: {self.err}"
        if self.status in (1, 2) and not self.out.startswith("usage") and "neoteny" not in self.err:
            return f"status {self.status} without a message: {self.err!r}"
        bare = [line for line in self.err.splitlines() if _BARE.search(line) and not (place and place in line)]
        return f"an error without a sentence: {bare[0]}" if bare else ""


@dataclass(frozen=True)
class Ending:
    """How a case ended: what it was, whether it was refused, and what was wrong ("": nothing)."""

    what: str
    refused: bool
    problem: str

    def __str__(self) -> str:
        return f"{self.what}: {self.problem or ('refused' if self.refused else 'fine')}"


def call(*arguments: str | Path) -> Said:
    """Call a command as the console script does, in this process."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)  # as strict as those of a terminal
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace", write_through=True)
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(action="default"),
        _limit(),
    ):
        try:
            status = cli.main([str(each) for each in arguments])
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
            status = -1
    return Said(status, _read(out), _read(err))


def _read(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


@contextlib.contextmanager
def _limit() -> Iterator[None]:
    """TimeoutError after `SECONDS`: a test must not hang where a command does."""

    def stop(_number: int, _frame: Any) -> None:
        raise TimeoutError(f"the command takes longer than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Cases(Protocol):
    """Draws cases and says how each ended."""

    def check(self, draw: random.Random) -> Ending:
        """Draw a case and run it."""
        ...


def problems(cases: Cases, count: int) -> list[str]:
    """What went wrong in the first `count` cases; NEOTENY_FUZZ=20 in the environment: in twenty times as many."""
    seeds = range(count * int(os.environ.get("NEOTENY_FUZZ", "1")))
    endings = {seed: cases.check(random.Random(seed)) for seed in seeds}
    assert any(ending.refused for ending in endings.values()), "nothing was refused: nothing was tested"
    assert not all(ending.refused for ending in endings.values())
    return [f"seed {seed}: {ending}" for seed, ending in endings.items() if ending.problem]


def first_fault(said: Sequence[Said], place: str = "") -> str:
    """What is wrong with the first of these that is wrong."""
    return next(filter(None, (each.fault(place) for each in said)), "")


TINY = '''
"""A tiny experiment for fuzzing

Backpropagation and continual backpropagation.
"""
from neoteny.methods import SGD, ContinualBackprop
from neoteny.nets import MLP
from neoteny.problems import SlowlyChangingRegression
from neoteny.report.chart import Chart
from neoteny.report.claim import Claim, above
from neoteny.report.statistics import curve, paired, per_run, select
from neoteny.suite.sweep import Setting, Sweep, network

NET = network(MLP, hidden=(3,), activation="relu")


def sweep(scale):
    bp = Setting("BP", NET, (SGD(0.01),), {"step_size": 0.01})
    cbp = Setting("CBP", NET, (SGD(0.01), ContinualBackprop(1e-2, maturity_threshold=5)), {"step_size": 0.01})
    return Sweep(SlowlyChangingRegression(tasks=3, examples_per_task=8), (bp, cbp), runs=2, measures=("dead_units",),
                 probe_examples=10)


def figure(frame):
    return [Chart("error", "task", "error", [curve(select(frame, "error", setting=name), name)
            for name in frame["setting"].unique()])]


def check(frame):
    bp, cbp = (per_run(select(frame, "error", method=method)) for method in ("BP", "CBP"))
    return above(paired(bp, cbp), what="error of BP minus CBP")


claims = (Claim("cbp-better", "Continual backpropagation has a lower error.", "Figure 1", check),)
'''.lstrip()
"""Two stacks of two runs; trained by the library in a tenth of a second."""

RUN = ("--jobs", "1", "--kernel", "reference")
