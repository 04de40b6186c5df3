"""Online permuted MNIST with three layers of 1,000 units: half of the paper's width

The same question as with 300 units per layer: is continual backpropagation ahead of L2 at its best strength? With
everything else as in the paper, for the first 100 of its 800 tasks. `docs/results.md` shows what came out.

    neoteny run thousand-units --scale paper
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.mnist import settings as learners
from neoteny.experiments.variants.three_hundred_units import STEP_SIZE, claims, draw
from neoteny.problems import PermutedMNIST
from neoteny.report.chart import Chart
from neoteny.suite.sweep import Assumption, Sweep

__all__ = ["claims", "figure", "sweep"]

WIDTH, TASKS, RUNS = 1000, 100, 3
STRENGTHS = (1e-4, 3e-4)
"""Of L2: the paper's best, and one towards those of narrower networks."""

SHORTER = Assumption(
    "width, number of tasks and of runs",
    f"{WIDTH:,} units per layer, {TASKS} tasks, {RUNS} runs of each setting",
    "Seven hours on two cores; the paper's 2,000 units, 800 tasks and 30 runs are days on one GPU.",
)


def sweep(scale: str) -> Sweep:
    """BP, two settings of L2 and one of CBP; `laptop` and `paper` are the same here."""
    smoke = scale == "smoke"
    width = 10 if smoke else WIDTH
    return Sweep(
        problem=PermutedMNIST(4, 40, source="synthetic") if smoke else PermutedMNIST(TASKS, 60_000),
        settings=(
            learners.bp(width, STEP_SIZE),
            *(learners.l2(width, STEP_SIZE, each) for each in STRENGTHS),
            learners.cbp(width, STEP_SIZE, 1e-4),
        ),
        runs=2 if smoke else RUNS,
        measures=learners.CORRELATES,
        measure_every=1 if smoke else 5,
        probe_examples=200 if smoke else 2000,
        chosen=(*learners.METHODS_CHOSEN, SHORTER),
    )


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Online accuracy over tasks, and what changes in the networks, each method at its best setting."""
    return draw(frame, sweep("paper").settings)
