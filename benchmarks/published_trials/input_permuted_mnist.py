"""Trials on UPGD's input-permuted MNIST: what may explain the differences from the published numbers

One thing at a time is changed in `neoteny run published-input-permuted-mnist`: the scale by which UPGD divides
utilities, and AdamW's weight decay and betas.

    neoteny run benchmarks/published_trials/input_permuted_mnist.py --scale laptop --out results/trials-input-permuted
    neoteny report results/trials-input-permuted
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.published.numbers import draw
from neoteny.methods import UPGD, AdamW
from neoteny.nets import MLP
from neoteny.problems import PermutedMNIST
from neoteny.report.chart import Chart
from neoteny.suite.sweep import Setting, Sweep, network


def make_problem(tasks: int, small: bool) -> PermutedMNIST:
    """The problem with this number of tasks."""
    size, source = (20, "synthetic") if small else (5_000, "mnist")
    return PermutedMNIST(3 if small else tasks, size, source=source, pixels="centred", continue_passes=True)


def sweep(scale: str) -> Sweep:
    """UPGD with the scale of its code; AdamW with other decays and betas, and all tasks without any decay."""
    small = scale == "smoke"
    net = network(MLP, hidden=(8, 8) if small else (300, 150), init="default")
    upgd = UPGD(0.01, noise_std=0.1, decay_rate=0.9999, weight_decay=0.01, scale="raw")
    adam_w = {decay: AdamW(1e-4, betas=(0.0, 0.99), weight_decay=decay) for decay in (0.0, 0.001, 0.01, 0.1)}
    settings = [
        Setting("UPGD, scale of its code", net, (upgd,)),
        *(Setting("AdamW", net, (method,), {"weight_decay": decay}) for decay, method in adam_w.items()),
        Setting("AdamW, usual betas", net, (AdamW(1e-4, weight_decay=0.01),)),
    ]
    if not small:
        settings += [Setting("AdamW without decay, 200 tasks", net, (adam_w[0.0],), problem=make_problem(200, small))]
    return Sweep(make_problem(60, small), settings=tuple(settings), runs=2 if small else 3)


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Accuracy over tasks."""
    return draw(frame, "accuracy")


claims = ()
