"""Trials on L2-init's random-label MNIST: what may explain the differences from the published numbers

Plain Adam with other step sizes and other slopes of the leaky ReLU than `neoteny run published-random-label-mnist` has.

    neoteny run benchmarks/published_trials/random_label_mnist.py --scale laptop --out results/trials-random-label
    neoteny report results/trials-random-label
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.published.numbers import draw
from neoteny.methods import Adam
from neoteny.nets import MLP
from neoteny.problems import RandomLabelMNIST
from neoteny.report.chart import Chart
from neoteny.suite.sweep import Setting, Sweep, network


def sweep(scale: str) -> Sweep:
    """ReLU with smaller step sizes, leaky ReLUs with more slopes."""
    small = scale == "smoke"
    hidden = (8, 8) if small else (100, 100)
    settings = [
        Setting("ReLU", network(MLP, hidden=hidden, init="default"), (Adam(size),), {"step_size": size})
        for size in (3e-4, 1e-4)
    ]
    settings += [
        Setting(
            "Leaky ReLU",
            network(MLP, hidden=hidden, init="default", activation=f"leaky_relu(negative_slope={slope})"),
            (Adam(1e-3),),
            {"slope": slope},
        )
        for slope in (0.3, 0.7)
    ]
    return Sweep(
        problem=RandomLabelMNIST(tasks=3, images_per_task=32, epochs=2, source="synthetic")
        if small
        else RandomLabelMNIST(),
        settings=tuple(settings),
        runs=2 if small else 3,
    )


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Accuracy over tasks."""
    return draw(frame, "accuracy")


claims = ()
