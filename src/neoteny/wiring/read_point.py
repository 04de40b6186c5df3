"""The point at which a group's activations are read: its consumer's input, unless a norm lies in between.

`classify.py` and `declare.py` ask once the ports of a group are known; `attachment/hooks.py` puts its hook there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from neoteny.layers.groups import Port, UnitGroup
from neoteny.layers.kinds import by_feature, fill_features, width_out
from neoteny.wiring.probe import Probe


def read_at(group: UnitGroup) -> str:
    """The module at whose input a group's units are read."""
    return group.read or group.consumers[0].module


def by_unit(module: nn.Module, group: UnitGroup, values: Tensor) -> Tensor:
    """The input of `read_at`'s module as (units, features per unit, examples and positions)."""
    port = next(port for port in (*group.consumers, *group.norms) if port.module == read_at(group))
    return by_feature(module, values)[cast(Tensor, port.features).to(values.device)]


def find_read_point(probe: Probe, group: UnitGroup) -> str:
    """The module at whose input a group is read: a consumer, or the last norm that comes after the activation.

    After a norm a dead unit is no longer zero, so it is read before the norm. Whether an activation lies between
    the layer and a norm is found with constants: pooling and reshaping keep them, an activation does not keep all four.
    """
    names = list(dict.fromkeys(probe.order))
    behind: list[str] = []
    for port in sorted(group.norms, key=lambda p: names.index(p.module) if p.module in names else -1):
        if port.module in names and not _keeps_constants(probe, group, port):
            behind.append(port.module)
    if behind:
        return behind[-1]
    called = [port for port in group.consumers if port.module in names] or list(group.consumers)
    called.sort(key=lambda port: names.index(port.module) if port.module in names else -1)
    return next((port.module for port in called if port.repeat == 1), called[0].module)


def _keeps_constants(probe: Probe, group: UnitGroup, norm: Port) -> bool:
    for value in (8.0, -8.0, 0.25, -0.25):
        sources = {}
        for port in reversed(group.producers):  # a sum with zeros keeps the constant, a product does not
            rows = torch.zeros(width_out(probe.module(port.module)), dtype=torch.bool)
            rows[cast(Tensor, port.features).flatten()] = port is group.producers[0]
            sources[port.module] = _constant(rows, value, probe.module(port.module))
        seen = probe.replay(sources, identity_norms=True, keep_inputs=True)
        if norm.module not in seen.inputs:
            return True
        got = seen.inputs[norm.module].cpu().float()[cast(Tensor, norm.features)].flatten(1)
        if not torch.isclose(got, got.new_tensor(value), rtol=1e-2).any(1).all():
            return False
    return True


def _constant(rows: Tensor, value: float, module: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda kept: fill_features(module, torch.zeros_like(kept), rows, value)
