"""Backpropagation with three layers of 100 units when the task of permuted MNIST changes often, rarely, or very rarely

Figure 2b (right) of the paper with a network twenty times narrower: a new permutation after every 10,000, 100,000 or
1,000,000 examples, for 48 million examples in all. The claims are those of `mnist-change-rate`.
`docs/results.md` shows what came out.

    neoteny run hundred-units-change --scale paper
"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from neoteny.experiments.mnist import change_rate as mnist_change_rate
from neoteny.experiments.mnist.settings import SHARED_CHOSEN, layers
from neoteny.experiments.variants.reuse import as_paper, reuse
from neoteny.report.chart import Chart
from neoteny.suite.sweep import Assumption, Sweep

WIDTH, RUNS = 100, 8

NARROWER = Assumption(
    "width and number of runs",
    "100 units per layer, 8 runs at each rate of change",
    "The paper's network has 2,000 units; this one makes 48 million examples a matter of minutes.",
)


def sweep(scale: str) -> Sweep:
    """The suite's sweep at the paper's scale with a narrower network; `laptop` and `paper` are the same here."""
    if scale == "smoke":
        return mnist_change_rate.sweep("smoke")
    wide = mnist_change_rate.sweep("paper")
    return replace(
        wide,
        settings=tuple(replace(setting, network=layers(WIDTH)) for setting in wide.settings),
        runs=RUNS,
        chosen=(*SHARED_CHOSEN, mnist_change_rate.STEP_SIZE_CHOSEN, NARROWER),
    )


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Accuracy over examples for each rate of change."""
    return mnist_change_rate.figure(as_paper(frame))


claims = reuse("mnist-change-rate")
