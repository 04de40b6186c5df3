"""A small network under regularisers, with the usual loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import Method


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))


class Training:
    """Methods attached to a network, with the usual loop."""

    def __init__(self, net: nn.Module, *methods: Method, optimizer: Any = None, step_size: float = 0.1) -> None:
        self.net = net
        self.optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=step_size)
        self.plastic = neoteny.attach(net, self.optimizer, *methods, example=None, seed=1)

    def update(self, x: Tensor, weight: float = 1.0) -> None:
        """One update; with weight 0 the loss has no gradient."""
        self.optimizer.zero_grad()
        loss = self.net(x).square().mean()
        (loss * weight).backward()
        self.plastic.observe(loss)
        self.optimizer.step()
        self.plastic.step()

    def gradients(self) -> dict[str, Tensor]:
        return {name: value.grad.clone() for name, value in self.net.named_parameters() if value.grad is not None}

    def weights(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.net.named_parameters()}
