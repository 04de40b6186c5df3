"""Drawn command lines, damaged results folders and mistaken experiment files, as many as one likes.

    python tests/robustness/fuzz.py --cases 1000                      of each
    python tests/robustness/fuzz.py --cases 1000 --what commands      of one
    python tests/robustness/fuzz.py --cases 1 --what files --seed 7   one case again

Every case must end with the right result or with a message that says what is wrong; else the exit status is 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from neoteny.text import render
from support.fuzzed_commands import CommandLines
from support.fuzzed_experiments import Experiments
from support.fuzzed_files import Folders

KINDS = {"commands": CommandLines, "files": Folders, "experiments": Experiments}


def main() -> int:
    """Run the cases and print the table; returns 1 if any went wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=100, metavar="N", help="how many of each (default: %(default)s)")
    parser.add_argument("--what", choices=list(KINDS), help="only these")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first case (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[list[str]] = []
    failed = 0
    for name in [options.what] if options.what else list(KINDS):
        with tempfile.TemporaryDirectory() as folder:
            kind = KINDS[name](Path(folder))
            refused = fine = tracebacks = others = 0
            for seed in range(options.seed, options.seed + options.cases):
                ending = kind.check(random.Random(seed))
                if ending.problem:
                    print(f"{name}, seed {seed}: {ending}", flush=True)
                traceback = "Traceback" in ending.problem
                tracebacks += traceback
                others += bool(ending.problem) and not traceback
                refused += ending.refused and not ending.problem
                fine += not ending.refused and not ending.problem
        rows.append([name, *map(str, (options.cases, refused, fine, tracebacks, others))])
        failed += tracebacks + others
    print(render(["drawn", "cases", "refused", "fine", "tracebacks", "otherwise wrong"], rows))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
