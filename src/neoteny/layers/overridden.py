"""Layers of other libraries that have a `forward` of their own: what a trial shows that they compute.

A subclass of `nn.Linear` that multiplies in its own words is a linear layer. A copy of the module is run on random
values to see it. Whether a unit can be replaced is decided by `wiring/verify.py`, as for every layer; `kinds.py` asks
here, and for norms in `lookalikes.py`.
"""

from __future__ import annotations

import copy
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

_OWN = {"weight", "bias"}
_ROUNDING = 1e-4  # relative; of two ways to write the same sum
_SHOWN: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def acts_as_its_base(module: nn.Module) -> bool:
    """Whether a linear layer or convolution with a `forward` of its own computes what its base class computes."""
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
    trial = copy.deepcopy(module)
    for hooks in (trial._forward_hooks, trial._forward_pre_hooks, trial._backward_hooks, trial._backward_pre_hooks):
        hooks.clear()
    devices = [weight.device] if weight.device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        return all(_same_as_base(trial.train(training), weight) for training in (False, True))


def _same_as_base(trial: nn.Module, weight: Tensor) -> bool:
    """Whether the outputs are those of the stock class."""
    stock = next(each for each in type(trial).__mro__ if each.__module__.startswith("torch.nn.modules"))
    if isinstance(trial, nn.Linear):
        shapes = [(3, weight.shape[1]), (2, 4, weight.shape[1])]
    elif isinstance(trial, _ConvNd) and not trial.transposed:
        reach = [step * (size - 1) + 1 for step, size in zip(trial.dilation, trial.kernel_size, strict=True)]
        channels = weight.shape[1] * trial.groups
        shapes = [(2, channels, *(each + more for each in reach)) for more in range(5, 9)]  # padding shows
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
