"""Networks trained until the first tick that replaces units, and what tests of a reset compare before and after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import neoteny


def outputs_of(model: nn.Module, x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        output = model(x)
    return list(output) if isinstance(output, tuple) else [output]


def means(outputs: list[Tensor]) -> list[Tensor]:
    """Mean of each feature over the batch and all positions."""
    return [value.transpose(0, 1).flatten(1).mean(1) for value in outputs]


def shift_norms(model: nn.Module) -> None:
    """Scale and shift of every norm away from 1 and 0, so that what a consumer sees behind one has a mean."""
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.uniform_(module.weight, 0.5, 2.0)
            nn.init.uniform_(module.bias, -1.0, 1.0)


def chosen_units(plastic: neoteny.Attachment) -> dict[str, list[int]]:
    """The units that the last tick replaced, by group."""
    states = plastic.state_dict()["states"][-1]
    return {
        name: (values["born"] == values["schedule"]["step"]).nonzero().flatten().tolist()
        for name, values in states.items()
    }


def train_until_replaced(
    model: nn.Module,
    x: Tensor,
    optimizer: torch.optim.Optimizer,
    *,
    rate: float = 0.5,
    threshold: int = 4,
    compensate: bool = True,
    before: Callable[[], None] | None = None,
    **options: Any,
) -> neoteny.Attachment:
    """Train on one batch until the first tick that replaces units; `before` is called just before that tick."""
    method = neoteny.ContinualBackprop(rate, threshold, decay_rate=0.8, compensate=compensate)
    plastic = neoteny.attach(model, optimizer, method, example=x, seed=1, trained=True, **options)
    for step in range(threshold + 1):
        optimizer.zero_grad()
        output = model(x)
        outputs = output if isinstance(output, tuple) else (output,)
        torch.stack([value.square().sum() for value in outputs]).sum().backward()
        optimizer.step()
        if step == threshold and before is not None:
            before()
        plastic.step()
    assert all(chosen_units(plastic).values()), "every group must have replaced something"
    return plastic


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every parameter and buffer, and every per-element state tensor of the optimizer, by name."""
    found = dict(model.state_dict())
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                found[f"{name}/{key}"] = value
    return {name: value.detach().clone() for name, value in found.items()}


def incoming_elements(layer: nn.Module, x: Tensor, rows: list[int], axis: int) -> Tensor:
    """The elements of a layer's weight (bool) that some of its output features depend on, by differentiation."""
    output = layer(torch.randn_like(x)).movedim(axis, 0)[rows]
    (gradient,) = torch.autograd.grad((output * torch.randn_like(output)).sum(), [layer.get_parameter("weight")])
    return gradient != 0


def outgoing_elements(layer: nn.Module, x: Tensor, columns: list[int], axis: int) -> Tensor:
    """The elements of a layer's weight (bool) that meet some of its input features, by differentiation."""
    alone = torch.zeros_like(x).movedim(axis, 0)
    alone[columns] = torch.randn_like(alone[columns])
    output = layer(alone.movedim(0, axis))
    (gradient,) = torch.autograd.grad((output * torch.randn_like(output)).sum(), [layer.get_parameter("weight")])
    return gradient != 0
