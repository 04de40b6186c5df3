"""Attention heads as units: which rows of queries, keys and values meet in which columns of the output projection.

A head's values reach the columns of the output projection one by one, its queries and keys all of them, through the
softmax. So rows that were marked alone tell how many columns a head has, and passes with the heads' binary codes
whether a layout of rows is right. With fewer heads of keys and values than of queries, a unit is one head of keys and
values with all queries that use it.

`families.py` comes here with layers whose units mix, if heads were asked for. Every group is verified like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from neoteny.layers.groups import Port, UnitGroup, join
from neoteny.layers.kinds import width_out
from neoteny.wiring.probe import Pass, Probe

NOTE = "its units are attention heads"


@dataclass(frozen=True)
class Mixing:
    """Layers whose rows mix before they reach one consumer.

    Attributes:
        layers: their names.
        widths: their numbers of rows.
        sink: the consumer.
        columns: the columns that they reach, (n,).
        norms: norms of queries and keys, whose parameters all heads share.
    """

    layers: tuple[str, ...]
    widths: tuple[int, ...]
    sink: str
    columns: Tensor
    norms: tuple[str, ...]


def find_heads(probe: Probe, families: Sequence[Sequence[str]], bases: Mapping[str, Pass]) -> list[UnitGroup]:
    """The groups of heads of some families of layers, not verified yet; families without heads give none."""
    mixing = [each for family in families if (each := _mixing(probe, family, bases)) is not None]
    sizes = _head_columns(probe, mixing)
    left = [each for each in mixing if 1 < sizes[each.layers] < len(each.columns)]
    groups: list[UnitGroup] = []
    for number in range(2):
        layouts = {each.layers: _layouts(each, sizes[each.layers]) for each in left}
        tried = [each for each in left if number < len(layouts[each.layers])]
        rows = {each.layers: layouts[each.layers][number] for each in tried}
        found = _decode(probe, tried, rows, sizes)
        groups += found.values()
        left = [each for each in left if each.layers not in found]
    return groups


def heads_of(name: str, module: nn.MultiheadAttention) -> UnitGroup:
    """The heads of torch's attention layer."""
    heads, width = module.num_heads, module.head_dim
    columns = torch.arange(heads * width).view(heads, width)
    rows = torch.cat([columns + part * heads * width for part in range(3)], 1)
    output = join(name, "out_proj")
    return UnitGroup(Port(name, rows, weight="in_proj_weight"), Port(output, columns), read=output, notes=[NOTE])


def why_no_heads(model: nn.Module, module: nn.MultiheadAttention, frozen: bool) -> str:
    """Why the heads of torch's attention layer cannot be units; empty if they can."""
    if module.num_heads < 2:
        return "it has one head"
    if module.in_proj_weight is None:
        return "its keys or values have another width than its queries (kdim, vdim)"
    if module.bias_k is not None:
        return "it has biases of keys and values of their own (add_bias_kv)"
    own = {id(parameter) for parameter in module.parameters()}
    if frozen and not all(parameter.requires_grad for parameter in module.parameters()):
        return "its parameters are frozen (requires_grad=False)"
    named = [id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False)]
    plain = {"in_proj_weight"} <= set(module._parameters) and "weight" in module.out_proj._parameters
    if not plain or any(named.count(each) > 1 for each in own):
        return "its weights are shared, or computed from other parameters"
    return ""


def _mixing(probe: Probe, family: Sequence[str], bases: Mapping[str, Pass]) -> Mixing | None:
    hits = {sink: hit for name in family for sink, hit in bases[name].hits.items()}
    norms = tuple(sink for sink in hits if probe.watched[sink][1] == "norm")
    sinks = [sink for sink in hits if sink not in norms]
    if len(sinks) != 1:
        return None
    widths = tuple(width_out(probe.module(name)) for name in family)
    return Mixing(tuple(family), widths, sinks[0], hits[sinks[0]].nonzero().flatten(), norms)


def _head_columns(probe: Probe, mixing: Sequence[Mixing]) -> dict[tuple[str, ...], int]:
    """For each family the columns of one head: the most that a single row reaches."""
    # The first rows are those of queries or keys; in a layer that holds all three, keys begin where queries end.
    rows = {
        each.layers: [
            (layer, row)
            for layer, width in zip(each.layers, each.widths, strict=True)
            for row in {0, min(len(each.columns), width - 1)}
        ]
        for each in mixing
    }
    sizes = {each.layers: 0 for each in mixing}
    for number in range(max(map(len, rows.values()), default=0)):
        chosen = dict(rows[each.layers][number] for each in mixing if number < len(rows[each.layers]))
        seen = probe.taint_units(
            {layer: torch.arange(width_out(probe.module(layer))) == row for layer, row in chosen.items()}
        )
        for each in mixing:
            if each.sink in seen.hits and not chosen.keys().isdisjoint(each.layers):
                reached = int(seen.hits[each.sink][each.columns].sum())
                sizes[each.layers] = max(sizes[each.layers], reached)
    return sizes


def _layouts(mixing: Mixing, size: int) -> list[list[Tensor]]:
    """How rows may belong to heads: for each layout the head of each row, layer by layer."""
    heads, rest = divmod(len(mixing.columns), size)
    if rest or any(width % heads for width in mixing.widths):
        return []
    blocks = [_blocks(width, heads) for width in mixing.widths]
    queries, both = len(mixing.columns), sum(mixing.widths) - len(mixing.columns)
    if len(mixing.layers) > 1 or both <= 0 or both % (2 * heads):
        return [blocks]
    # all queries, then all keys, then all values; else these three of each head in turn
    return [[torch.cat([_blocks(part, heads) for part in (queries, both // 2, both // 2)])], blocks]


def _blocks(width: int, heads: int) -> Tensor:
    return torch.arange(width) // (width // heads)


def _decode(
    probe: Probe,
    mixing: Sequence[Mixing],
    heads: Mapping[tuple[str, ...], list[Tensor]],
    sizes: Mapping[tuple[str, ...], int],
) -> dict[tuple[str, ...], UnitGroup]:
    """The groups of the families for which a layout is right: each column is reached by the rows of one head."""
    if not mixing:
        return {}
    counts = {each.layers: len(each.columns) // sizes[each.layers] for each in mixing}
    codes = {each.layers: torch.zeros(len(each.columns), dtype=torch.int64) for each in mixing}
    for bit in range(max((count - 1).bit_length() for count in counts.values())):
        ones = {
            layer: (rows >> bit) % 2 == 1
            for each in mixing
            for layer, rows in zip(each.layers, heads[each.layers], strict=True)
        }
        passes = [probe.taint_units(ones), probe.taint_units({layer: ~chosen for layer, chosen in ones.items()})]
        if any(seen.error is not None or seen.order != probe.order for seen in passes):
            return {}
        for each in mixing:
            if not (counts[each.layers] - 1) >> bit:
                continue
            nothing = torch.zeros(int(each.columns.max()) + 1, dtype=torch.bool)
            one, zero = (seen.hits.get(each.sink, nothing)[each.columns] for seen in passes)
            code = codes[each.layers]
            codes[each.layers] = torch.where((one ^ zero) & (code >= 0), code + one * (1 << bit), -1)
    found: dict[tuple[str, ...], UnitGroup] = {}
    for each in mixing:
        code, size, count = codes[each.layers], sizes[each.layers], counts[each.layers]
        if (
            torch.equal(torch.bincount(code.clamp_min(0), minlength=count), torch.full((count,), size))
            and code.min() >= 0
        ):
            columns = each.columns[torch.argsort(code, stable=True)].view(count, size)
            ports = [
                Port(layer, torch.argsort(rows, stable=True).view(count, -1))
                for layer, rows in zip(each.layers, heads[each.layers], strict=True)
            ]
            shared = [f"also shaped by {norm}, which all heads share, left as it is" for norm in each.norms]
            found[each.layers] = UnitGroup(ports, Port(each.sink, columns), notes=[NOTE, *shared])
    return found
