"""Published numbers of L2-init's permuted MNIST

Ten thousand images per run in batches of 16, a new permutation every 625 updates, two layers of 100 units, torch's
initial weights, Adam. The `laptop` scale has the published sizes and fewer seeds.
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.published.numbers import Published, draw, make_claims
from neoteny.experiments.scales import assume, pick
from neoteny.methods import Adam, L2Init
from neoteny.nets import MLP
from neoteny.problems import PermutedMNIST
from neoteny.report.chart import Chart
from neoteny.suite.sweep import Setting, Sweep, network

STEP_SIZES = (1e-3, 1e-4)
SLOPES = (0.3, 0.5)
_TABLE = "Lillo and Cheney, from notes on their table"
NUMBERS = (
    *(Published(f"ReLU (step_size={step_size:g})", 0.7885, 5, _TABLE) for step_size in STEP_SIZES),
    *(Published(f"Leaky ReLU (step_size={step_size:g})", 0.8414, 5, _TABLE) for step_size in STEP_SIZES),
    *(Published(f"Leaky ReLU, slope {slope:g} (step_size=0.001)", 0.8414, 5, _TABLE) for slope in SLOPES),
    Published("L2-init (step_size=0.001)", 0.811, 5, "the L2-init paper, beside EWC", tasks=20),
)
CHOSEN = assume("""
- step size of the table | both that the L2-init paper searches with Adam, 1e-3 and 1e-4 | the notes do not name it
- slope of the leaky ReLU | 0.01, torch's default, and 0.3 and 0.5, which were picked because they came nearest to the
  published number when five slopes from 0.1 to 0.7 were tried with two seeds | the notes do not name it. So agreement
  at 0.5 says that some slope gives the number, not that it was made again
- strength of L2-init | 1e-3 | that of the published number, which is over 20 tasks
""")


def sweep(scale: str) -> Sweep:
    """Plain Adam with ReLU and with leaky ReLUs, and L2-init."""
    small = scale == "smoke"
    options = {"hidden": (8, 8) if small else (100, 100), "init": "default"}
    relu, leaky = network(MLP, **options), network(MLP, activation="leaky_relu", **options)
    published = PermutedMNIST(tasks=500, examples_per_task=10_000, batch_size=16, images_per_run=10_000)
    return Sweep(
        problem=pick(
            scale,
            smoke=PermutedMNIST(tasks=3, examples_per_task=64, source="synthetic", batch_size=16),
            laptop=published,
            paper=published,
        ),
        settings=(
            *(Setting("ReLU", relu, (Adam(size),), {"step_size": size}) for size in STEP_SIZES),
            *(Setting("Leaky ReLU", leaky, (Adam(size),), {"step_size": size}) for size in STEP_SIZES),
            *(
                Setting(
                    f"Leaky ReLU, slope {slope:g}",
                    network(MLP, activation=f"leaky_relu(negative_slope={slope})", **options),
                    (Adam(1e-3),),
                    {"step_size": 1e-3},
                )
                for slope in SLOPES
            ),
            Setting("L2-init", relu, (Adam(1e-3), L2Init(1e-3)), {"step_size": 1e-3}),
        ),
        runs=pick(scale, smoke=2, laptop=5, paper=10),
        chosen=CHOSEN,
    )


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Accuracy over tasks."""
    return draw(frame, "accuracy")


claims = make_claims(NUMBERS, "accuracy")
