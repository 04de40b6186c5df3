"""One small sweep in which every system call of writing fails, once and for good, or is the last before a crash.

    python tests/robustness/crash_injection.py                  every case: half an hour on one core
    python tests/robustness/crash_injection.py --seconds 300    as many as fit, drawn at random

After each failure the command must end with status 0 or with a clear error; what was finished must be whole; and the
same command repeated must give the table of an undisturbed run, with nothing left over. After a crash this must also
hold where the power went: files that were not synced are empty or half, names in folders that were not synced are gone.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from neoteny.text import render
from support.crash_cases import Ending, Sweeps
from support.failing_calls import ERRORS, all_faults, compile_library
from support.suite import Zygote


def main() -> int:
    """Run the cases and print the table; returns 1 if any went wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), metavar="S", help="begin no case after this time"
    )
    parser.add_argument("--kind", choices=list(ERRORS), help="calls of this kind only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = compile_library(Path(folder))
        if library is None:
            print("No C compiler was found (cc).", file=sys.stderr)
            return 2
        zygote = Zygote(library)
        sweeps = Sweeps(Path(folder), zygote)
        faults = [fault for fault in all_faults(sweeps.calls) if options.kind in (None, fault.kind)]
        endings: list[Ending] = []
        began = time.monotonic()
        random.Random(0).shuffle(faults)
        for fault in faults:
            if time.monotonic() - began > options.seconds:
                break
            for ending in sweeps.check(fault):
                endings.append(ending)
                if ending.problem:
                    print(ending, flush=True)
        zygote.close()
    print(summary(Counter(call.kind for call in sweeps.calls), endings))
    print(f"{len({ending.fault for ending in endings})} of {len(faults)} faults, {time.monotonic() - began:.0f} s")
    return 1 if any(ending.problem for ending in endings) else 0


def summary(calls: Counter[str], endings: list[Ending]) -> str:
    """The table: what was injected, and how it ended."""
    rows: list[list[str]] = []
    for kind in [*calls, "all"]:
        mine = [ending for ending in endings if kind in ("all", ending.fault.kind) and ending.injected]
        crashes = {ending.fault for ending in mine if ending.fault.crashes}
        failures = [ending for ending in mine if not ending.fault.crashes]
        rows.append(
            [
                kind,
                str(calls.total() if kind == "all" else calls[kind]),
                str(len(failures)),
                str(len(crashes)),
                str(len(mine) - len(failures)),
                f"{sum(not ending.problem for ending in mine)} of {len(mine)}",
                str(sum(ending.traceback for ending in mine)),
            ]
        )
    missed = sum(not ending.injected for ending in endings)
    heads = ["call", "made", "failures", "crashes", "aftermaths", "tables identical", "tracebacks"]
    return render(heads, rows) + f"\n{missed} cases did not reach their call."


if __name__ == "__main__":
    raise SystemExit(main())
