"""The field on the paper's online permuted MNIST

Every method on the paper's stream: single images, a new permutation of the pixels in every task. Each method runs at
its published setting and at the best of four, on seeds that chose nothing. The `laptop` scale has narrow networks and
short tasks.
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.field.bench import Bench, make_sweep
from neoteny.experiments.field.charts import draw
from neoteny.experiments.scales import assume, pick
from neoteny.problems import PermutedMNIST
from neoteny.report.chart import Chart
from neoteny.suite.sweep import Sweep

PUBLISHED = {
    "SGD": {"step_size": 0.003},
    "Adam": {"step_size": 5e-5},
    "L2": {"step_size": 0.003, "strength": 1e-4},
    "Shrink and perturb": {"step_size": 0.003, "noise_std": 1e-5, "strength": 1e-4},
    "CBP": {"step_size": 0.003, "replacement_rate": 1e-4},
    "L2-ER": {"step_size": 0.001, "strength": 1e-3},
}
"""The paper's step size for comparisons and the middle of its three strengths; L2-ER's own permuted MNIST."""

STEP_SIZES = {
    "SGD": (0.003, 0.01, 0.001, 0.03),
    "Adam": (5e-5, 1e-4, 1e-5, 1e-3),
    "Muon": (0.02, 0.002, 2e-4, 2e-5),
}
AT_LAPTOP = {
    "SGD": (0.003, 0.01, 0.03, 0.1),
    "Adam": (1e-3, 3e-3, 3e-4, 5e-5),
    "Muon": (0.02, 0.002, 0.01, 0.001),
}


def make_bench(scale: str) -> Bench:
    """The problem and its networks at a scale."""
    return Bench(
        problem=pick(
            scale,
            smoke=PermutedMNIST(tasks=3, examples_per_task=20, source="synthetic"),
            laptop=PermutedMNIST(tasks=50, examples_per_task=500),
            paper=PermutedMNIST(tasks=800, examples_per_task=60_000),
        ),
        hidden=pick(scale, smoke=(8, 8), laptop=(20, 20, 20), paper=(2000, 2000, 2000)),
        base="SGD",
        step_sizes=AT_LAPTOP if scale == "laptop" else STEP_SIZES,
        published=PUBLISHED,
    )


def sweep(scale: str) -> Sweep:
    """Every method: four settings with the tuning seeds, two of them with the judging seeds."""
    return make_sweep(scale, make_bench(scale), SMALLER if scale == "laptop" else ())


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Baselines and the best methods over tasks."""
    return draw(frame, "accuracy", higher_is_better=True)


SMALLER = assume("""
- size at the laptop scale | 50 tasks of 500 images, three layers of 20 units, instead of 800 tasks of 60,000 images and
  2,000 units | half of the methods have no compiled kernel; this is what they can do within half an hour
""")
claims = ()
