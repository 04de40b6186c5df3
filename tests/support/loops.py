"""A small network, batches for it, and the usual training loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from neoteny import ContinualBackprop

FAST = ContinualBackprop(replacement_rate=0.05, maturity_threshold=5, decay_rate=0.9)


def mlp(dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3)).to(dtype)


def batches(
    steps: int, dtype: torch.dtype = torch.float32, size: int = 4, seed: int = 1
) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    drawn = [
        (torch.randn(size, 6, generator=generator), torch.randn(size, 3, generator=generator)) for _ in range(steps)
    ]
    return [(x.to(dtype), y.to(dtype)) for x, y in drawn]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, plastic: Any, data: list[tuple[Tensor, Tensor]]) -> None:
    for x, y in data:
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if plastic is not None:
            plastic.step()
