"""Models to diagnose, and what a diagnosis says in short."""

from __future__ import annotations

import itertools
from collections import OrderedDict

import torch
from torch import nn

from neoteny.diagnosis import diagnose as diagnosis


def mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """fc1, act1, fc2, ..., with torch's own initial weights."""
    torch.manual_seed(0)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (before, after) in enumerate(itertools.pairwise(widths), start=1):
        layers[f"fc{number}"] = nn.Linear(before, after)
        if number < len(widths) - 1:
            layers[f"act{number}"] = act()
    return nn.Sequential(layers)


def healthy(found: diagnosis.Diagnosis) -> bool:
    return len(found.verdict) == 1 and found.verdict[0].startswith("Nothing is wrong")
