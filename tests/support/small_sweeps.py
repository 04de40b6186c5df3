"""A small sweep on slowly-changing regression, and its training."""

from __future__ import annotations

import torch

from neoteny.methods import SGD
from neoteny.nets import MLP
from neoteny.problems import SlowlyChangingRegression
from neoteny.suite.sweep import Setting, Sweep, network

PROBLEM = SlowlyChangingRegression(tasks=3, examples_per_task=40)
NET = network(MLP, hidden=(5,))
CPU = torch.device("cpu")


def make_sweep(*settings: Setting, **options) -> Sweep:
    settings = settings or (Setting("BP", NET, (SGD(0.01),)),)
    return Sweep(**{"problem": PROBLEM, "settings": settings, "runs": 2, **options})
