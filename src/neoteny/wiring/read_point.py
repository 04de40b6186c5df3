"""The point at which a group's activations are read: its consumer's input, unless a norm lies in between.

`families.py` and `declare.py` ask once the ports of the groups are known; `attachment/hooks.py` puts its hook there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from neoteny.layers.groups import Port, UnitGroup
from neoteny.layers.kinds import by_feature, fill_features, width_in, width_out
from neoteny.wiring.decode import disjoint
from neoteny.wiring.probe import Probe
from neoteny.wiring.sandbox import map_tensors

_CONSTANTS = (8.0, -8.0, 0.25, -0.25)


def read_at(group: UnitGroup) -> str:
    """The module at whose input a group's units are read."""
    return group.read or group.consumers[0].module


def by_unit(module: nn.Module, group: UnitGroup, values: Tensor) -> Tensor:
    """The input of `read_at`'s module as (units, features per unit, examples and positions)."""
    port = next(port for port in (*group.consumers, *group.norms) if port.module == read_at(group))
    return by_feature(module, values)[cast(Tensor, port.features).to(values.device)]


def find_read_points(probe: Probe, groups: Sequence[UnitGroup]) -> list[str]:
    """The modules at whose input the groups are read: a consumer, or the last norm that comes after the activation.

    After a norm a dead unit is no longer zero, so it is read before the norm. Whether an activation lies between
    the layer and a norm is found with constants: pooling and reshaping keep them, an activation does not keep all four.
    """
    places = {name: place for place, name in enumerate(dict.fromkeys(probe.order))}
    behind = _norms_behind_activations(probe, groups)
    points = []
    for group, norms in zip(groups, behind, strict=True):
        called = [port for port in group.consumers if port.module in places] or list(group.consumers)
        called.sort(key=lambda port: places.get(port.module, -1))
        consumer = next((port.module for port in called if port.repeat == 1), called[0].module)
        points.append(max(norms, key=lambda name: places[name], default=consumer))
    return points


def _norms_behind_activations(probe: Probe, groups: Sequence[UnitGroup]) -> list[set[str]]:
    """For each group, its norms that do not receive the constants which its producers return."""
    behind: list[set[str]] = [set() for _ in groups]
    hits = {
        str(number): {
            # a port that several groups share keeps them apart
            **{port.module: _mask(port, width_in(probe.module(port.module))) for port in group.norms},
            **{f"{port.module}/rows": _mask(port, width_out(probe.module(port.module))) for port in group.producers},
        }
        for number, group in enumerate(groups)
        if any(port.module in probe.calls for port in group.norms)
    }
    for together in disjoint(hits):
        some = [int(number) for number in together]
        for value in _CONSTANTS:
            seen = probe.replay(
                _constants(probe, [groups[n] for n in some], value), identity_norms=True, keep_inputs=True
            )
            for number in some:
                for port in groups[number].norms:
                    if port.module in seen.inputs and not _kept(probe, port, seen.inputs[port.module], value):
                        behind[number].add(port.module)
    return behind


def _kept(probe: Probe, port: Port, calls: list[Tensor], value: float) -> bool:
    values = torch.cat([by_feature(probe.module(port.module), each) for each in calls], 1)
    got = values.cpu().float()[cast(Tensor, port.features)].flatten(1)
    return bool(torch.isclose(got, got.new_tensor(value), rtol=1e-2).any(1).all())


def _constants(probe: Probe, groups: Sequence[UnitGroup], value: float) -> dict[str, Callable[[Tensor], Tensor]]:
    """The groups' first producers return a constant, their others zeros: a sum keeps the constant, a product not."""
    rows: dict[str, Tensor] = {}
    for group in groups:
        for port in reversed(group.producers):
            chosen = _mask(port, width_out(probe.module(port.module)))
            first = port is group.producers[0]
            rows[port.module] = rows.get(port.module, torch.zeros_like(chosen)) & ~chosen | (chosen & first)

    def returning(name: str) -> Callable[[Tensor], Tensor]:
        return lambda kept: fill_features(probe.module(name), map_tensors(torch.zeros_like, kept), rows[name], value)

    return {name: returning(name) for name in rows}


def _mask(port: Port, width: int) -> Tensor:
    mask = torch.zeros(width, dtype=torch.bool)
    mask[cast(Tensor, port.features).flatten()] = True
    return mask
