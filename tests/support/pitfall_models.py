"""Three architectures, each of which had an algorithm of its own in other code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import neoteny


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def conv_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 4, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3),
    )  # fmt: skip


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


Make = Callable[[], nn.Sequential]
ARCHITECTURES: list[tuple[Make, tuple[int, ...]]] = [(mlp, (4,)), (conv_net, (1, 3, 3)), (normed, (4,))]
IDS = [make.__name__ for make, _ in ARCHITECTURES]


def update(net: nn.Module, optimizer: torch.optim.Optimizer, plastic: Any, x: Tensor, y: Tensor) -> float:
    optimizer.zero_grad()
    loss = (net(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    if plastic is not None:
        plastic.step()
    return loss.item()


def statistics_of(plastic: neoteny.Attachment) -> dict[str, Any]:
    return plastic.state_dict()["states"][-1]
