"""Modules of many kinds to stack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neoteny
from neoteny.nets import Dropout


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Sequential(nn.Linear(6, 5), nn.Tanh()), nn.Linear(5, 2))


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2),
    )  # fmt: skip


def norm_net() -> nn.Module:
    # no bias in front of the norm: its gradient would be rounding noise, which Adam blows up
    return nn.Sequential(
        nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)
    )


def dropout_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), Dropout(0.2), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))


class OwnForward(nn.Module):
    """Two hidden layers and a head, wired in a forward of its own, registered out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 2)
        self.second = nn.Linear(6, 5)
        self.first = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sigmoid(self.second(F.relu(self.first(x)))))


SHAPES = {conv_net: (1, 4, 4)}
Make = Callable[[], nn.Module]


def shape_of(make: Make) -> tuple[int, ...]:
    return SHAPES.get(make, (4,))


def statistics_of(plastic: neoteny.Attachment | neoteny.Stack) -> dict[str, Any]:
    return plastic.state_dict()["states"][-1]
