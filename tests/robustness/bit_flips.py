"""Whether a flipped bit in a results folder is noticed: no number changes without a word, and no traceback of ours.

    python tests/robustness/bit_flips.py --flips 2000 --seed 0

It makes a small folder that has every kind of file: finished parts, an unfinished stack with two checkpoints, progress,
plan, experiment.json, the copy of a user's experiment and its saved analysis. Then, many times: one random bit in one
random file is flipped (every kind of file comes equally often), and what a person would run is run: `status`, the
tables with and without unfinished runs, `claims` (as saved, and by the folder's copy of the experiment), and, after
flips in checkpoints and a sample of the others, `run`, with --repair where it is refused. Each flip ends as one of
these:

    refused    some command names the damage; where it is repaired, the table is that of an undamaged folder
    harmless   every command gives what it gave before
    other      some command gave other numbers, and none said a word
    traceback  an error that is not in words

It ends with status 1 unless the last two are 0.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from neoteny.text import render
from support.flipped_bits import RESULTS, count_flips


def main() -> int:
    """Count and print; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--flips", type=int, default=2000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        counts = count_flips(Path(place), options.flips, options.seed)
    total = sum(counts.values(), Counter())
    rows = {**counts, "all": total}.items()
    print(render(["file", *RESULTS], [[kind, *(str(ended[name]) for name in RESULTS)] for kind, ended in rows]))
    return 1 if total["other"] or total["traceback"] else 0


if __name__ == "__main__":
    sys.exit(main())
