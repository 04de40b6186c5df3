"""Families: layers that feed exactly the same columns, and the unit groups that they form.

A family is usually one layer; the two layers of a gated product are one family. Before this: `classify.py` has ruled
out what a single layer's evidence rules out; after it: `trace.py` reports the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from neoteny.layers.groups import Port, UnitGroup, describe_port
from neoteny.layers.kinds import couples, width_in, width_out
from neoteny.layers.parametrized import NormedWeight, computed_weight
from neoteny.layers.ports import bias_of
from neoteny.layers.recurrent import RECURRENT, Recurrent
from neoteny.wiring.decode import Owners, decode, overlap, spread
from neoteny.wiring.evidence import INPUT, Evidence
from neoteny.wiring.gates import find_gates
from neoteny.wiring.heads import find_heads, heads_of, why_no_heads
from neoteny.wiring.masks import mixed_with_input
from neoteny.wiring.norm_behind import with_norms_behind
from neoteny.wiring.read_point import find_read_points
from neoteny.wiring.recurrent import inner_groups, is_hidden, spell_out, state_notes
from neoteny.wiring.verify import inert

_OF_INPUT = ("weight", "weight_ih", "weight_ih_l0")  # weights whose columns are what their module is given
_MOST_SPLITS = 8  # more kinds of units than this: not a few layers in one
_MOST_ROWS = 4  # rows that meet in one feature, on average; beyond it they all mix


Check = Callable[[list[UnitGroup]], list[str | None]]  # why each group is wrong; None for one that passes


class Families:
    """Forms unit groups from the layers that are still open; the reasons for all others join the evidence.

    Args:
        evidence: what every layer reaches.
        check: the verification that groups must pass.
        heads: whether attention heads are units, too.
    """

    def __init__(self, evidence: Evidence, check: Check, *, heads: bool = False) -> None:
        self.evidence = evidence
        self.check = check
        self.heads = heads
        self.mixing: list[list[str]] = []  # families of several layers whose units mix
        self.probe = evidence.probe

    def groups(self) -> list[UnitGroup]:
        """The groups, in the order of the forward pass."""
        self.probe.sandbox.progress.stage = "telling units apart"
        families = self._families()
        decoded = decode(self.probe, {name: self.evidence.bases[name] for family in families for name in family})
        mixed: dict[str, Owners] = {}
        found = [group for family in families for group in self._family_groups(family, decoded, mixed)]
        heads = self._heads(mixed) if self.heads else []
        found = self._apart_from_input([*found, *self._sort_mixed(mixed)])
        kept = [*self._verified([*spell_out(self.probe.sandbox.model, found), *self._inner_groups()]), *heads]
        kept = with_norms_behind(self.probe, kept)
        places = {name: place for place, name in enumerate(dict.fromkeys(self.probe.order))}
        kept.sort(key=lambda group: (places[group.producers[0].module], group.producers[0].weight))
        found_reads = iter(find_read_points(self.probe, [group for group in kept if group.read is None]))
        reads = [next(found_reads) if group.read is None else group.read for group in kept]
        return [
            UnitGroup(
                group.producers,
                group.consumers,
                group.norms,
                read,
                [
                    *group.notes,
                    *group_notes(self.probe.sandbox.model, group),
                    *state_notes(self.probe.recording.states, group),
                    *self._parameter_notes(group),
                    *self._call_notes(group),
                ],
            )
            for group, read in zip(kept, reads, strict=True)
        ]

    def _inner_groups(self) -> list[UnitGroup]:
        """The groups of recurrent modules' layers below the last one."""
        groups: list[UnitGroup] = []
        for name, seen in self.evidence.inner.items():
            if seen.places() or seen.error is not None:
                self.evidence.left_out[f"{name} (lower layers)"] = "their final states are used outside the module"
            else:
                groups += inner_groups(name, cast(Recurrent, self.probe.module(name)))
        return groups

    def _heads(self, mixed: dict[str, Owners]) -> list[UnitGroup]:
        """The verified groups of attention heads; layers in one are no longer left out, or in `mixed`."""
        evidence, model = self.evidence, self.probe.sandbox.model
        groups = find_heads(self.probe, [*self.mixing, *([name] for name in mixed)], evidence.bases)
        named = [port.module for group in groups for port in group.producers]
        reasons = {name: evidence.left_out.pop(name) for name in named if name in evidence.left_out}
        groups = self._apart_from_input(groups)
        for name in self.probe.named("opaque"):
            module = self.probe.module(name)
            if isinstance(module, nn.MultiheadAttention) and name not in evidence.leave_out:
                reason = why_no_heads(model, module, evidence.frozen)
                evidence.left_out[name] = f"{evidence.class_name(name)}: {reason}"
                groups += [] if reason else [heads_of(name, module)]
        kept = [group for group, failure in zip(groups, self.check(groups), strict=True) if failure is None]
        inside = {port.module for group in kept for port in group.producers}
        for name in inside:
            evidence.left_out.pop(name, None)
            mixed.pop(name, None)
        for name in reasons.keys() - inside:
            evidence.left_out.setdefault(name, reasons[name])
        return kept

    def _verified(self, groups: list[UnitGroup]) -> list[UnitGroup]:
        """The groups that pass the verification, of families all of whose groups pass it."""
        failed: set[str] = set()
        for group, failure in zip(groups, self.check(groups), strict=True):
            name = group.producers[0].module
            if failure is not None and name not in failed:
                failed.add(name)
                self.evidence.refuse(name, failure)
                if not is_hidden(self.probe.sandbox.model, group):
                    self.evidence.guesses[name] = group.declaration()
        return [group for group in groups if group.producers[0].module not in failed]

    def _families(self) -> list[list[str]]:
        """Sets of layers that feed exactly the same columns; a layer that shares only some of them is left out."""
        open_ = self.evidence.open_layers
        shared: dict[str, str] = {}
        twins: dict[str, list[str]] = {name: [name] for name in open_}
        partly: dict[str, list[str]] = {}
        for name in open_:
            base = self.evidence.bases[name]
            mine, claimed = self.evidence.consumers(base), self.evidence.claimed(base)
            for source, seen in self.evidence.foreign.items():
                # a mask may reach the columns: asked once the group is known
                closed = claimed if source != INPUT else {sink: claimed[sink] for sink in claimed if sink not in mine}
                if sinks := overlap(closed, seen.hits):
                    shared.setdefault(name, f"its columns of {', '.join(sinks)} also carry {source}")
            partners: list[str] = []
            elsewhere: dict[str, list[str]] = {}
            for other, seen in self.evidence.bases.items():
                if other == name or not (sinks := overlap(claimed, seen.hits)):
                    continue
                theirs = self.evidence.consumers(seen)
                columns = overlap(mine, theirs) or sinks
                if apart := [sink for sink in columns if base.uses[sink].isdisjoint(seen.uses.get(sink, {0}))]:
                    elsewhere[other] = apart
                elif _equal(mine, theirs) and other in open_:
                    twins[name].append(other)
                else:
                    partners.append(other)
            if partners:
                if name not in shared and not elsewhere:
                    partly[name] = partners
                shared[name] = f"residual stream: shares columns of {', '.join(mine)} with {', '.join(partners)}"
            elif elsewhere:
                sinks = dict.fromkeys(sink for apart in elsewhere.values() for sink in apart)
                shared[name] = (
                    f"{', '.join(sinks)} is called several times, and reads {', '.join(elsewhere)} in another call"
                )
        for gate, scaled in find_gates(
            self.probe, partly, lambda n: self.evidence.consumers(self.evidence.bases[n])
        ).items():
            if twins[gate] == [gate] and twins[scaled] == [scaled]:
                twins[gate] = twins[scaled] = [scaled, gate]
                del shared[gate], shared[scaled]
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

    def _family_groups(
        self, family: list[str], every: dict[str, Owners | None], mixed: dict[str, Owners]
    ) -> list[UnitGroup]:
        """The groups of a family, to be verified; a layer in which units meet is noted in `mixed` instead."""
        decoded: dict[str, Owners] = {}
        for name in family:
            owners = every[name]
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
        meet = any((owner == -2).any() for owners in decoded.values() for owner in owners.values())
        widths = {width_out(self.probe.module(name)) for name in family}
        if len(family) > 1 and (meet or len(widths) > 1 or not all(_within(consumers[n], first) for n in family)):
            self.mixing.append(family)
            for name in family:
                others = ", ".join(other for other in family if other != name)
                self.evidence.left_out[name] = f"its units and those of {others} mix in {', '.join(first)}"
            return []
        if meet:
            mixed[family[0]] = first
            return []
        return self._split(family, decoded, torch.arange(widths.pop())[:, None])

    def _apart_from_input(self, groups: list[UnitGroup]) -> list[UnitGroup]:
        """The groups whose columns carry nothing of the input, or only masks and weights; others are left out."""
        foreign = self.evidence.foreign[INPUT].hits
        fed = [group for group in groups if overlap(self._columns(group.consumers), foreign)]
        mixed = [group for group, wrong in zip(fed, mixed_with_input(self.probe, fed), strict=True) if wrong]
        for group in mixed:
            columns = ", ".join(overlap(self._columns(group.consumers), foreign))
            for port in group.producers:
                self.evidence.left_out[port.module] = f"its columns of {columns} also carry {INPUT}"
        return [g for g in groups if not any(port.module in self.evidence.left_out for port in g.producers)]

    def _sort_mixed(self, mixed: dict[str, Owners]) -> list[UnitGroup]:
        """The groups of layers whose rows meet in twos or threes (a gated product); rows that all mix have none."""
        spreads = spread(self.probe, {name: self.evidence.bases[name] for name in mixed})
        meeting: dict[str, int] = {}
        for name, consumers in mixed.items():
            reached = sum(int((owner != -1).sum()) for owner in consumers.values())
            rows = spreads[name] * width_out(self.probe.module(name)) / max(reached, 1)
            if rows > _MOST_ROWS:
                self.evidence.left_out[name] = (
                    f"its units mix before they reach {', '.join(consumers)} (attention, softmax, or a matrix product)"
                )
            else:
                meeting[name] = max(2, round(rows))
        groups: list[UnitGroup] = []
        for arrange in (_halves, _neighbours):
            modules = {name: self.probe.module(name) for name in meeting}
            tables = {
                name: arrange(width_out(module), meeting[name])
                for name, module in modules.items()
                if width_out(module) % meeting[name] == 0 and not isinstance(module, RECURRENT)
            }
            decoded = decode(self.probe, {name: self.evidence.bases[name] for name in tables}, tables)
            for name, owners in decoded.items():
                if owners is not None and not any(bool((owner == -2).any()) for owner in owners.values()):
                    groups += self._split([name], {name: owners}, tables[name])
                    del meeting[name]
        for name in meeting:
            sinks = ", ".join(mixed[name])
            self.evidence.refuse(name, f"several of its rows meet in one feature of {sinks}, in no order that is known")
        return groups

    def _split(self, family: list[str], decoded: dict[str, Owners], table: Tensor) -> list[UnitGroup]:
        """One group, or several where the rows of one layer go to different places (a chunk); not verified yet.

        Args:
            family, decoded: the layers, and the units behind the features that each reaches.
            table: (units, rows of each) which rows of each layer make a unit.
        """
        units = len(table)
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
                self._settle_idle(family, table[rows].flatten())
                continue
            norms = [port for sink, port in ports.items() if self.probe.watched[sink][1] == "norm"]
            own = table[rows].split(1, dim=1)
            groups.append(UnitGroup([Port(name, each) for name in family for each in own], consumers, norms))
        return groups

    def _settle_idle(self, family: list[str], rows: Tensor) -> None:
        for name in family:
            label = describe_port(Port(name, rows[:, None]))
            if inert(self.probe.recording, name, rows):
                self.evidence.left_out[label] = "nothing consumes these rows"
            else:
                self.evidence.refuse(name, f"the output depends on {label}, but no consumer of these rows was found")

    def _parameter_notes(self, group: UnitGroup) -> list[str]:
        mine = self._columns([port for port in (*group.consumers, *group.norms) if self._reads_input(port)])
        return [
            f"also shaped by parameter {name}, left as it is"
            for name, seen in self.evidence.noted.items()
            if overlap(mine, seen.hits)
        ]

    def _reads_input(self, port: Port) -> bool:
        """Whether a port's columns are what its module is given."""
        return port.weight in _OF_INPUT and port.module in self.probe.watched

    def _call_notes(self, group: UnitGroup) -> list[str]:
        """What is read of these units in consumers that are called several times."""
        notes: list[str] = []
        for port in filter(self._reads_input, group.consumers):
            calls = self.probe.calls[port.module]
            seen = (self.evidence.bases[producer.module].uses.get(port.module, ()) for producer in group.producers)
            other = calls - len(set().union(*seen))
            if calls > 1:
                without = f", {other} of them without these units (an initial state)" if other else ""
                notes.append(f"{port.module} is called {calls} times by the example{without}: all calls count")
        return notes

    def _columns(self, ports: Sequence[Port]) -> dict[str, Tensor]:
        return {port.module: _mask(port, width_in(self.probe.module(port.module))) for port in ports}


def group_notes(model: nn.Module, group: UnitGroup) -> list[str]:
    """Remarks about a group for its user."""
    notes = [
        f"consumer {port.key} has no bias: its mean cannot be compensated"
        for port in group.consumers
        if bias_of(model.get_submodule(port.module), port.weight) is None and port.norm_behind is None
    ]
    notes += [
        f"consumer {port.module} has weight norm: its other columns are kept up to rounding"
        for port in group.consumers
        if isinstance(computed_weight(model.get_submodule(port.module)), NormedWeight)
    ]
    for port in group.norms:
        module = model.get_submodule(port.module)
        if couples(module):
            notes.append(
                f"{type(module).__name__} {port.module} couples units: a reset moves the neighbours there by about "
                "1 / width; nothing else of them changes"
            )
    return notes


def _halves(width: int, rows: int) -> Tensor:
    """(units, rows) Unit i is row i of each half (or third) of a layer, as in `chunk` and `F.glu`."""
    return torch.arange(width).view(rows, -1).T


def _neighbours(width: int, rows: int) -> Tensor:
    """(units, rows) Each unit is some neighbouring rows."""
    return torch.arange(width).view(-1, rows)


def _mask(port: Port, width: int) -> Tensor:
    mask = torch.zeros(width, dtype=torch.bool)
    mask[cast(Tensor, port.features).flatten()] = True
    return mask


def _features_of(owner: Tensor, rows: Tensor) -> Tensor:
    """The features that belong to some units, unit by unit, ascending within a unit."""
    ordered = torch.argsort(owner, stable=True)
    return ordered[torch.isin(owner[ordered], rows)]


def _within(part: dict[str, Tensor], whole: dict[str, Tensor]) -> bool:
    return part.keys() <= whole.keys() and all(torch.equal(owner, whole[sink]) for sink, owner in part.items())


def _equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(features, right[sink]) for sink, features in left.items())
