"""Whether memory and open files stay flat over long use: a table with start, middle, end and slope of every part.

    python benchmarks/soak.py [--quick] [--ticks 1000000] [PART ...]

Each part runs in a process of its own. A line is fitted to what was sampled after the warm-up; a part is flat if that
line grows by less than the printed limit. "blocks" are the memory blocks of Python's allocator, which count every
object that is left over. The exit status is 1 if a part is not flat, or if anything in it failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

PARTS = {  # name: (function, iterations, iterations of --quick)
    "ticks-sgd": ("library.ticks_sgd", 1_000_000, 3000),
    "ticks-adam": ("library.ticks_adam", 1_000_000, 3000),
    "attachments": ("library.attachments", 1000, 40),
    "models": ("library.models", 300, 20),
    "diagnoses": ("library.diagnoses", 300, 20),
    "stacks": ("library.stacks", 300, 20),
    "sweep": ("sweeps.sweep", 1000, 60),
    "reports": ("sweeps.reports", 100, 6),
}


def measure(part: str, iterations: int) -> None:
    """Run one part in this process; its table row and faults go to the standard output as one line of JSON."""
    import importlib

    import torch

    torch.set_num_threads(1)
    module, function = PARTS[part][0].split(".")
    growth = getattr(importlib.import_module(f"soak_parts.{module}"), function)(iterations)
    print(json.dumps({"row": growth.row(), "faults": growth.faults_found(), "note": growth.note}))


def main() -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer iterations: under a minute in all")
    parser.add_argument("--ticks", type=int, metavar="N", help="ticks of each optimizer, instead of 1,000,000")
    parser.add_argument("--measure", type=int, metavar="N", help=argparse.SUPPRESS)  # the process of one part
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"unknown part {unknown[0]!r}; expected some of {', '.join(PARTS)}")
    if options.measure:
        measure(options.parts[0], options.measure)
        return 0
    from soak_parts.growth import HEADER

    from neoteny.text import render

    rows, notes, failed = [], [], False
    for part in options.parts or PARTS:
        iterations = PARTS[part][2 if options.quick else 1]
        if part.startswith("ticks") and options.ticks:
            iterations = options.ticks
        print(f"{part}: {iterations:,} iterations ...", file=sys.stderr, flush=True)
        began = time.monotonic()
        command = [sys.executable, __file__, part, "--measure", str(iterations)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            print(f"{part}: the process ended with status {done.returncode}", file=sys.stderr)
            failed = True
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        failed = failed or bool(found["faults"])
        rows.append(found["row"])
        texts = filter(None, [found["note"], *found["faults"], f"{time.monotonic() - began:.0f} s"])
        notes.append(f"{part}: {'; '.join(texts)}")
    print(render(HEADER, rows), *notes, sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
