"""The field on L2-init's permuted MNIST

Every method on permuted MNIST as the L2-init paper has it: batches of 16, two layers of 100 units, Adam. Each method
runs at its published setting and at the best of four, on seeds that chose nothing.
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
    "Adam": {"step_size": 1e-4},
    "L2": {"step_size": 1e-3, "strength": 1e-2},
    "L2-init": {"step_size": 1e-3, "strength": 1e-2},
    "Shrink and perturb": {"step_size": 1e-3, "noise_std": 1e-2, "strength": 1e-3},
    "CBP": {"step_size": 1e-3, "replacement_rate": 1e-3},
    "ReDo": {"step_size": 1e-3, "threshold": 0.0},
}
"""As the L2-init paper tuned them with Adam. It gives no step size for the last three; 1e-3 is the better of its two
for L2-init. Its shrink and perturb multiplies weights by 1 - 1e-3."""

STEP_SIZES = {
    "SGD": (0.01, 0.1, 0.03, 0.003),
    "Adam": (1e-3, 1e-4, 3e-3, 3e-4),
    "Muon": (0.02, 0.002, 0.01, 0.001),
}
AT_LAPTOP = {
    "SGD": (0.1, 0.3, 0.03, 0.01),
    "Adam": (1e-3, 3e-3, 3e-4, 1e-4),
    "Muon": (0.02, 0.002, 0.01, 0.001),
}


def make_bench(scale: str) -> Bench:
    """The problem and its networks at a scale."""
    return Bench(
        problem=pick(
            scale,
            smoke=PermutedMNIST(tasks=3, examples_per_task=64, source="synthetic", batch_size=16),
            laptop=PermutedMNIST(tasks=40, examples_per_task=2400, batch_size=16, images_per_run=10_000),
            paper=PermutedMNIST(tasks=500, examples_per_task=10_000, batch_size=16, images_per_run=10_000),
        ),
        hidden=pick(scale, smoke=(8, 8), laptop=(100, 100), paper=(100, 100)),
        base="Adam",
        step_sizes=AT_LAPTOP if scale == "laptop" else STEP_SIZES,
        published=PUBLISHED,
        options={"init": "default"},
    )


def sweep(scale: str) -> Sweep:
    """Every method: four settings with the tuning seeds, two of them with the judging seeds."""
    return make_sweep(scale, make_bench(scale), SMALLER if scale == "laptop" else ())


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Baselines and the best methods over tasks."""
    return draw(frame, "accuracy", higher_is_better=True)


SMALLER = assume("""
- size at the laptop scale | 40 tasks of 150 updates instead of 500 of 625 | half of the methods have no compiled
  kernel; this is what they can do within half an hour
""")
claims = ()
