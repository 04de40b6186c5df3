"""The field on label-permuted MNIST

Every method on digits that keep their pixels while their classes are renamed in every task, as in the runs of weight
clipping's authors. A network may keep its features here. Each method runs at its published setting and at the best of
four, on seeds that chose nothing. The `laptop` scale has narrow networks and short tasks.
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.field.bench import Bench, make_sweep
from neoteny.experiments.field.charts import draw
from neoteny.experiments.scales import assume, pick
from neoteny.problems import LabelPermutedMNIST
from neoteny.report.chart import Chart
from neoteny.suite.sweep import Sweep

PUBLISHED = {
    "UPGD": {"step_size": 0.01, "noise_std": 0.001, "decay_rate": 0.9, "weight_decay": 0.0},
    "Weight clipping": {"step_size": 0.01, "bound": 2.0},
}
"""The best settings on label-permuted EMNIST of the authors of each. The step size of weight clipping is not known to
us; that of UPGD stands in."""

STEP_SIZES = {
    "SGD": (0.01, 0.001, 0.03, 0.003),
    "Adam": (1e-4, 1e-3, 3e-4, 3e-3),
    "Muon": (0.02, 0.002, 0.01, 0.001),
}
AT_LAPTOP = {
    "SGD": (0.003, 0.01, 0.03, 0.001),
    "Adam": (3e-4, 1e-3, 1e-4, 3e-3),
    "Muon": (0.02, 0.002, 0.01, 0.001),
}


def make_bench(scale: str) -> Bench:
    """The problem and its networks at a scale."""
    return Bench(
        problem=pick(
            scale,
            smoke=LabelPermutedMNIST(3, 20, "synthetic"),
            laptop=LabelPermutedMNIST(40, 400),
            paper=LabelPermutedMNIST(200, 5_000),
        ),
        hidden=pick(scale, smoke=(8, 8), laptop=(40, 20), paper=(300, 150)),
        base="SGD",
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
- size at the laptop scale | 40 tasks of 400 images and 40 and 20 units, instead of 200 of 5,000 and 300 and 150 | half
  of the methods have no compiled kernel; this is what they can do within half an hour
""")
claims = ()
