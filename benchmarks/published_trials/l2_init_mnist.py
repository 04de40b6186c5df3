"""Trials on L2-init's permuted MNIST: what may explain the difference from its published number

L2-init over 20 tasks is .811 in its paper and .877 in `neoteny run published-l2-init-mnist`. Tried here: smaller step
sizes, twice and ten times the strength (twice is the penalty without the half before it), and plain SGD.

    neoteny run benchmarks/published_trials/l2_init_mnist.py --scale laptop --out results/trials-l2-init
    neoteny report results/trials-l2-init
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.published.numbers import draw
from neoteny.methods import SGD, Adam, L2Init
from neoteny.nets import MLP
from neoteny.problems import PermutedMNIST
from neoteny.report.chart import Chart
from neoteny.suite.sweep import Setting, Sweep, network


def sweep(scale: str) -> Sweep:
    """L2-init with other step sizes, strengths and optimizers; plain Adam beside it."""
    small = scale == "smoke"
    net = network(MLP, hidden=(8, 8) if small else (100, 100), init="default")
    steps = {"Adam": (1e-3, 3e-4, 1e-4), "SGD": (1e-1, 1e-2)}
    settings = [
        Setting(
            f"{name} and L2-init", net, (optimizer(size), L2Init(strength)), {"step_size": size, "strength": strength}
        )
        for name, optimizer in (("Adam", Adam), ("SGD", SGD))
        for size in steps[name]
        for strength in (1e-3, 2e-3, 1e-2)
    ]
    plain = [Setting("Adam", net, (Adam(size),), {"step_size": size}) for size in steps["Adam"]]
    return Sweep(
        problem=PermutedMNIST(
            tasks=3 if small else 20,
            examples_per_task=64 if small else 10_000,
            source="synthetic" if small else "mnist",
            batch_size=16,
            images_per_run=0 if small else 10_000,
        ),
        settings=(*settings, *plain),
        runs=2 if small else 5,
    )


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Accuracy over tasks."""
    return draw(frame, "accuracy")


claims = ()
