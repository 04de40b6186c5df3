"""Layers and norms of other libraries that have a `forward` of their own: what a trial shows that they compute.

A subclass of `nn.Linear` that multiplies in its own words is a linear layer; a BatchNorm with an activation built in is
still a norm, as long as each channel is by itself. A copy of the module is run on random values to see it. Whether a
unit can be replaced is decided by `wiring/verify.py`, as for every layer; `kinds.py` asks here.
"""

from __future__ import annotations

import copy
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

_OWN = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
_ROUNDING = 1e-4  # relative; of two ways to write the same sum
_SPATIAL = {nn.BatchNorm1d: (3,), nn.BatchNorm2d: (3, 2), nn.BatchNorm3d: (2, 3, 2)}
_SHOWN: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def acts_as_its_base(module: nn.Module) -> bool:
    """Whether a Linear, Conv or BatchNorm with a `forward` of its own does what tracing expects of its base class.

    A linear layer or convolution must compute what its base class computes. Of a BatchNorm each channel's output must
    depend on that channel alone, and a new one must have scale 1 and shift 0.
    """
    if module not in _SHOWN:
        try:
            _SHOWN[module] = _try(module)
        except Exception:  # code of any kind; a module that cannot be tried stays closed
            _SHOWN[module] = False
    return _SHOWN[module]


def _try(module: nn.Module) -> bool:
    own = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    weight = module._parameters.get("weight")
    if weight is None or "forward" in module.__dict__ or own - _OWN:
        return False
    try_out = _norm_by_channel if isinstance(module, _BatchNorm) else _same_as_base
    trial = copy.deepcopy(module)
    for hooks in (trial._forward_hooks, trial._forward_pre_hooks, trial._backward_hooks, trial._backward_pre_hooks):
        hooks.clear()
    devices = [weight.device] if weight.device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        return all(try_out(trial.train(training), weight) for training in (False, True))


def _same_as_base(trial: nn.Module, weight: Tensor) -> bool:
    """Whether the outputs are those of the stock class."""
    stock = next(each for each in type(trial).__mro__ if each.__module__.startswith("torch.nn.modules"))
    if isinstance(trial, nn.Linear):
        shapes = [(3, trial.in_features), (2, 4, trial.in_features)]
    elif isinstance(trial, _ConvNd) and not trial.transposed:
        reach = [step * (size - 1) + 1 for step, size in zip(trial.dilation, trial.kernel_size, strict=True)]
        shapes = [(2, trial.in_channels, *(each + more for each in reach)) for more in range(5, 9)]  # padding shows
    else:
        return False
    base = copy.copy(trial)
    base.__class__ = stock
    for shape in shapes:
        values = torch.randn(shape, dtype=weight.dtype, device=weight.device)
        got, expected = trial(values), base(values)
        if got.shape != expected.shape or not torch.allclose(got, expected, _ROUNDING, _ROUNDING):
            return False
    return True


def _norm_by_channel(trial: nn.Module, weight: Tensor) -> bool:
    """Whether each channel of the output follows from the same channel of the input and of the parameters."""
    spatial = next((size for cls, size in _SPATIAL.items() if isinstance(trial, cls)), None)
    fresh = copy.deepcopy(cast(_BatchNorm, trial))
    fresh.reset_parameters()
    if spatial is None or not _is_new(fresh):
        return False
    channels = weight.shape[0]
    values = torch.randn((4, channels, *spatial), dtype=weight.dtype, device=weight.device)
    even = torch.arange(channels, device=weight.device) % 2 == 0
    one = torch.arange(channels, device=weight.device) == channels // 2
    for chosen in (even, ~even, one):
        usual = _run(trial, values)
        moved = values.clone()
        moved[:, chosen] = 2.0 * moved[:, chosen] + 1.0
        if usual.shape != values.shape or not torch.equal(usual[:, ~chosen], _run(trial, moved)[:, ~chosen]):
            return False
        if not torch.equal(usual[:, ~chosen], _run(trial, values, chosen)[:, ~chosen]):
            return False
    return True


def _run(trial: nn.Module, values: Tensor, chosen: Tensor | None = None) -> Tensor:
    """The output of a copy, with the same random numbers each time; with other parameters of the chosen channels."""
    module = copy.deepcopy(trial)
    if chosen is not None:
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.dim():
                tensor[chosen] = 3.0 * tensor[chosen] + 0.5
    torch.manual_seed(0)
    return module(values)


def _is_new(norm: nn.Module) -> bool:
    weight, bias = norm._parameters.get("weight"), norm._parameters.get("bias")
    return weight is not None and bool((weight == 1).all()) and (bias is None or bool((bias == 0).all()))
