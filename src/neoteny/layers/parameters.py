"""Which parameters of a model are weights of layers, biases, or scales and shifts of norms."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import nn
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
    """

    module: str
    weight: str | None
    bias: str | None
    scale: str | None = None
    inputs: int = 0


def layer_parameters(model: nn.Module) -> list[LayerParameters]:
    """Every linear layer, convolution and norm of a model, in the order of `named_modules`."""
    found: list[LayerParameters] = []
    for name, module in model.named_modules():
        own = {key: f"{name}.{key}" if name else key for key, _ in module.named_parameters(recurse=False)}
        if isinstance(module, (nn.Linear, _ConvNd)) or is_input_first_linear(module):
            found.append(LayerParameters(name, own.get("weight"), own.get("bias"), inputs=_fan_in(module)))
        elif isinstance(module, NORMS) and own:
            found.append(LayerParameters(name, None, own.get("bias"), own.get("weight")))
    return found


def _fan_in(module: nn.Module) -> int:
    """Inputs of one output, taps included; of a transposed convolution the taps that may reach it without stride."""
    if isinstance(module, _ConvNd):
        return module.in_channels // module.groups * math.prod(module.kernel_size)
    return width_in(module)
