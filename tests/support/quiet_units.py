"""Small networks with one quiet unit or channel, and the loop of a user around a method that replaces it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import Method

INPUTS = torch.linspace(0.1, 1.0, 32, dtype=torch.float64).reshape(8, 4)


class Images(nn.Module):
    """A convolution whose channels a flatten hands to a linear layer, channels first or last."""

    def __init__(self, channels_last: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.channels_last = channels_last
        self.head = nn.Linear(3 * 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.conv(x))
        return self.head((h.permute(0, 2, 3, 1) if self.channels_last else h).flatten(1))

    def outgoing(self) -> Tensor:
        """The head's weights as (outputs, positions, channels), a view."""
        weight = self.head.weight.detach()
        return weight.view(2, 4, 3) if self.channels_last else weight.view(2, 3, 4).mT


def mlp(activation: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), activation or nn.ReLU(), nn.Linear(5, 2))


def tensors(model: nn.Sequential) -> tuple[Tensor, Tensor, Tensor]:
    """Incoming weights, biases and outgoing weights of the units, live."""
    names = ("0.weight", "0.bias", "2.weight")
    first, second, third = (model.get_parameter(name).detach() for name in names)
    return first, second, third


def quieten(model: nn.Sequential, unit: int = 2) -> None:
    """Make a unit silent, without gradient at its weights and nearly without at its output; all others fire."""
    _, bias, outgoing = tensors(model)
    bias.fill_(5.0)
    bias[unit] = -100.0
    outgoing[:, unit] = 1e-9


def attach(model: nn.Module, optimizer: torch.optim.Optimizer, *methods: Method, **more: Any) -> neoteny.Attachment:
    example = more.pop("example", torch.zeros(2, 4))
    return neoteny.attach(model, optimizer, *methods, example=example, seed=3, **more)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
