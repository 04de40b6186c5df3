"""Which elements of which tensor belong to a unit: the layouts of layers, written down independently of the library.

`check.py` compares what is there before and after a tick with these masks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.instancenorm import _InstanceNorm

_NORMS = (_BatchNorm, _InstanceNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_FRESH_NORM = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}


class UnknownLayoutError(TypeError):
    """A kind of module whose rows and columns this file does not know."""


def rows_of(module: nn.Module, weight: Tensor, features: Iterable[int]) -> Tensor:
    """Where in a producer's weight the incoming weights of these outputs are."""
    mask = torch.zeros(weight.shape, dtype=torch.bool)
    if isinstance(module, _ConvTransposeNd):  # (in, out / groups, ...)
        inputs, outputs = module.in_channels // module.groups, module.out_channels // module.groups
        for feature in features:
            block, place = divmod(feature, outputs)
            mask[block * inputs : (block + 1) * inputs, place] = True
    elif type(module).__name__ == "Conv1D":  # transformers' linear layer: (in, out)
        mask[:, sorted(features)] = True
    elif isinstance(module, (nn.Linear, _ConvNd, nn.RNNBase, nn.RNNCellBase)):  # (out, in / groups, ...)
        mask[sorted(features)] = True
    else:
        raise UnknownLayoutError(f"the rows of a {type(module).__name__}")
    return mask


def columns_of(module: nn.Module, weight: Tensor, features: Iterable[int]) -> Tensor:
    """Where in a consumer's weight the outgoing weights of these inputs are."""
    mask = torch.zeros(weight.shape, dtype=torch.bool)
    if isinstance(module, _ConvTransposeNd) or type(module).__name__ == "Conv1D":
        mask[sorted(features)] = True
    elif isinstance(module, _ConvNd):
        inputs, outputs = module.in_channels // module.groups, module.out_channels // module.groups
        for feature in features:
            block, place = divmod(feature, inputs)
            mask[block * outputs : (block + 1) * outputs, place] = True
    elif isinstance(module, (nn.Linear, nn.RNNBase, nn.RNNCellBase)):
        mask[:, sorted(features)] = True
    else:
        raise UnknownLayoutError(f"the columns of a {type(module).__name__}")
    return mask


def mean_output(module: nn.Module, inputs: list[Tensor], weight: Tensor, bias: Tensor) -> Tensor:
    """The mean of each output of a consumer over examples and positions, with these weights, in float64."""
    weight, bias = weight.detach().double(), bias.detach().double()
    means = []
    for each in inputs:
        values = each.double()
        if isinstance(module, _ConvNd):
            if isinstance(module, _ConvTransposeNd):
                function = getattr(F, f"conv_transpose{len(module.kernel_size)}d")
                places = (module.stride, module.padding, module.output_padding, module.groups, module.dilation)
                outputs = function(values, weight, bias, *places)
            else:
                outputs = module._conv_forward(values, weight, bias)  # pyright: ignore[reportCallIssue]
            axis = outputs.dim() - 1 - len(module.kernel_size)
            mean = outputs.movedim(axis, -1).reshape(-1, outputs.shape[axis]).mean(0)
        else:
            turned = weight if type(module).__name__ == "Conv1D" else weight.T
            mean = values.reshape(-1, values.shape[-1]).mean(0) @ turned + bias
        means.append(mean * each.numel())
    return torch.stack(means).sum(0) / sum(each.numel() for each in inputs)


@dataclass
class Regions:
    """What belongs to some units, in every tensor of the model: masks by the tensor's name."""

    outgoing: dict[str, Tensor] = field(default_factory=dict)
    incoming: dict[str, Tensor] = field(default_factory=dict)
    fixed: dict[str, tuple[Tensor, float]] = field(default_factory=dict)
    compensated: dict[str, Tensor] = field(default_factory=dict)
    own: dict[str, Tensor] = field(default_factory=dict)

    def changed(self, name: str, shape: torch.Size) -> Tensor:
        """Where a tensor's elements belong to the units."""
        mask = torch.zeros(shape, dtype=torch.bool)
        for some in (self.outgoing, self.incoming):
            if name in some:
                mask |= some[name]
        return mask | self.fixed[name][0] if name in self.fixed else mask


class Model:
    """A new model with the names of its tensors; one that is used under two names has one."""

    def __init__(self, model: nn.Module) -> None:
        self.module = model
        self.modules = dict(model.named_modules())
        self.parameters = dict(model.named_parameters())
        self.tensors: dict[str, Tensor] = {**self.parameters, **dict(model.named_buffers())}
        self._names = {id(value): name for name, value in self.tensors.items()}
        small = {name: value.detach() for name, value in self.tensors.items() if 0 < value.numel() <= 2**16}
        self._new = {name: float(value.flatten()[0]) for name, value in small.items() if len(value.unique()) == 1}

    def name_of(self, tensor: Any) -> str:
        """The name of a parameter or buffer."""
        return self._names[id(tensor)]

    def weight_of(self, port: Any) -> str:
        """The name of the tensor that holds a port's rows or columns: v, where the weight is g * v / |v|."""
        module, key = self.modules[port.module], key_of(port)
        if key in module._parameters:
            return self.name_of(module._parameters[key])
        chain: Any = _parametrizations(module)[key]
        return self.name_of(chain.original1 if hasattr(chain, "original1") else chain.original)

    def bias_of(self, port: Any) -> str | None:
        """The name of the bias that goes with a port's weight."""
        bias = getattr(self.modules[port.module], key_of(port).replace("weight", "bias"), None)
        return self.name_of(bias) if isinstance(bias, Tensor) else None

    def mean_behind(self, port: Any) -> str | None:
        """The name of the running mean that takes the compensation of a consumer without bias, if a port names one."""
        norm = getattr(port, "norm_behind", None)
        return None if norm is None or self.bias_of(port) is not None else f"{norm}.running_mean"

    def length_of(self, port: Any) -> str | None:
        """The name of g, where the weight is g * v / |v|."""
        module, key = self.modules[port.module], key_of(port)
        chain: Any = None if key in module._parameters else _parametrizations(module)[key]
        return self.name_of(chain.original0) if chain is not None and hasattr(chain, "original0") else None

    def regions(self, chosen: dict[Any, list[int]]) -> Regions:
        """What belongs to the chosen units of each group."""
        found = Regions()
        for group, units in chosen.items():
            rows: dict[str, Tensor] = {}
            for port in group.producers:
                name, bias, length = self.weight_of(port), self.bias_of(port), self.length_of(port)
                _join(rows, name, self.rows(port, units))
                if bias is not None:
                    _join_fixed(found.fixed, bias, _elements(self.tensors[bias], features_of(port, units)), 0.0)
                if length is not None:
                    _join(found.incoming, length, _elements(self.tensors[length], features_of(port, units)))
            for port in group.norms:
                for key, value in _FRESH_NORM.items():
                    tensor = getattr(self.modules[port.module], key, None)
                    if tensor is not None:
                        name, mask = self.name_of(tensor), _elements(tensor, features_of(port, units))
                        if not isinstance(self.modules[port.module], _NORMS):  # as the new model had it
                            value = self._new.get(name, value)
                        _join_fixed(found.fixed, name, mask, value)
            for port in group.consumers:
                name = self.weight_of(port)
                mask = columns_of(self.modules[port.module], self.tensors[name], features_of(port, units))
                _join(found.outgoing, name, mask)
                if name in rows:  # a unit that reads its own group, in a recurrent layer, starts without it
                    _join(found.own, name, mask & rows[name])
                for other in (self.bias_of(port), self.mean_behind(port), self.length_of(port)):
                    if other is not None:
                        _join(found.compensated, other, torch.ones(self.tensors[other].shape, dtype=torch.bool))
            for name, mask in rows.items():
                _join(found.incoming, name, mask)
        return found

    def rows(self, port: Any, units: list[int]) -> Tensor:
        """Where a producer's incoming weights of these units are."""
        return rows_of(self.modules[port.module], self.tensors[self.weight_of(port)], features_of(port, units))


def _parametrizations(module: Any) -> Any:
    return module.parametrizations


def key_of(port: Any) -> str:
    """Which of its module's weights a port names."""
    return getattr(port, "weight", "weight")


def _elements(tensor: Tensor, places: list[int]) -> Tensor:
    mask = torch.zeros(tensor.numel(), dtype=torch.bool)
    mask[places] = True
    return mask.view(tensor.shape)


def features_of(port: Any, units: list[int]) -> list[int]:
    """The features of some units."""
    return [int(feature) for unit in units for feature in port.features[unit]]


def _join(masks: dict[str, Tensor], name: str, mask: Tensor) -> None:
    masks[name] = masks[name] | mask if name in masks else mask


def _join_fixed(masks: dict[str, tuple[Tensor, float]], name: str, mask: Tensor, value: float) -> None:
    masks[name] = (masks[name][0] | mask if name in masks else mask, value)
