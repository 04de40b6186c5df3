"""Parameters as a new network would have them: what resets of whole layers draw, by (run seed, step, parameter).

Before this: `laws.py`, the initial law of each layer's weight; after it: methods that draw whole parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from neoteny.draws import rng
from neoteny.draws.initial import Distribution, ModuleDistribution, fresh_weight
from neoteny.layers.parameters import LayerParameters
from neoteny.units.view import View

Start = dict[str, Tensor]
"""Of a parameter when it was first seen, (*R,): "mean", and "std", which is 0 where all its elements are equal."""


def start_of(view: View, parameter: Tensor) -> Start:
    """What is kept of a parameter's first value, to draw it again later."""
    flat = parameter.detach().flatten(len(view.runs)) if view.axes(parameter) else parameter.detach().unsqueeze(-1)
    mean, std, first = flat.mean(-1), flat.std(-1, correction=0), flat[..., 0]
    equal = (flat == flat[..., :1]).all(-1)
    if flat.shape[-1] == 1:  # a single number may have been drawn
        equal, std = (first == 0.0) | (first == 1.0), first.abs()
    return {"mean": torch.where(equal, first, mean), "std": torch.where(equal, torch.zeros_like(std), std)}


def draw_fresh(
    view: View, starts: dict[str, Start], names: Iterable[str], step: int, purpose: str
) -> dict[str, Tensor]:
    """New values (*R, ...) for some parameters, by name.

    Weights of linear layers and convolutions are drawn from their initial law, biases from torch's law of their layer
    (or what the module's own `reset_parameters` draws). Scales of norms are 1, shifts 0. A parameter whose elements
    were all equal when it was first seen gets that value again: zero biases, an output layer that starts at zero. Every
    other parameter (an embedding) is drawn from a normal distribution with the mean and the spread it had then.

    Args:
        view: the network or networks.
        starts: `start_of` each of the parameters.
        names: which parameters.
        step: counts the draws of one purpose.
        purpose: what they are for.
    """
    roles = _roles(view)
    found: dict[str, Tensor] = {}
    for name in names:
        parameter, start = view.tensor(name), starts[name]
        drawn = _draw(view, name, parameter, start, roles.get(name), step, f"{name}/{purpose}")
        constant, mean = (start[key].reshape((*view.runs, *(1,) * view.axes(parameter))) for key in ("std", "mean"))
        found[name] = torch.where(constant == 0.0, mean.to(drawn), drawn).to(parameter.dtype)
    return found


_Role = tuple[str, LayerParameters]


def _roles(view: View) -> dict[str, _Role]:
    """What each parameter of a layer is: "weight", "bias", "scale" or "shift", with the layer."""
    found: dict[str, _Role] = {}
    for layer in view.layers:
        is_norm = layer.scale is not None
        for name, role in (
            (layer.weight, "weight"),
            (layer.scale, "scale"),
            (layer.bias, "shift" if is_norm else "bias"),
        ):
            if name is not None:
                found[name] = (role, layer)
    return found


def _draw(
    view: View, name: str, parameter: Tensor, start: Start, role: _Role | None, step: int, purpose: str
) -> Tensor:
    shape = parameter.shape[len(view.runs) :]
    kind, layer = role or ("other", None)
    if kind in ("scale", "shift"):
        return torch.full_like(parameter, 1.0 if kind == "scale" else 0.0).detach()
    law: Distribution | ModuleDistribution = Distribution("normal", 1.0)
    if kind == "weight":
        law = view.initial(name)
    elif kind == "bias" and layer is not None:
        own = None if layer.weight is None else view.initial(layer.weight)
        if isinstance(own, ModuleDistribution):
            return _own_bias(view, own, parameter, step, purpose)
        law = Distribution("uniform", 1.0 / math.sqrt(max(layer.inputs, 1)))
    if isinstance(law, ModuleDistribution):
        return _own_weight(view, law, parameter, step, purpose)
    sizes = (shape[0], shape[1:].numel()) if len(shape) > 1 else (1, shape.numel())
    rows = torch.arange(sizes[0], device=parameter.device).expand(*view.runs, sizes[0])
    drawn = law.draw(view.seeds.unsqueeze(-1), step, purpose, rows, sizes[1]).reshape(parameter.shape)
    if kind != "other":
        return drawn
    if shape.numel() == 1:  # a temperature, say: one number does not show a law
        return start["mean"].to(drawn).reshape(parameter.shape)
    mean, std = (start[key].to(drawn).reshape((*view.runs, *(1,) * view.axes(parameter))) for key in ("mean", "std"))
    return mean + std * drawn


def _own_weight(view: View, law: ModuleDistribution, weight: Tensor, step: int, purpose: str) -> Tensor:
    """A weight as the module's own `reset_parameters` draws it, in the layout that the module has."""
    groups = int(getattr(law.module, "groups", 1))
    outputs = weight.shape[len(view.runs)]
    taps = weight.shape[len(view.runs) + 2 :]
    transposed = bool(getattr(law.module, "transposed", False))
    if transposed:  # (in, out / groups, *kernel): drawn by output
        outputs = weight.shape[len(view.runs) + 1] * groups
    columns = math.prod(weight.shape[len(view.runs) :]) // outputs
    rows = torch.arange(outputs, device=weight.device).expand(*view.runs, outputs)
    drawn = law.draw(view.seeds.unsqueeze(-1), step, purpose, rows, columns)
    if not transposed:
        return drawn.reshape(weight.shape)
    split = drawn.reshape(*view.runs, groups, outputs // groups, -1, *taps)
    return split.transpose(len(view.runs) + 1, len(view.runs) + 2).reshape(weight.shape)


def _own_bias(view: View, law: ModuleDistribution, bias: Tensor, step: int, purpose: str) -> Tensor:
    """A bias as the module's own `reset_parameters` draws it, one reset per run."""
    zero = torch.zeros(1, dtype=torch.int64)
    numbers = [
        rng.uniform(torch.tensor([seed]), step, f"{purpose}/reset", zero, 1).item()
        for seed in view.seeds.reshape(-1).tolist()
    ]
    drawn = [fresh_weight(law.module, int(number * 2**53), "bias") for number in numbers]
    return torch.stack(drawn).reshape(bias.shape).to(bias)
