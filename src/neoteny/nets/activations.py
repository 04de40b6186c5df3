"""Activation functions by name, with the gain that keeps the size of a signal through a Kaiming-uniform layer."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from neoteny.draws.initial import Initial
from neoteny.text import nearest

# From the paper's Appendix B: 5/3, 1, sqrt(2) and sqrt(2 / (1 + slope^2)) as in torch, and sqrt(2) for ELU
# and Swish, for which torch has no gain.
_ACTIVATIONS: dict[str, tuple[Callable[[], nn.Module], float]] = {
    "relu": (nn.ReLU, nn.init.calculate_gain("relu")),
    "leaky_relu": (nn.LeakyReLU, nn.init.calculate_gain("leaky_relu", nn.LeakyReLU().negative_slope)),
    "tanh": (nn.Tanh, nn.init.calculate_gain("tanh")),
    "sigmoid": (nn.Sigmoid, nn.init.calculate_gain("sigmoid")),
    "elu": (nn.ELU, math.sqrt(2.0)),
    "swish": (nn.SiLU, math.sqrt(2.0)),
}


def make_activation(name: str) -> nn.Module:
    """A new activation module.

    Args:
        name: "relu", "leaky_relu" (slope 0.01), "tanh", "sigmoid", "elu" or "swish".

    Example:
        >>> make_activation("swish")
        SiLU()
    """
    return _look_up(name)[0]()


def gain(name: str) -> float:
    """The Kaiming gain of an activation; arguments as `make_activation`.

    Example:
        >>> gain("tanh")
        1.6666666666666667
    """
    return _look_up(name)[1]


@torch.no_grad()
def kaiming_uniform_(layer: nn.Linear | nn.Conv2d, gain: float) -> Initial:
    r"""Redraw a layer's weights in place and set its bias to zero; return the distribution.

    .. math::
        w \sim U(-b, b), \qquad b = \mathrm{gain} \sqrt{3 / \mathrm{inputs}}

    Args:
        layer: the layer; a convolution's inputs are channels times kernel positions.
        gain: the gain of the activation that follows, 1 for an output layer.

    Returns:
        The distribution that was drawn from, for the network's `initial_distributions`.
    """
    bound = gain * math.sqrt(3.0 / layer.weight[0].numel())
    layer.weight.uniform_(-bound, bound)
    if layer.bias is not None:
        layer.bias.zero_()
    return Initial("uniform", scale=bound)


def check_init(init: str, known: tuple[str, ...] = ("kaiming_uniform", "default")) -> None:
    """ValueError unless `init` names an initial distribution of the networks; "default" is torch's own."""
    if init not in known:
        raise ValueError(f"init must be one of {', '.join(map(repr, known))}; got {init!r}.")


def _look_up(name: str) -> tuple[Callable[[], nn.Module], float]:
    if name not in _ACTIVATIONS:
        raise ValueError(
            f"activation must be one of {', '.join(_ACTIVATIONS)}, got {name!r}.{nearest(name, _ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]
