"""Edits: weights of unit groups changed for a moment, and restored bit for bit.

`verify.py` zeroes the outgoing weights of some units and changes everything that produces them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from neoteny.layers.groups import Port, UnitGroup
from neoteny.layers.kinds import input_first
from neoteny.layers.parametrized import weight_of, write_back
from neoteny.layers.ports import bias_of


class Edits:
    """Changes parameters and statistics of groups; on leaving the context all are as before."""

    def __init__(self, model: nn.Module, groups: Sequence[UnitGroup]) -> None:
        self.groups = groups
        ports = [port for group in groups for port in (*group.producers, *group.consumers, *group.norms)]
        self.modules = {port.module: model.get_submodule(port.module) for port in ports}
        live = [t for m in self.modules.values() for t in (*m.parameters(), *m.buffers())]
        self.saved = [(tensor, tensor.detach().clone()) for tensor in live]

    def __enter__(self) -> Edits:
        return self

    def __exit__(self, *exception: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Undo all changes."""
        for tensor, values in self.saved:
            tensor.data.copy_(values)

    def zero_columns(self, chosen: Sequence[Tensor]) -> None:
        """Set the consumers' columns of some units to zero."""
        for group, units in zip(self.groups, chosen, strict=True):
            for port in group.consumers:
                _zero_columns(self.modules[port.module], port.weight, features_of(port, units))

    def change(self, chosen: Sequence[Tensor], signs: Tensor) -> None:
        """Change everything that produces some units, up or down for each group."""
        generator = torch.Generator().manual_seed(1)
        for group, units, sign in zip(self.groups, chosen, signs.tolist(), strict=True):
            for port in group.producers:
                _change_rows(self.modules[port.module], port.weight, features_of(port, units), sign, generator)
            for port in group.norms:
                _shift(self.modules[port.module], features_of(port, units), sign)


def features_of(port: Port, units: Tensor) -> Tensor:
    """The features of some units in a resolved port."""
    return cast(Tensor, port.features)[units].flatten()


def _zero_columns(module: nn.Module, key: str, columns: Tensor) -> None:
    weight = weight_of(module, key)
    groups: int = getattr(module, "groups", 1)
    if input_first(module):
        chosen = torch.zeros(len(weight), dtype=torch.bool)
        chosen[columns] = True
        chosen = chosen.view(-1, *[1] * (weight.dim() - 1)).to(weight.device)
        weight.masked_fill_(chosen, 0)
        write_back(module, weight, chosen)
        return
    # a column of a grouped convolution feeds only its own group's rows
    blocks = weight.view(groups, weight.shape[0] // groups, *weight.shape[1:])
    chosen = torch.zeros(groups, weight.shape[1], dtype=torch.bool)
    chosen[columns // weight.shape[1], columns % weight.shape[1]] = True
    chosen = chosen.view(groups, 1, -1, *[1] * (weight.dim() - 2)).to(weight.device)
    blocks.masked_fill_(chosen, 0)
    write_back(module, weight, chosen.expand(-1, blocks.shape[1], *chosen.shape[2:]).flatten(0, 1))


def _change_rows(module: nn.Module, key: str, rows: Tensor, sign: float, generator: torch.Generator) -> None:
    weight, bias = weight_of(module, key), bias_of(module, key)
    rows = rows.to(weight.device)
    changed = torch.zeros(weight.shape, dtype=torch.bool, device=weight.device)
    if input_first(module):  # as (groups, out / groups, in / groups, *kernel)
        groups: int = getattr(module, "groups", 1)
        by_group, mask = (each.unflatten(0, (groups, -1)).transpose(1, 2) for each in (weight, changed))
        blocks = [(by_group[n], mask[n], rows[rows // mask.shape[1] == n] % mask.shape[1]) for n in range(groups)]
    else:
        blocks = [(weight, changed, rows)]
    for block, mask, own in blocks:
        # noise as an outer product: one number per weight would take longer than a pass
        noise = torch.randn((len(own), *[1] * (block.dim() - 1)), generator=generator).to(block)
        noise = noise * torch.randn((1, *block.shape[1:]), generator=generator).to(block)
        block[own] = noise.add_(block[own], alpha=sign * 2)
        mask[own] = True
    write_back(module, weight, changed)
    if bias is not None:
        getattr(module, bias).data[rows] = sign * 10


def _shift(norm: nn.Module, features: Tensor, sign: float) -> None:
    for name, shift in (("weight", sign * 3), ("bias", sign * 3), ("running_mean", sign * 3), ("running_var", 3.0)):
        values = getattr(norm, name, None)
        if values is not None:
            moved = values.data.flatten()
            moved[features.to(moved.device)] += shift
            values.data.copy_(moved.view_as(values))
