"""Compare a kernel with the library over the grid of all covered options, in several processes.

    python tests/support/kernel_grid.py                every case of the grid on the CPU: hours
    python tests/support/kernel_grid.py --covering 3   a few hundred, with every combination of three options' values
    python tests/support/kernel_grid.py --every 50     one in fifty
    python tests/support/kernel_grid.py --device cuda  the kernel on the GPU, the library on the CPU's cores

Failures are printed as they come, and one line at the end; the exit status is 1 if there were any.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from support.kernel_cases import SEEDS, Case, all_cases, covering_cases, kernel_of, paths_of
from support.kernel_comparison import Difference, compare, sensitivity

_PROGRESS_SECONDS = 60.0


def judge(work: tuple[Case, int, str]) -> Difference:
    """One comparison; an error is a failure like any other."""
    case, steps, device = work
    torch.set_num_threads(1)
    try:
        found = compare(case, steps, {path: kernel_of(device, path) for path in paths_of(case, device)}, device)
        if found.failure:
            by_itself = f" (the library, with initial weights other in the last bit: {sensitivity(case, steps):.1e})"
            found = replace(found, failure=found.failure + by_itself)
        return found
    except Exception:
        return Difference(case, steps, traceback.format_exc().rstrip(), float("nan"), 0)


def summarize(differences: Sequence[Difference], steps: int, device: str, seconds: float) -> str:
    """The grid's result in one line."""
    failures = sum(bool(each.failure) for each in differences)
    agreeing = [each.weights for each in differences if not each.failure]
    return (
        f"{device}: {len(differences):,} cases, {steps:,} steps of {len(SEEDS)} runs each, float64; "
        f"largest weight difference {max(agreeing, default=float('nan')):.1e}, "
        f"{sum(each.replaced for each in differences):,} replacements compared, {failures:,} failures, {seconds:,.0f} s"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the grid; 1 if anything failed."""
    parser = argparse.ArgumentParser(description="Compare a kernel with the library over the grid of covered options.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the kernel runs")
    parser.add_argument(
        "--covering", type=int, nargs="?", const=2, metavar="N", help="only cases that cover all N-tuples (2) of values"
    )
    parser.add_argument("--every", type=int, default=1, metavar="K", help="only one case in K, the same ones each time")
    parser.add_argument("--skip", type=int, default=0, metavar="S", help="leave out the first S cases")
    parser.add_argument("--steps", type=int, default=2000, help="updates of each case")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    chosen = parser.parse_args(arguments)
    if min(chosen.every, chosen.steps, chosen.jobs) < 1 or chosen.skip < 0:
        parser.error("--every, --steps and --jobs must be at least 1, --skip at least 0")
    if chosen.covering is not None and chosen.covering not in (1, 2, 3):
        parser.error("--covering must be 1, 2 or 3")
    cases = all_cases() if chosen.covering is None else covering_cases(chosen.covering, chosen.device)
    # Shuffled: every second case of the grid would have one value of its last option only.
    order = np.random.default_rng(0).permutation(len(cases))[chosen.skip :: chosen.every]
    work = [(cases[number], chosen.steps, chosen.device) for number in order]
    begun = said = time.monotonic()
    found: list[Difference] = []
    with multiprocessing.get_context("spawn").Pool(chosen.jobs) as pool:
        for difference in pool.imap_unordered(judge, work):
            found.append(difference)
            if difference.failure:
                print(f"{difference.case.name}: {difference.failure}", flush=True)
            if time.monotonic() - said > _PROGRESS_SECONDS:
                said = time.monotonic()
                print(f"{len(found):,} of {len(work):,} cases after {said - begun:,.0f} s", file=sys.stderr, flush=True)
    print(summarize(found, chosen.steps, chosen.device, time.monotonic() - begun))
    return int(any(difference.failure for difference in found))


if __name__ == "__main__":
    sys.exit(main())
