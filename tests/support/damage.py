"""Damage done to a network by hand, as a diagnosis should find it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import neoteny
from neoteny.diagnosis.result import Diagnosis
from neoteny.layers.groups import Port, UnitGroup


def kill_units(model: nn.Module, group: UnitGroup, share: float = 0.5) -> None:
    """Make the first units of a group silent on every input."""
    dead = range(int(share * group.units))
    with torch.no_grad():
        for port in group.producers:
            _set(model, port, "weight", dead, 0.0)
            if model.get_submodule(port.module).bias is not None:
                _set(model, port, "bias", dead, -1e3 if len(group.producers) == 1 else 0.0)
        for port in group.norms:
            _set(model, port, "weight", dead, 0.0)
            _set(model, port, "bias", dead, -10.0)


def collapse_rank(model: nn.Module, group: UnitGroup) -> None:
    """Make all units of a group the same function of the input, up to their signs' size."""
    with torch.no_grad():
        for port in group.producers:
            module = model.get_submodule(port.module)
            weight, bias = module.get_parameter("weight"), module.bias
            weight.copy_(weight[:1].expand_as(weight).clone())
            if isinstance(bias, Tensor):
                bias.zero_()


def grow(model: nn.Module, times: float = 4.0) -> None:
    """Make every weight larger."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(times)


def groups_of(model: nn.Module, example: Any) -> tuple[UnitGroup, ...]:
    """The unit groups that a diagnosis measures."""
    return neoteny.trace(model, example, norm="accept").groups


def alarmed(found: Diagnosis) -> bool:
    """Whether a diagnosis asks for a remedy."""
    return any(sentence.startswith("Consider") for sentence in found.verdict)


def _set(model: nn.Module, port: Port, key: str, units: range, value: float) -> None:
    tensor = getattr(model.get_submodule(port.module), key)
    if isinstance(tensor, Tensor) and port.features is not None:
        tensor[port.features[list(units)].flatten()] = value
