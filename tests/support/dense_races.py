"""Trains learners by the dense CUDA kernel on the host while gcc's thread sanitizer watches the threads of a block.

A place that two threads touch without a barrier between them ends this process with the status `RACE`. The sanitizer
has to be loaded before all else, so this is a process of its own (`watch`). What a warp does by itself is not seen: on
the host it is one thread.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.cuda_on_host import HostDenseCuda, compiler, host_source, library
from support.dense_cases import SEEDS, build, stream_of
from support.dense_learners import LEARNERS

RACE = 66
_SETTINGS = f"exitcode={RACE} halt_on_error=1 report_signal_unsafe=0"


class Watched(HostDenseCuda):
    """The dense CUDA kernel with four threads per block; `unguarded`: text whose barriers are taken out."""

    threads = 4
    unguarded = ""

    def _prepare(self) -> None:
        text = host_source(self._constants, self._packed.dtype.itemsize)
        if self.unguarded not in text:
            raise ValueError(f"the kernel has no {self.unguarded!r}")
        text = text.replace(self.unguarded, self.unguarded.replace("sync();", ""))
        self._library = library(text, ("-fsanitize=thread",))


@functools.cache
def sanitizer() -> str:
    """The path of gcc's thread sanitizer where a process can be started with it, else ""."""
    found = compiler()
    if found is None or Path(found).name != "g++":
        return ""
    asked = subprocess.run([found, "-print-file-name=libtsan.so"], text=True, capture_output=True).stdout.strip()
    if not Path(asked).is_absolute():
        return ""
    trial = subprocess.run([sys.executable, "-c", ""], env={**os.environ, "LD_PRELOAD": asked}, capture_output=True)
    return asked if trial.returncode == 0 else ""


def watch(names: Sequence[str], unguarded: str = "") -> subprocess.CompletedProcess[str]:
    """Train these learners in a process that the sanitizer watches."""
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "LD_PRELOAD": sanitizer(), "TSAN_OPTIONS": _SETTINGS}
    return subprocess.run(
        [sys.executable, "-m", "support.dense_races", unguarded, *names],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        text=True,
        capture_output=True,
    )


def main(unguarded: str, *names: str) -> None:
    """Train 20 updates of every learner."""
    Watched.unguarded = unguarded
    for name in names:
        learner = LEARNERS[name]
        kernel = Watched(build(learner), stream_of(learner.problem), SEEDS, learner.problem.loss, learner.examples)
        kernel.plan(0)
        kernel.advance(0, 20)
        print(name, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
