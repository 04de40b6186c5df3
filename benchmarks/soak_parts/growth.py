"""Memory and open files of a process over a long part, and whether they stay flat."""

from __future__ import annotations

import gc
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

MIB = 2**20
SAMPLES = 11
WARM_SAMPLES = 5
"""The first samples, which the fitted lines leave out: caches fill, code is specialised, the allocator settles."""


@dataclass(frozen=True)
class Sample:
    """One look at a process; `blocks` are the memory blocks of Python's allocator, known of this process alone."""

    iteration: float
    memory_bytes: int
    files: int
    blocks: int | None


def look(iteration: float, process: int | None = None) -> Sample:
    """A sample of this process after a garbage collection, or of another one.

    Raises:
        OSError: the other process has ended.
    """
    blocks = None
    if process is None:
        gc.collect()
        blocks = sys.getallocatedblocks()
    folder = Path("/proc") / str(process or "self")
    pages = int((folder / "statm").read_text().split()[1])
    if process is not None:  # it may be writing a file just now
        return Sample(iteration, pages * resource.getpagesize(), min(_count_files(folder) for _ in range(10)), None)
    files = len(os.listdir(folder / "fd")) - 1  # the listing itself is an open file of this process
    return Sample(iteration, pages * resource.getpagesize(), files, blocks)


def _count_files(folder: Path) -> int:
    time.sleep(0.02)
    return len(os.listdir(folder / "fd"))


@dataclass(frozen=True)
class Limits:
    """How much the fitted line may grow over the samples it is fitted to."""

    memory_mib: float = 2.0
    files: float = 0.5
    blocks: float = 500.0


@dataclass
class Growth:
    """The samples of one part, and the verdict on them.

    Args:
        name: of the part.
        limits: what still counts as flat.
        faults: what went wrong besides, one line each.
    """

    name: str
    limits: Limits = field(default_factory=Limits)
    samples: list[Sample] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    note: str = ""

    def repeat(self, iterations: int, act: Callable[[], object]) -> None:
        """Call `act` as often as that, with samples at equal distances; a twentieth more goes before the first."""
        gc.collect()
        gc.freeze()  # what was imported need not be looked at again, and a collection takes a millisecond
        for _ in range(max(1, iterations // 20)):
            act()
        at = 0
        for stop in sample_points(iterations):
            for _ in range(stop - at):
                act()
            at = stop
            self.add(look(at))

    def add(self, sample: Sample) -> None:
        """Keep a sample; it is printed too, because a part may take an hour."""
        self.samples.append(sample)
        text = f"  {sample.iteration:,.0f}: {sample.memory_bytes / MIB:.2f} MiB, {sample.files} files"
        print(text + ("" if sample.blocks is None else f", {sample.blocks:,} blocks"), file=sys.stderr, flush=True)

    def slope(self, what: str) -> float | None:
        """Growth per iteration of "memory_bytes", "files" or "blocks" after the warm-up.

        The median of the slopes between all pairs of samples (Theil-Sen), which a single high one does not move.
        """
        fitted = [(sample.iteration, getattr(sample, what)) for sample in self.samples[WARM_SAMPLES:]]
        if None in (value for _, value in fitted):
            return None
        pairs = [(later, earlier) for earlier, later in combinations(fitted, 2) if later[0] > earlier[0]]
        return statistics.median((y - v) / (x - u) for (x, y), (u, v) in pairs) if pairs else 0.0

    def faults_found(self) -> list[str]:
        """What is not flat, and what else went wrong."""
        bounds = {
            "memory_bytes": self.limits.memory_mib * MIB,
            "files": self.limits.files,
            "blocks": self.limits.blocks,
        }
        short = [f"{len(self.samples)} samples instead of {SAMPLES}"] if len(self.samples) != SAMPLES else []
        grown = [what for what, bound in bounds.items() if (self.slope(what) or 0.0) * self._span() > bound]
        return [*short, *(f"{what} grows" for what in grown), *self.faults]

    def row(self) -> list[str]:
        """The cells of one line of the table, under `HEADER`."""
        ends = [self.samples[place] for place in (0, len(self.samples) // 2, -1)]
        memory, blocks = self.slope("memory_bytes") or 0.0, self.slope("blocks")
        return [
            self.name,
            f"{self.samples[-1].iteration:.0f}",
            *(f"{sample.memory_bytes / MIB:.1f}" for sample in ends),
            f"{memory * 1000 / 1024:.2f}",
            f"{self.limits.memory_mib * 1024 / self._span() * 1000:.1f}",
            "-" if blocks is None else f"{blocks * 1000:.1f}",
            "-" if blocks is None else f"{self.limits.blocks / self._span() * 1000:.1f}",
            "/".join(str(sample.files) for sample in ends),
            "missed" if self.faults_found() else "met",
        ]

    def _span(self) -> float:
        """The iterations that the lines are fitted to."""
        return self.samples[-1].iteration - self.samples[min(WARM_SAMPLES, len(self.samples) - 1)].iteration or 1.0


HEADER = ["part", "iterations", "MiB: start", "middle", "end", "KiB per 1,000", "limit", "blocks per 1,000", "limit"]
HEADER += ["open files", "flat"]


def sample_points(iterations: int) -> Iterator[int]:
    """At which iterations to look: first, last and equally far apart between them."""
    return (round(iterations * number / (SAMPLES - 1)) for number in range(SAMPLES))
