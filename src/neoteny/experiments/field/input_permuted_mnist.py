"""The field on UPGD's input-permuted MNIST

Every method on the stream of the UPGD paper: single images with pixels from -1 to 1, a new permutation every 5,000,
networks with 300 and 150 units and torch's initial weights. Each method runs at its published setting and at the best
of four, on seeds that chose nothing. The `laptop` scale has narrow networks and short tasks.
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
    "SGD": {"step_size": 0.001},
    "L2": {"step_size": 0.001, "strength": 0.001},
    "Shrink and perturb": {"step_size": 0.001, "noise_std": 1e-4, "strength": 0.01},
    "AdamW": {"step_size": 1e-4, "betas": (0.0, 0.99), "weight_decay": 0.01},
    "UPGD": {"step_size": 0.01, "noise_std": 0.1, "decay_rate": 0.9999, "weight_decay": 0.01},
    "CBP": {"step_size": 0.001, "replacement_rate": 3e-4},
}
"""The best settings of the UPGD paper. Its noise of 0.1 in shrink and perturb is multiplied by the step size; it is
given per update here. The decay of its AdamW is not known to us, 0.01 is torch's. The replacement rate is from another
group's runs."""

STEP_SIZES = {
    "SGD": (0.001, 0.01, 0.003, 0.03),
    "Adam": (1e-4, 1e-3, 3e-4, 3e-3),
    "Muon": (0.02, 0.002, 0.01, 0.001),
}
AT_LAPTOP = {
    "SGD": (0.003, 0.01, 0.001, 0.03),
    "Adam": (3e-4, 1e-3, 1e-4, 3e-3),
    "Muon": (0.02, 0.002, 0.01, 0.001),
}


def make_bench(scale: str) -> Bench:
    """The problem and its networks at a scale."""
    return Bench(
        problem=pick(
            scale,
            smoke=PermutedMNIST(3, 20, source="synthetic", pixels="centred", continue_passes=True),
            laptop=PermutedMNIST(40, 400, pixels="centred", continue_passes=True),
            paper=PermutedMNIST(200, 5_000, pixels="centred", continue_passes=True),
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
