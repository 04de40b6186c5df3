"""Decoding: which unit of a layer is behind each feature that the layer reaches.

Layers that reach different features are decoded in the same passes. Before this: `evidence.py` knows what each layer
reaches as a whole; after it: `families.py` forms groups, which `verify.py` checks.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from neoteny.layers.kinds import width_out
from neoteny.wiring.flow import apart
from neoteny.wiring.probe import Pass, Probe

Hits = dict[str, Tensor]  # sink -> the features that are reached (bool)
Owners = dict[str, Tensor]  # sink -> the unit behind each of its features: -1 none, -2 several or not clear


def decode(
    probe: Probe, bases: Mapping[str, Pass], tables: Mapping[str, Tensor] | None = None
) -> dict[str, Owners | None]:
    """For each layer of `bases`, the unit behind each feature it reaches; None if a pass went differently.

    With `tables`, (units, rows of each) by layer, several rows make a unit; else each row is one.

    Unit i is tainted in pass b where bit b of i is one, and in that pass's complement where it is zero, so a
    feature spells the number of its unit in 2 * ceil(log2(units)) passes. A layer in which several units meet in one
    feature is not decoded further.
    """
    owners: dict[str, Owners | None] = {}
    numbers = {name: _unit_numbers(probe, name, (tables or {}).get(name)) for name in bases}
    for together in disjoint({name: seen.hits for name, seen in bases.items()}):
        hits = {name: bases[name].hits for name in together}
        decoded = _decode(probe, hits, numbers)
        if decoded is None:
            for name in together:
                alone = None if len(together) == 1 else _decode(probe, {name: hits[name]}, numbers)
                owners[name] = None if alone is None else alone[name]
        else:
            owners.update(decoded)
    return owners


def spread(probe: Probe, bases: Mapping[str, Pass]) -> dict[str, float]:
    """For each layer of `bases`, the mean number of features that its first, middle and last unit reach each."""
    counts: dict[str, dict[int, int]] = {name: {} for name in bases}
    for together in disjoint({name: seen.hits for name, seen in bases.items()}):
        widths = {name: width_out(probe.module(name)) for name in together}
        for part in (0, 1, 2):
            units = {name: (0, width // 2, width - 1)[part] for name, width in widths.items()}
            seen = probe.taint_units({name: torch.arange(widths[name]) == unit for name, unit in units.items()})
            for name, unit in units.items():
                counts[name][unit] = sum(
                    int((features & bases[name].hits[sink]).sum())
                    for sink, features in seen.hits.items()
                    if sink in bases[name].hits and probe.watched[sink][1] == "boundary"
                )
    return {name: sum(each.values()) / len(each) for name, each in counts.items()}


def disjoint(hits: Mapping[str, Hits]) -> list[list[str]]:
    """The names in few lists, such that no two of one list reach a common feature."""
    return apart(hits, lambda one, other: bool(overlap(hits[one], hits[other])))


def overlap(left: Hits, right: Hits) -> list[str]:
    """The modules of which both reach a common feature."""
    return [sink for sink, features in left.items() if sink in right and bool((features & right[sink]).any())]


def _unit_numbers(probe: Probe, name: str, table: Tensor | None) -> Tensor:
    """The number of each row's unit."""
    rows = torch.arange(width_out(probe.module(name)))
    return rows if table is None else torch.empty_like(rows).index_put_((table.T.flatten(),), rows % len(table))


def _decode(probe: Probe, hits: dict[str, Hits], numbers: Mapping[str, Tensor]) -> dict[str, Owners] | None:
    """The owners of several layers' features; None if a pass went differently or reached something new."""
    owners = {name: {sink: torch.where(f, 0, -1) for sink, f in mine.items()} for name, mine in hits.items()}
    known: Hits = {}
    for mine in hits.values():
        for sink, features in mine.items():
            known[sink] = known[sink] | features if sink in known else features
    units = {name: int(numbers[name].max()) + 1 for name in hits}
    clear = set(hits)
    for bit in range(max((count - 1).bit_length() for count in units.values())):
        ones = {name: (numbers[name] >> bit) % 2 == 1 for name in hits if name in clear and (units[name] - 1) >> bit}
        if not ones:
            break
        passes = [probe.taint_units(ones), probe.taint_units({name: ~chosen for name, chosen in ones.items()})]
        if any(p.error is not None or p.order != probe.order for p in passes):
            return None
        new = (f & ~known.get(sink, torch.zeros_like(f)) for p in passes for sink, f in p.hits.items())
        if len(hits) > 1 and any(bool(features.any()) for features in new):
            return None
        for name in ones:
            for sink, code in owners[name].items():
                one, zero = (p.hits.get(sink, torch.zeros_like(code, dtype=torch.bool)) for p in passes)
                single = (one ^ zero) & (code >= 0)
                owners[name][sink] = torch.where(single, code + one * (1 << bit), torch.where(code == -1, -1, -2))
            if any(bool((code == -2).any()) for code in owners[name].values()):
                clear.discard(name)
    return {
        name: {sink: torch.where(code >= units[name], -2, code) for sink, code in mine.items()}
        for name, mine in owners.items()
    }
