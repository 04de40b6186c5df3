"""The freshly initialised copy that a diagnosis compares a network with, on the same inputs."""

from __future__ import annotations

import contextlib
import copy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from neoteny.draws.initial import Distribution, declared_distributions, declared_for, resolve
from neoteny.layers.kinds import BOUNDARIES
from neoteny.wiring.sandbox import call

_SEED = 0


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise ValueError(
            f"control=True needs a copy of the model, but copying it raised {type(error).__name__}: {error}: pass "
            "control=False, or a fresh model as control."
        ) from error


@torch.no_grad()
def fresh_copy(model: nn.Module, notes: list[str]) -> nn.Module:
    """The model with every layer redrawn; parameters of unknown distribution keep their values, and a note says so."""
    fresh = _copy(model)
    before = {name: (parameter, parameter._version) for name, parameter in fresh.named_parameters()}
    torch.manual_seed(_SEED)
    for module in reversed(list(fresh.modules())):  # a parent's own way of drawing comes last, as in its constructor
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if callable(reset):
            with contextlib.suppress(Exception):  # it may need arguments that are not known here
                reset()
    declared = declared_distributions(model, None)
    for name, module in fresh.named_modules():
        distribution = None
        if isinstance(module, BOUNDARIES) and declared_for(name, declared) != "default":
            distribution = resolve(module, declared_for(name, declared))
        if isinstance(distribution, Distribution):
            scale = distribution.scale
            uniform = distribution.family == "uniform"
            module.weight.uniform_(-scale, scale) if uniform else module.weight.normal_(0.0, scale)  # pyright: ignore
            if module.bias is not None:
                cast(Tensor, module.bias).zero_()
    after = dict(fresh.named_parameters())
    kept = [name for name, (old, version) in before.items() if after.get(name) is old and old._version == version]
    if kept:
        notes.append(f"the fresh copy keeps parameters whose initial distribution is not known: {', '.join(kept)}")
    return fresh


def checked_copy(model: nn.Module, fresh: nn.Module) -> nn.Module:
    """The user's fresh model, copied to the model's device and precision; the original stays as it is."""
    shapes, others = ({name: tuple(p.shape) for name, p in some.named_parameters()} for some in (model, fresh))
    if shapes != others:
        name = next(name for name in {**shapes, **others} if shapes.get(name) != others.get(name))
        raise ValueError(
            f"control must be a fresh model of the same architecture; its {name!r} has shape {others.get(name)}, "
            f"the model's {shapes.get(name)}."
        )
    like = next(model.parameters())
    return _copy(fresh).to(like.device, like.dtype)


def has_seen_data(model: nn.Module) -> bool:
    """Whether the batch norms have statistics; those of a model that never trained are as fresh as a fresh copy's."""
    counts = [module.num_batches_tracked for module in model.modules() if isinstance(module, _NormBase)]
    return any(count is not None and bool(count) for count in counts)


def set_norm_statistics(fresh: nn.Module, inputs: Any) -> None:
    """Let batch norms take their statistics from these inputs.

    With the mean 0 and variance 1 that they start with they would not normalise at all, as no network in training does.
    """
    tracking = [module for module in fresh.modules() if isinstance(module, _NormBase) and module.track_running_stats]
    if not tracking:
        return
    fresh.eval()
    momenta = [module.momentum for module in tracking]
    for module in tracking:
        module.train()
        module.momentum = 1.0
    with torch.no_grad():
        call(fresh, inputs)
    for module, momentum in zip(tracking, momenta, strict=True):
        module.eval()
        module.momentum = momentum
