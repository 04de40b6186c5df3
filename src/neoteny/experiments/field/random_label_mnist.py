"""The field on L2-init's random-label MNIST

Every method on digits with random labels, new ones in every task, which are learnt by heart in many passes: batches of
16, two layers of 100 units, Adam. Each method runs at its published setting and at the best of four, on seeds that
chose nothing. The `laptop` scale has fewer images and shorter tasks.
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.field.bench import Bench, make_sweep
from neoteny.experiments.field.charts import draw
from neoteny.experiments.scales import assume, pick
from neoteny.problems import RandomLabelMNIST
from neoteny.report.chart import Chart
from neoteny.suite.sweep import Sweep

PUBLISHED = {
    "L2-init": {"step_size": 1e-4, "strength": 1e-2},
    "CBP": {"step_size": 1e-3, "replacement_rate": 1e-3},
    "ReDo": {"step_size": 1e-3, "threshold": 0.1},
}
"""As the L2-init paper tuned them with Adam; it gives no step size for ReDo."""

STEP_SIZES = {
    "SGD": (0.01, 0.1, 0.03, 0.003),
    "Adam": (1e-3, 1e-4, 3e-3, 3e-4),
    "Muon": (0.02, 0.002, 0.01, 0.001),
}
AT_LAPTOP = {
    "SGD": (0.03, 0.1, 0.01, 0.003),
    "Adam": (1e-3, 3e-3, 3e-4, 1e-4),
    "Muon": (0.02, 0.002, 0.01, 0.001),
}


def make_bench(scale: str) -> Bench:
    """The problem and its networks at a scale."""
    return Bench(
        problem=pick(
            scale,
            smoke=RandomLabelMNIST(tasks=3, images_per_task=32, epochs=2, source="synthetic"),
            laptop=RandomLabelMNIST(tasks=40, images_per_task=160, epochs=15),
            paper=RandomLabelMNIST(),
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
- size at the laptop scale | 40 tasks of 150 updates on 160 images, instead of 50 of 30,000 on 1,200 | half of the
  methods have no compiled kernel; this is what they can do within half an hour
""")
claims = ()
