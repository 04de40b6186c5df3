"""Families: layers that feed exactly the same columns, and the unit groups that they form.

A family is usually one layer; the two layers of a gated product are one family. Before this: `classify.py` has ruled
out what a single layer's evidence rules out; after it: `trace.py` reports the groups.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from neoteny.layers.groups import Port, UnitGroup, describe_port
from neoteny.layers.kinds import couples, width_in, width_out
from neoteny.wiring.evidence import Evidence
from neoteny.wiring.read_point import find_read_point
from neoteny.wiring.verify import inert, verify

Owners = dict[str, Tensor]  # sink -> the unit behind each of its features, -1 none, -2 several
_MOST_SPLITS = 8  # more kinds of units than this: not a few layers in one


class Families:
    """Forms unit groups from the layers that are still open; the reasons for all others join the evidence."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.probe = evidence.probe

    def groups(self) -> list[UnitGroup]:
        """The groups, in the order of the forward pass."""
        found = [group for family in self._families() for group in self._family_groups(family)]
        places = {name: place for place, name in enumerate(self.evidence.bases)}
        return sorted(found, key=lambda group: places[group.producers[0].module])

    def _families(self) -> list[list[str]]:
        """Sets of layers that feed exactly the same columns; a layer that shares only some of them is left out."""
        open_ = self.evidence.open_layers
        shared: dict[str, str] = {}
        twins: dict[str, list[str]] = {name: [name] for name in open_}
        for name in open_:
            mine = self.evidence.consumers(self.evidence.bases[name])
            for source, seen in self.evidence.foreign.items():
                if columns := _overlap(mine, seen.hits):
                    shared.setdefault(name, f"its columns of {', '.join(columns)} also carry {source}")
            partners: list[str] = []
            for other, seen in self.evidence.bases.items():
                theirs = self.evidence.consumers(seen)
                if other == name or not _overlap(mine, theirs):
                    continue
                if _equal(mine, theirs) and other in open_:
                    twins[name].append(other)
                else:
                    partners.append(other)
            if partners:
                shared[name] = f"residual stream: shares columns of {', '.join(mine)} with {', '.join(partners)}"
        for name in open_:
            lost = [other for other in twins[name] if other in shared]
            if name not in shared and lost:
                self.evidence.left_out[name] = (
                    f"shares its columns with {lost[0]}, which is left out: {shared[lost[0]]}"
                )
        self.evidence.left_out.update(shared)
        kept = [name for name in open_ if name not in self.evidence.left_out]
        families = [sorted(twins[name], key=open_.index) for name in kept]
        return [family for name, family in zip(kept, families, strict=True) if family[0] == name]

    def _family_groups(self, family: list[str]) -> list[UnitGroup]:
        decoded: dict[str, Owners] = {}
        for name in family:
            owners = self.probe.decode(name, self.evidence.bases[name])
            if owners is None:
                self.evidence.refuse(
                    name, "the model ran differently when some of its units were marked", self.evidence.bases[name].hits
                )
                return []
            decoded[name] = owners
        consumers = {
            name: {sink: owner for sink, owner in owners.items() if self.probe.watched[sink][1] == "boundary"}
            for name, owners in decoded.items()
        }
        first = consumers[family[0]]
        mixed = any((owner == -2).any() for owners in decoded.values() for owner in owners.values())
        widths = {width_out(self.probe.module(name)) for name in family}
        if len(family) > 1 and (mixed or len(widths) > 1 or not all(_equal(first, consumers[n]) for n in family)):
            for name in family:
                others = ", ".join(other for other in family if other != name)
                self.evidence.left_out[name] = f"its units and those of {others} mix in {', '.join(first)}"
            return []
        if mixed:
            self._sort_mixed(family[0], first)
            return []
        return self._split(family, decoded, widths.pop())

    def _sort_mixed(self, name: str, consumers: Owners) -> None:
        """Rows that meet in pairs (a gated product of two halves) can be declared; rows that all mix cannot."""
        units = width_out(self.probe.module(name))
        sinks = ", ".join(consumers)
        reached = sum(int((owner != -1).sum()) for owner in consumers.values())
        spread = []
        for unit in {0, units // 2, units - 1}:
            alone = self.probe.taint(name, torch.arange(units) == unit)
            spread.append(sum(int(hit.sum()) for hit in self.evidence.consumers(alone).values()))
        if sum(spread) / len(spread) * units / max(reached, 1) > 4:
            self.evidence.left_out[name] = (
                f"its units mix before they reach {sinks} (attention, softmax, or a matrix product)"
            )
            return
        self.evidence.refuse(name, f"several of its rows meet in one feature of {sinks} (a gated product, a pairing)")
        halves = [Port(name, torch.arange(units // 2)[:, None]), Port(name, torch.arange(units // 2, units)[:, None])]
        try:
            ports = [Port(sink).resolve(units // 2, width_in(self.probe.module(sink))) for sink in consumers]
        except (ValueError, ZeroDivisionError):
            return
        if units % 2 == 0 and verify(self.probe.sandbox, UnitGroup(halves, ports)) is None:
            declared = UnitGroup([name, Port(name, offset=units // 2)], list(consumers))
            self.evidence.guesses[name] = declared.declaration()

    def _split(self, family: list[str], decoded: dict[str, Owners], units: int) -> list[UnitGroup]:
        """One group, or several where the rows of one layer go to different places (a chunk)."""
        sinks: Owners = {}
        for sink, owner in (item for owners in decoded.values() for item in owners.items()):
            known = sinks.get(sink, torch.full_like(owner, -1))
            if ((known >= 0) & (owner >= 0) & (known != owner)).any():  # a norm that sees the twins' units crossed
                self.evidence.refuse(family[0], f"its units and those of {', '.join(family[1:])} are crossed in {sink}")
                return []
            sinks[sink] = torch.where(known >= 0, known, owner)
        counts = torch.stack(
            [torch.bincount(owner[owner >= 0], minlength=units) for owner in sinks.values()]
        )  # (sinks, U)
        kinds, kind_of_unit = torch.unique(counts, dim=1, return_inverse=True)
        if kinds.shape[1] > _MOST_SPLITS:
            self.evidence.refuse(
                family[0], "its units reach different numbers of features", self.evidence.bases[family[0]].hits
            )
            return []
        groups: list[UnitGroup] = []
        for kind in sorted(range(kinds.shape[1]), key=lambda k: int((kind_of_unit == k).nonzero()[0])):
            rows = (kind_of_unit == kind).nonzero().flatten()
            ports = {
                sink: Port(sink, _features_of(owner, rows).view(len(rows), count))
                for (sink, owner), count in zip(sinks.items(), kinds[:, kind].tolist(), strict=True)
                if count
            }
            consumers = [port for sink, port in ports.items() if self.probe.watched[sink][1] == "boundary"]
            if not consumers:
                self._settle_idle(family, rows)
                continue
            norms = [port for sink, port in ports.items() if self.probe.watched[sink][1] == "norm"]
            group = UnitGroup([Port(name, rows[:, None]) for name in family], consumers, norms)
            failure = verify(self.probe.sandbox, group)
            if failure is not None:
                self.evidence.refuse(family[0], failure)
                self.evidence.guesses[family[0]] = group.declaration()
                return []
            notes = [*group_notes(self.probe.sandbox.model, group), *self._parameter_notes(group)]
            groups.append(UnitGroup(group.producers, consumers, norms, find_read_point(self.probe, group), notes))
        return groups

    def _settle_idle(self, family: list[str], rows: Tensor) -> None:
        for name in family:
            label = describe_port(Port(name, rows[:, None]))
            if inert(self.probe.sandbox, name, rows):
                self.evidence.left_out[label] = "nothing consumes these rows"
            else:
                self.evidence.refuse(name, f"the output depends on {label}, but no consumer of these rows was found")

    def _parameter_notes(self, group: UnitGroup) -> list[str]:
        ports = (*group.consumers, *group.norms)
        mine = {port.module: _mask(port, width_in(self.probe.module(port.module))) for port in ports}
        return [
            f"also shaped by parameter {name}, left as it is"
            for name, seen in self.evidence.noted.items()
            if _overlap(mine, seen.hits)
        ]


def group_notes(model: nn.Module, group: UnitGroup) -> list[str]:
    """Remarks about a group for its user."""
    notes = [
        f"consumer {port.module} has no bias: its mean cannot be compensated"
        for port in group.consumers
        if model.get_submodule(port.module).bias is None
    ]
    for port in group.norms:
        module = model.get_submodule(port.module)
        if couples(module):
            notes.append(
                f"{type(module).__name__} {port.module} accepted: a reset unit still moves its neighbours there"
            )
    return notes


def _mask(port: Port, width: int) -> Tensor:
    mask = torch.zeros(width, dtype=torch.bool)
    mask[cast(Tensor, port.features).flatten()] = True
    return mask


def _features_of(owner: Tensor, rows: Tensor) -> Tensor:
    """The features that belong to some units, unit by unit, ascending within a unit."""
    ordered = torch.argsort(owner, stable=True)
    return ordered[torch.isin(owner[ordered], rows)]


def _overlap(left: dict[str, Tensor], right: dict[str, Tensor]) -> list[str]:
    return [sink for sink, features in left.items() if sink in right and bool((features & right[sink]).any())]


def _equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(features, right[sink]) for sink, features in left.items())
