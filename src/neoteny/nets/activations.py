"""Activation functions by name, with the gain that keeps the size of a signal through a Kaiming-uniform layer."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from neoteny.draws.initial import Initial
from neoteny.nets.aid import AID
from neoteny.nets.paired import CReLU, DeepFourier, Paired
from neoteny.nets.smooth_leaky import RandomizedSmoothLeaky, SmoothLeaky
from neoteny.text import nearest

# From the paper's Appendix B: 5/3, 1, sqrt(2) and sqrt(2 / (1 + slope^2)) as in torch, and sqrt(2) for ELU
# and Swish, for which torch has no gain. CReLU, Fourier features and AID halve the mean square of a signal, as ReLU
# does, hence sqrt(2); Smooth-Leaky has the gain of a leaky ReLU with its slope.
_ACTIVATIONS: dict[str, tuple[Callable[..., nn.Module], Callable[[Any], float]]] = {
    "relu": (nn.ReLU, lambda _: nn.init.calculate_gain("relu")),
    "leaky_relu": (nn.LeakyReLU, lambda layer: nn.init.calculate_gain("leaky_relu", layer.negative_slope)),
    "tanh": (nn.Tanh, lambda _: nn.init.calculate_gain("tanh")),
    "sigmoid": (nn.Sigmoid, lambda _: nn.init.calculate_gain("sigmoid")),
    "elu": (nn.ELU, lambda _: math.sqrt(2.0)),
    "swish": (nn.SiLU, lambda _: math.sqrt(2.0)),
    "crelu": (CReLU, lambda _: math.sqrt(2.0)),
    "fourier": (DeepFourier, lambda _: math.sqrt(2.0)),
    "aid": (AID, lambda _: math.sqrt(2.0)),
    "smooth_leaky": (SmoothLeaky, lambda layer: nn.init.calculate_gain("leaky_relu", layer.alpha)),
    "randomized_smooth_leaky": (
        RandomizedSmoothLeaky,
        lambda layer: nn.init.calculate_gain("leaky_relu", (layer.lower + layer.upper) / 2),
    ),
}


def make_activation(name: str) -> nn.Module:
    """A new activation module.

    Args:
        name: "relu", "leaky_relu" (slope 0.01), "tanh", "sigmoid", "elu", "swish", "crelu", "fourier" (sine and
            cosine), "aid", "smooth_leaky" or "randomized_smooth_leaky"; with options in brackets where the module takes
            some: "leaky_relu(negative_slope=0.1)", "aid(p=0.99)".

    Example:
        >>> make_activation("swish")
        SiLU()
        >>> make_activation("aid(p=0.99)")
        AID(p=0.99)
    """
    name, options = _parse(name)
    return _ACTIVATIONS[name][0](**options)


def gain(name: str) -> float:
    """The Kaiming gain of an activation; arguments as `make_activation`.

    Example:
        >>> gain("tanh")
        1.6666666666666667
    """
    with torch.random.fork_rng(devices=[]):  # a layer that draws takes its seed from torch's generator
        return _ACTIVATIONS[_parse(name)[0]][1](make_activation(name))


def features_per_unit(name: str) -> int:
    """How many numbers an activation gives for each unit: 2 for "crelu" and "fourier", else 1."""
    made = _ACTIVATIONS[_parse(name)[0]][0]
    return 2 if isinstance(made, type) and issubclass(made, Paired) else 1


def units_for(name: str, width: int) -> int:
    """How many units a layer of a given width has: half as many with Fourier features, else as many.

    Example:
        >>> units_for("fourier", 100), units_for("crelu", 100)
        (50, 100)
    """
    if _parse(name)[0] != "fourier":
        return width
    if width % 2:
        raise ValueError(
            f'activation "fourier" gives sine and cosine of half as many units, so widths must be even; got {width}.'
        )
    return width // 2


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


def _parse(text: str) -> tuple[str, dict[str, float]]:
    """The name and the options of "name" or "name(option=1.0)"."""
    name, bracket, _ = str(text).partition("(")
    if name not in _ACTIVATIONS:
        raise ValueError(
            f"activation must be one of {', '.join(_ACTIVATIONS)}, got {text!r}.{nearest(name, _ACTIVATIONS)}"
        )
    if not bracket:
        return name, {}
    parameters = inspect.signature(_ACTIVATIONS[name][0]).parameters.values()
    known = [each.name for each in parameters if isinstance(each.default, float)]
    takes = ", ".join(known) or "none"
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise TypeError
        options = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
        numbers = {str(key): float(value) for key, value in options.items()}
    except (SyntaxError, ValueError, TypeError):
        raise ValueError(
            f'activation: options are written as "{name}(option=number)"; got {text!r}. Its options: {takes}.'
        ) from None
    for key in numbers:
        if key not in known:
            raise ValueError(f"activation {name!r} has no option {key!r}.{nearest(key, known)} Its options: {takes}.")
    return name, numbers
