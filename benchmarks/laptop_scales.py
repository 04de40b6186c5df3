"""How long every experiment of the paper takes at laptop scale, and how many of its claims that decides.

A claim counts as one that the scale can judge unless it is about the paper's own numbers, or compares settings that do
not run there.

    python benchmarks/laptop_scales.py [--jobs 2] [--only scr-cbp,mnist-methods] [--out results/laptop]

Each is trained by `neoteny run` in processes of its own, compiling included, and judged as `neoteny claims` does.
Finished runs of the folder are not trained again, and what took no time is shown so. Wants a machine of its own and
the real data (`neoteny data`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from neoteny.cli.analysis import Part, analyse
from neoteny.experiments import NAMES
from neoteny.report.verdict import Coverage, Outcome
from neoteny.suite.store.results import Results
from neoteny.text import render


def train(name: str, out: Path, jobs: int) -> float:
    """Minutes until it was trained."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "neoteny", "run", name, "--scale", "laptop", "--device", "cpu"]
    done = subprocess.run(
        [*command, "--jobs", str(jobs), "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    return (time.monotonic() - begun) / 60


def judge(out: Path) -> tuple[Counter[Outcome], int]:
    """How many claims that can be judged hold, do not, or stay undecided; and how many claims there are."""
    analysis, _, _ = analyse(Results.open(out), Part(None, False, False, None))
    verdicts = [verdict for _, verdict in analysis.claims]
    return Counter(each.outcome for each in verdicts if each.coverage is not Coverage.NOTHING), len(verdicts)


def main() -> None:
    """Train and judge one after the other; a row each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default=",".join(NAMES), metavar="NAME,NAME")
    parser.add_argument("--out", type=Path, default=Path("results/laptop"))
    options = parser.parse_args()
    rows = []
    for name in options.only.split(","):
        minutes = train(name, options.out / name, options.jobs)
        counts, claims = judge(options.out / name)
        decided = counts[Outcome.HOLDS] + counts[Outcome.FAILS]
        outcomes = (str(counts[each]) for each in Outcome)
        rows.append((name, f"{minutes:.1f}", f"{decided} / {counts.total()}", str(claims), *outcomes))
        print(" | ".join(rows[-1]), flush=True)
    print("\n" + render(["experiment", "minutes", "decided", "claims", *(str(each) for each in Outcome)], rows))


if __name__ == "__main__":
    main()
