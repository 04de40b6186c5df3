"""Which parameters of a model are weights of layers, biases, or scales and shifts of norms."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from neoteny.layers.kinds import NORMS, is_input_first_linear, width_in


class LayerParameters(NamedTuple):
    """The parameters of one linear layer, convolution or norm, by name.

    Attributes:
        module: the layer's name.
        weight: of a linear layer (out, in) or a convolution (out, in / groups, *kernel), both also the other way round;
            None for a norm.
        bias: None if it has none; of a norm the shift.
        scale: of a norm; else None.
        inputs: how many numbers each output of a linear layer or convolution is computed from (its fan-in).
        input_first: whether the first axis of the weight counts inputs, not outputs (a transposed convolution).
        groups: of a convolution; else 1.
    """

    module: str
    weight: str | None
    bias: str | None
    scale: str | None = None
    inputs: int = 0
    input_first: bool = False
    groups: int = 1

    def matrix(self, weight: Tensor, run_axes: int) -> Tensor:
        """The weight (*R, ...) as one matrix per group of a convolution, (*R, groups, out / groups, in * taps)."""
        split = weight.unflatten(run_axes, (self.groups, -1))  # (*R, groups, rows, columns, *kernel)
        if self.input_first:
            split = split.movedim(run_axes + 2, run_axes + 1)
        return split.flatten(run_axes + 2)

    def from_matrix(self, matrix: Tensor, like: Tensor, run_axes: int) -> Tensor:
        """What `matrix` gives, in the layout of the weight."""
        if not self.input_first:
            return matrix.reshape(like.shape)
        runs, (first, second, *kernel) = like.shape[:run_axes], like.shape[run_axes:]
        split = matrix.reshape(*runs, self.groups, second, first // self.groups, *kernel)
        return split.movedim(run_axes + 2, run_axes + 1).reshape(like.shape)


def layer_parameters(model: nn.Module) -> list[LayerParameters]:
    """Every linear layer, convolution and norm of a model, in the order of `named_modules`."""
    found: list[LayerParameters] = []
    for name, module in model.named_modules():
        own = {key: f"{name}.{key}" if name else key for key, _ in module.named_parameters(recurse=False)}
        if isinstance(module, (nn.Linear, _ConvNd)) or is_input_first_linear(module):
            input_first = is_input_first_linear(module) or getattr(module, "transposed", False)
            groups = module.groups if isinstance(module, _ConvNd) else 1
            weight, bias = own.get("weight"), own.get("bias")
            found.append(LayerParameters(name, weight, bias, None, _fan_in(module), input_first, groups))
        elif isinstance(module, NORMS) and own:
            found.append(LayerParameters(name, None, own.get("bias"), own.get("weight")))
    return found


def _fan_in(module: nn.Module) -> int:
    """Inputs of one output, taps included; of a transposed convolution the taps that may reach it without stride."""
    if isinstance(module, _ConvNd):
        return width_in(module) // module.groups * math.prod(module.kernel_size)
    return width_in(module)
