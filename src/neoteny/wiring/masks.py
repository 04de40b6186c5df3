"""Masks, indices and weights: whether the model's input only selects and weights the units of a group.

Where the columns of a group also carry the model's input, `families.py` asks here. A mask, a graph's edges or lengths
decide which values of a unit are read, and how much they count. That leaves the unit's columns its own: at zero, no
trace of the unit is left, and nothing else is lost. Two things must hold:

1. the input is not added to the units: with the units at some constant (0, far below, far above: one of them switches
   an activation off) the columns do not depend on the input;
2. it treats all units alike: with the same values in all units, a change of the input reaches the same examples and
   positions of every unit. Where each unit has an input feature of its own (a gate on the input), resetting a
   unit would cut that feature off.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from neoteny.layers.groups import UnitGroup
from neoteny.layers.kinds import by_feature, feature_dim, fill_features, width_out
from neoteny.layers.recurrent import RECURRENT
from neoteny.wiring.probe import Pass, Probe
from neoteny.wiring.sandbox import map_tensors

_CONSTANTS = (0.0, -1e4, 1e4)
_LARGEST = 1e6  # what a masked maximum returns where all is masked is not a value


def mixed_with_input(probe: Probe, groups: Sequence[UnitGroup]) -> list[bool]:
    """For each group, whether the input is mixed with its units, or cannot be shown to leave them apart."""
    if not groups:
        return []
    added = [True] * len(groups)
    for value in _CONSTANTS:
        usual, changed = _passes(probe, groups, value)
        for number, group in enumerate(groups):
            moved = [_moved(probe, group, usual, seen, finite=True) for seen in changed]
            if changed and not any(bool(each.any()) for some in moved for each in some):
                added[number] = False
    usual, changed = _passes(probe, groups, None)
    unlike = [
        any(bool((each != each[:1]).any()) for seen in changed for each in _moved(probe, group, usual, seen))
        for group in groups
    ]
    return [some or other for some, other in zip(added, unlike, strict=True)]


def _passes(probe: Probe, groups: Sequence[UnitGroup], value: float | None) -> tuple[Pass, list[Pass]]:
    """The pass with a value in the groups' units, and the same with changed inputs, where the model runs.

    Without a value, all units of a layer are given the same random numbers.
    """
    rows: dict[str, Tensor] = {}
    for group in groups:
        for port in group.producers:
            chosen = rows.setdefault(port.module, torch.zeros(width_out(probe.module(port.module)), dtype=torch.bool))
            chosen[cast(Tensor, port.features).flatten()] = True

    def fill(name: str, kept: Any) -> Any:
        module = probe.module(name)
        if value is None and not isinstance(module, RECURRENT):
            return fill_features(module, kept, rows[name], _same_in_all_units(kept, feature_dim(module, kept)))
        return fill_features(module, kept, rows[name], 3.0 if value is None else value)

    sources = {name: partial(fill, name) for name in rows}
    usual = probe.replay(sources, identity_norms=True, keep_inputs=True)
    changed = []
    for change in _CHANGES:
        example = map_tensors(change, probe.recording.example)
        seen = probe.replay(sources, identity_norms=True, keep_inputs=True, example=example)
        if seen.error is None and seen.order == probe.order:
            changed.append(seen)
    return usual, changed


def _moved(probe: Probe, group: UnitGroup, usual: Pass, seen: Pass, *, finite: bool = False) -> list[Tensor]:
    """Where the columns of each consumer's calls differ between two passes: (units, features per unit, all else)."""
    moved = []
    for port in group.consumers:
        calls = zip(usual.inputs.get(port.module, []), seen.inputs.get(port.module, []), strict=False)
        for before, now in ((before, now) for before, now in calls if before.shape == now.shape):
            other = (before != now) & ~(torch.isnan(before) & torch.isnan(now))
            if finite:
                other &= now.abs() < _LARGEST
            moved.append(by_feature(probe.module(port.module), other).cpu()[cast(Tensor, port.features)])
    return moved


def _same_in_all_units(kept: Tensor, axis: int) -> Tensor:
    shape = list(kept.shape)
    shape[axis] = 1
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)).mul_(8).add_(1).to(kept).expand_as(kept)


# --- other inputs that the model may accept: the same values in other places, or a mask's other value ----------------


def _roll(tensor: Tensor) -> Tensor:
    return tensor.roll(1, -1) if tensor.dim() else tensor.clone()


def _every_other(tensor: Tensor, first: int) -> Tensor:
    """The tensor with every second value changed."""
    chosen = (torch.arange(tensor.numel(), device=tensor.device) % 2 == first).view(tensor.shape)
    if tensor.dtype == torch.bool:
        return tensor ^ chosen
    mask = bool(((tensor == 0) | (tensor == 1)).all())
    if tensor.is_floating_point():
        return torch.where(chosen, 1 - tensor if mask else tensor + 1, tensor)
    # whole numbers may be indices: 1 may be one too many where all are 0
    return torch.where(chosen, torch.zeros_like(tensor) if mask else _roll(tensor), tensor)


_CHANGES = (torch.zeros_like, _roll, partial(_every_other, first=0), partial(_every_other, first=1))
