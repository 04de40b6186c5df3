"""The field on slowly-changing regression

Every method on the paper's Appendix B: five hidden units follow a target of one hundred, one bit of the input flips at
each task. Each method runs at its published setting and at the best of four, on seeds that chose nothing.
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.field.bench import Bench, make_sweep
from neoteny.experiments.field.charts import draw
from neoteny.experiments.scales import assume, pick
from neoteny.problems import SlowlyChangingRegression
from neoteny.report.chart import Chart
from neoteny.suite.sweep import Sweep

PUBLISHED = {
    "SGD": {"step_size": 0.01},
    "Adam": {"step_size": 0.01},
    "CBP": {"step_size": 0.01, "replacement_rate": 1e-4},
}
"""The middle of the paper's step sizes."""

STEP_SIZES = {
    "SGD": (0.01, 0.03, 0.003, 0.001),
    "Adam": (0.01, 0.03, 0.003, 0.001),
    "Muon": (0.02, 0.01, 0.003, 0.001),
}
AT_LAPTOP = {
    "SGD": (0.01, 0.03, 0.003, 0.001),
    "Adam": (0.003, 0.01, 0.03, 0.001),
    "Muon": (0.02, 0.01, 0.003, 0.001),
}


def make_bench(scale: str) -> Bench:
    """The problem and its networks at a scale."""
    return Bench(
        problem=pick(
            scale,
            smoke=SlowlyChangingRegression(tasks=4, examples_per_task=20),
            laptop=SlowlyChangingRegression(tasks=80, examples_per_task=500),
            paper=SlowlyChangingRegression(tasks=300, examples_per_task=10_000),
        ),
        hidden=(5,),
        base="SGD",
        step_sizes=AT_LAPTOP if scale == "laptop" else STEP_SIZES,
        published=PUBLISHED,
    )


def sweep(scale: str) -> Sweep:
    """Every method: four settings with the tuning seeds, two of them with the judging seeds."""
    return make_sweep(scale, make_bench(scale), SMALLER if scale == "laptop" else ())


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Baselines and the best methods over tasks."""
    return draw(frame, "error", higher_is_better=False)


SMALLER = assume("""
- size at the laptop scale | 80 tasks of 500 examples instead of 300 of 10,000 | half of the methods have no compiled
  kernel; this is what they can do within half an hour
""")
claims = ()
