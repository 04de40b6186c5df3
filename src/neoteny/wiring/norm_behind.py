"""Which norm takes the mean of a consumer that has no bias: the BatchNorm that alone reads what it returns.

Adding a number to every value that such a norm is given is the same as taking it from the norm's running mean, in
evaluation mode; in training mode the batch's own mean takes it up. So a reset compensates there (`units/reset.py`).
`families.py` and `declare.py` ask once the groups are known.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from neoteny.layers.groups import UnitGroup
from neoteny.layers.kinds import couples, feature_dim, width_in, width_out
from neoteny.layers.ports import bias_of
from neoteny.wiring.probe import Change, Probe


def with_norms_behind(probe: Probe, groups: Sequence[UnitGroup]) -> list[UnitGroup]:
    """The groups with, for each consumer that has no bias, the norm whose running mean is to be changed instead."""
    model = probe.sandbox.model
    silent = {
        port.module
        for group in groups
        for port in group.consumers
        if port.weight == "weight" and bias_of(model.get_submodule(port.module), port.weight) is None
    }
    behind = _norms_behind(probe, silent)
    return [
        UnitGroup(
            group.producers,
            [replace(port, norm_behind=behind.get(port.module)) for port in group.consumers],
            group.norms,
            group.read,
            group.notes,
        )
        for group in groups
    ]


def _norms_behind(probe: Probe, consumers: set[str]) -> dict[str, str]:
    """The norm directly behind each of some layers, where it is the only reader.

    One pass for all: each layer returns random numbers, half of them NaN, and no norm passes any on. Its norm must be
    given exactly these, and nothing else NaN. If something else is, the layers are tried one by one.
    """
    pairs: dict[str, str] = {}
    for name, after in zip(probe.order, probe.order[1:], strict=False):
        if (
            name not in consumers
            or probe.watched[after][1] != "norm"
            or not probe.calls[name] == probe.calls[after] == 1
        ):
            continue
        if width_out(probe.module(name)) == width_in(probe.module(after)) and _shifts(probe.module(after)):
            pairs[name] = after
    pairs = _direct(probe, pairs, alone=False)
    joint = _direct(probe, pairs, alone=True)
    if joint or not pairs:
        return joint
    return {k: v for name, norm in pairs.items() for k, v in _direct(probe, {name: norm}, alone=True).items()}


def _direct(probe: Probe, pairs: dict[str, str], *, alone: bool) -> dict[str, str]:
    """The pairs of a layer and a norm that is given what the layer returns; with `alone`, none if others are, too."""
    patterns: dict[str, Tensor] = {}

    def marked(name: str) -> Change:
        def change(kept: Tensor) -> Tensor:
            random = torch.Generator().manual_seed(len(patterns))
            values = torch.randn(kept.shape, generator=random)
            patterns[name] = values.masked_fill_(torch.rand(kept.shape, generator=random) < 0.5, math.nan).to(kept)
            return patterns[name].clone()

        return change

    if not pairs:
        return {}
    seen = probe.replay({name: marked(name) for name in pairs}, closed_norms=True, keep_inputs=True)
    if seen.error is not None or seen.order != probe.order:
        return {}
    if alone and not seen.places() <= set(pairs.values()):
        return {}
    return {
        name: norm
        for name, norm in pairs.items()
        if name in patterns and torch.equal(seen.inputs[norm][0].nan_to_num(9e9), patterns[name].nan_to_num(9e9))
    }


@torch.no_grad()
def _shifts(norm: nn.Module) -> bool:
    """Whether a norm's running mean is taken from what it is given, in evaluation mode."""
    running = norm._buffers.get("running_mean")
    if running is None or couples(norm):
        return False
    if isinstance(norm, _BatchNorm) and type(norm).forward.__module__.startswith("torch.nn.modules"):
        return True
    try:
        twin: Any = copy.deepcopy(norm).eval()
        shape = (3, width_in(norm), *(2,) * max(0, _positions(norm)))
        values = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(running)
        shape = [1] * values.dim()
        shape[feature_dim(norm, values)] = -1
        before = type(twin).forward(twin, values)
        running = twin.get_buffer("running_mean")
        shift = torch.linspace(-1.0, 1.0, len(running)).to(running)
        running += shift
        return torch.allclose(type(twin).forward(twin, values + shift.view(shape)), before, 1e-3, 1e-3)
    except Exception:  # code of any kind
        return False


def _positions(norm: nn.Module) -> int:
    return next((n for n, cls in ((1, nn.BatchNorm1d), (3, nn.BatchNorm3d)) if isinstance(norm, cls)), 2)
