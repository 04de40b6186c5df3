"""Everything that needs a GPU, in one command: the tests, then the benchmarks, each with a limit and a log of its own.

For a machine that is there for minutes. A log grows while its step runs, so a step that is cut off leaves what it had
printed. Steps come in the order of what they decide; one that would begin past --minutes is left out, and is named.

    python benchmarks/on_gpu.py [--out results/gpu] [--minutes 9.5] [--only tests,attach] [--full]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from neoteny.text import render

ROOT = Path(__file__).parents[1]
LAST_LINES = 3
"""Of a log, printed when its step ends."""


@dataclass(frozen=True)
class Step:
    """A command from the repository's root, and for how many seconds it may run; `quick` is added without --full."""

    name: str
    script: str
    arguments: tuple[str, ...]
    seconds: float
    quick: tuple[str, ...] = ("--quick",)


STEPS = (
    Step("tests", "tests/support/gpu_shards.py", ("--processes", "14"), 300, ()),
    Step("attach", "benchmarks/attach_gpu.py", (), 150),
    Step("online", "benchmarks/online.py", ("--device", "cuda"), 150),
    Step("dense", "benchmarks/dense.py", ("--device", "cuda"), 110, ()),
    Step("methods", "benchmarks/methods.py", ("--device", "cuda"), 200, ()),
)


def run(step: Step, folder: Path, full: bool, left: float) -> tuple[str, float]:
    """How one step ended, and after how many seconds."""
    command = [sys.executable, "-u", step.script, *step.arguments, *(() if full else step.quick)]
    begun = time.monotonic()
    with (folder / f"{step.name}.log").open("wb") as log:
        # A session of its own, so that the processes of a step that is cut off do not slow down the next.
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(min(step.seconds, left))
        except subprocess.TimeoutExpired:
            return "cut off", time.monotonic() - begun
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return "done" if code == 0 else f"ended with status {code}", time.monotonic() - begun


def main() -> int:
    """Run the steps; 1 if one of them failed, was cut off or left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/gpu"), metavar="DIR", help="where the logs go")
    parser.add_argument("--minutes", type=float, default=9.5, help="for all steps together")
    parser.add_argument("--only", default=",".join(step.name for step in STEPS), metavar="NAME,NAME")
    parser.add_argument("--full", action="store_true", help="benchmarks without --quick")
    options = parser.parse_args()
    names = options.only.split(",")
    unknown = sorted(set(names) - {step.name for step in STEPS})
    if unknown:
        parser.error(f"--only: no step is called {', '.join(unknown)}. There are {', '.join(s.name for s in STEPS)}.")
    import torch

    if not torch.cuda.is_available():
        parser.error("torch finds no CUDA device here; every step would skip its tests or refuse.")
    options.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * options.minutes
    rows = []
    for step in [step for step in STEPS if step.name in names]:
        left = end - time.monotonic()
        if left < 0.25 * step.seconds:
            rows.append((step.name, "left out: no time", "", ""))
            continue
        how, seconds = run(step, options.out, options.full, left)
        rows.append((step.name, how, f"{seconds:.0f}", str(options.out / f"{step.name}.log")))
        lines = (options.out / f"{step.name}.log").read_text(errors="replace").splitlines()
        print(f"{step.name}: {how} after {seconds:.0f} s", *lines[-LAST_LINES:], sep="\n  ", flush=True)
    print("\n" + render(["step", "how it ended", "seconds", "log"], rows))
    return 0 if all(row[1] == "done" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
