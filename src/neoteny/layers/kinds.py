"""Kinds of modules: boundaries (Linear, Conv, LSTM) have rows and columns, norms normalise, opaque modules are closed.

In `wiring/`, `probe.py` watches these modules, `verify.py` edits their parameters, and `classify.py` asks whether a
reset may write to them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from neoteny.layers import recurrent
from neoteny.layers.lookalikes import Norm, norm_of
from neoteny.layers.overridden import acts_as_its_base
from neoteny.layers.parametrized import why_unwritable
from neoteny.layers.recurrent import RECURRENT, is_recurrent

Kind = Literal["boundary", "norm", "opaque", "plain"]

BOUNDARIES = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
# Linear layers of other libraries whose weight is (in, out), by the name of their class: transformers' layer of GPT-2.
INPUT_FIRST = ("Conv1D",)
NORMS = (_BatchNorm, _InstanceNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
# Torch classes that may hold parameters directly and still act feature by feature, or only hold others.
TRANSPARENT = (nn.PReLU, nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def kind_of(module: nn.Module) -> Kind:
    """How tracing treats a module: a boundary stops the probe, a norm passes it on, an opaque module is closed.

    A subclass that overrides `forward` no longer says what its rows and columns mean, so it is opaque, unless a trial
    shows it (`overridden.py`, `lookalikes.py`).
    """
    if isinstance(module, (*BOUNDARIES, *NORMS)):
        if "forward" in module.__dict__:
            return "opaque"
        if isinstance(module, BOUNDARIES):
            return "boundary" if _is_stock(module) or acts_as_its_base(module) else "opaque"
        return "norm" if _is_stock(module) or norm_of(module) is not None else "opaque"
    if is_input_first_linear(module):
        return "opaque" if "forward" in module.__dict__ else "boundary"
    if is_recurrent(module):
        return "boundary"
    if norm_of(module) is not None:
        return "opaque" if "forward" in module.__dict__ else "norm"
    if isinstance(module, TRANSPARENT) or type(module).__module__.startswith("torch.nn.utils"):
        return "plain"
    if type(module).__module__.startswith(("torch.ao.nn", "torch.nn.quantized")):
        return "opaque"
    is_torch = any(c.__module__.startswith("torch.nn.modules") for c in type(module).__mro__ if c is not nn.Module)
    owns = next(module.parameters(recurse=False), None) is not None or hasattr(module, "parametrizations")
    return "opaque" if is_torch and owns else "plain"


def watched_modules(model: nn.Module, closed: Collection[str] = ()) -> dict[str, tuple[nn.Module, Kind]]:
    """Every boundary, norm and opaque module by name; modules inside one of them belong to it.

    Args:
        model: the model.
        closed: names of modules to take for opaque ones.
    """
    found: dict[str, tuple[nn.Module, Kind]] = {}
    inside: list[str] = []
    for name, module in model.named_modules():
        if any(name.startswith(prefix) for prefix in inside):
            continue
        kind: Kind = "opaque" if name in closed else kind_of(module)
        if kind != "plain":
            found[name] = (module, kind)
            inside.append(f"{name}." if name else "")
            if not name:  # the model itself is one layer
                break
    return found


def loose_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that a custom module uses on its own (position embeddings, layer scales), by name."""
    watched = watched_modules(model)
    loose: dict[str, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        owner = name.rpartition(".")[0]
        inside = any(owner == other or owner.startswith(f"{other}.") or not other for other in watched)
        shared_slope = isinstance(model.get_submodule(owner), nn.PReLU) and parameter.numel() == 1
        if not inside and not shared_slope:  # one slope for all units belongs to no single unit
            loose[name] = parameter
    return loose


def _is_stock(module: nn.Module) -> bool:
    """Whether a module's forward is torch's own."""
    methods = [type(module).forward, getattr(type(module), "_conv_forward", type(module).forward)]
    return all(method.__module__.startswith("torch.nn.modules") for method in methods)


def _foreign_norm(module: nn.Module) -> Norm | None:
    """How a norm of another library acts; None for one of torch."""
    return None if _is_stock(module) else norm_of(module)


def norm_fresh(module: nn.Module) -> dict[str, float]:
    """The tensors of a norm by name, each with the value that a new feature has."""
    if (norm := _foreign_norm(module)) is not None:
        return norm.fresh
    fresh = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
    return {name: value for name, value in fresh.items() if getattr(module, name, None) is not None}


def is_input_first_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer of another library with a weight (in, out)."""
    if type(module).__name__ not in INPUT_FIRST:
        return False
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    shaped = weight is not None and weight.dim() == 2 and (bias is None or bias.shape == weight.shape[1:])
    return shaped and set(module._parameters) == {"weight", "bias"} and not module._modules and not module._buffers


def input_first(module: nn.Module) -> bool:
    """Whether the first axis of a boundary's weight counts inputs, so that its rows lie along the second."""
    return getattr(module, "transposed", False) is True or is_input_first_linear(module)


def width_out(module: nn.Module) -> int:
    """Rows of a boundary module; hidden features of a recurrent one."""
    if isinstance(module, RECURRENT):
        return recurrent.width_out(module)
    if isinstance(module, (nn.Linear, _ConvNd)):
        return _sizes(module)[0]
    return cast(Tensor, module.weight).shape[1]


def _sizes(module: nn.Linear | _ConvNd) -> tuple[int, int]:
    """Outputs and inputs by the weight: where rows or columns were cut or added in place, the attributes are old."""
    convolution = isinstance(module, _ConvNd)
    weight = module._parameters.get("weight")
    if weight is None or is_lazy(weight) or weight.dim() < 2 or not weight.is_floating_point():  # computed, or packed
        if convolution:
            return module.out_channels, module.in_channels
        return module.out_features, module.in_features
    first, second = weight.shape[:2]
    if not convolution:
        return first, second
    return (second * module.groups, first) if module.transposed else (first, second * module.groups)


def width_in(module: nn.Module) -> int:
    """Input features of a boundary module or a norm: what a consumer's or a norm's port indexes."""
    if isinstance(module, (nn.Linear, _ConvNd)):
        return _sizes(module)[1]
    if isinstance(module, RECURRENT):
        return module.input_size
    if (norm := _foreign_norm(module)) is not None:
        return norm.features
    if isinstance(module, nn.GroupNorm):
        return module.num_channels
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return int(torch.Size(module.normalized_shape).numel())
    if isinstance(module, (_BatchNorm, _InstanceNorm)):
        scale = module._parameters.get("weight")
        return module.num_features if scale is None or is_lazy(scale) else len(scale)  # may be cut, too
    return cast(Tensor, module.weight).shape[0]


def feature_dim(module: nn.Module, values: Tensor) -> int:
    """The axis that holds the features in a boundary's or norm's input or output."""
    if isinstance(module, nn.Linear):
        return values.dim() - 1
    if (norm := _foreign_norm(module)) is not None:
        return norm.axis % values.dim()
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm, *RECURRENT)):
        return values.dim() - 1
    if isinstance(module, _ConvNd):  # it also takes inputs without a batch axis, as do these norms
        return values.dim() - 1 - len(module.kernel_size)
    for spatial, cls in enumerate((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), start=1):
        if isinstance(module, cls):
            return values.dim() - 1 - spatial
    return values.dim() - 1 if is_input_first_linear(module) else 1


def features_last(module: nn.Module) -> bool:
    """Whether the last axis of a boundary's or norm's input holds its features, and not the second."""
    if (norm := _foreign_norm(module)) is not None:
        return norm.axis == -1
    return isinstance(module, (nn.Linear, nn.LayerNorm, nn.RMSNorm, *RECURRENT)) or is_input_first_linear(module)


def by_feature(module: nn.Module, values: Tensor) -> Tensor:
    """A boundary's or norm's input or output as (features, everything else)."""
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        values = values.flatten(values.dim() - len(module.normalized_shape))
    return values.movedim(feature_dim(module, values), 0).reshape(values.shape[feature_dim(module, values)], -1)


def fill_features(module: nn.Module, values: Any, chosen: Tensor, filling: Any) -> Any:
    """A copy of a module's output in which the chosen features (bool, one each) hold `filling`."""
    if isinstance(module, RECURRENT):
        return recurrent.fill_hidden(module, values, chosen, filling)
    shape = [1] * values.dim()
    shape[feature_dim(module, values)] = -1
    filling = torch.as_tensor(filling, dtype=values.dtype, device=values.device)
    return torch.where(chosen.to(values.device).view(shape), filling, values)


def couples(norm: nn.Module) -> bool:
    """Whether a norm's statistics run over several features, so that one unit moves its neighbours."""
    if (foreign := _foreign_norm(norm)) is not None:
        return foreign.couples
    if isinstance(norm, nn.GroupNorm):
        return norm.num_groups < norm.num_channels
    return isinstance(norm, (nn.LayerNorm, nn.RMSNorm))


def unwritable(model: nn.Module, *, frozen: bool = True) -> dict[str, str]:
    """Boundary modules and norms that a reset must not write to, each with the reason.

    Args:
        frozen: include modules whose parameters do not require gradients.
    """
    watched = watched_modules(model)
    owners: dict[int, list[str]] = defaultdict(list)
    seen: set[tuple[int, str]] = set()
    for prefix, module in model.named_modules():  # a module under two names counts once, a Parameter under two twice
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if parameter.numel() and (id(module), name) not in seen:
                seen.add((id(module), name))
                owners[parameter.data_ptr()].append(f"{prefix}.{name}" if prefix else name)
    reasons: dict[str, str] = {}
    for name, (module, kind) in watched.items():
        if kind == "opaque":
            continue
        own = dict(module.named_parameters())
        if reason := _computed_weights(module) if isinstance(module, RECURRENT) else why_unwritable(module):
            if kind == "norm" and "weight" in module._buffers:  # a frozen norm: its scale is no parameter
                continue
            reasons[name] = reason
            continue
        frozen_keys = [key for key, parameter in own.items() if frozen and not parameter.requires_grad]
        if frozen_keys:
            are = "is" if len(frozen_keys) == 1 else "are"
            reasons[name] = f"its {' and '.join(frozen_keys)} {are} frozen (requires_grad=False)"
        for key, parameter in own.items():
            others = [owner for owner in owners[parameter.data_ptr()] if owner != (f"{name}.{key}" if name else key)]
            if others:
                reasons[name] = f"its {key} is shared with {', '.join(others)}"
    return reasons


def _computed_weights(module: recurrent.Recurrent) -> str:
    """Why the weights of a recurrent module cannot be rewritten; empty if they can."""
    plain = set(recurrent.weights_of(module)) <= set(module._parameters) and not hasattr(module, "parametrizations")
    return "" if plain else "its weights are computed from other parameters (weight norm or another parametrization)"
