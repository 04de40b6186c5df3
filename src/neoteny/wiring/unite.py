"""unite: one wiring of several ways of running a model (several calls, or training mode apart from evaluation).

Each way has been traced by itself (`classify.py`). Here the groups of the same units are joined: what consumes a unit
in any of them is its consumer. A layer that is left out in one is left out; the joined groups must pass the
verification of all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from neoteny.layers.groups import Port, UnitGroup
from neoteny.wiring.evidence import Evidence
from neoteny.wiring.families import Check
from neoteny.wiring.wiring import FUNCTIONAL, IDLE, NOT_CALLED, Wiring

# weights whose columns are what their module is given; others of a recurrent module read its own units
_OF_INPUT = ("weight", "weight_ih", "weight_ih_l0", "weight_ih_l0_reverse")
Rows = tuple[tuple[str, tuple[int, ...]], ...]  # the producers of a group: weights and rows


@dataclass
class Traced:
    """One way of running a model, traced."""

    evidence: Evidence
    check: Check
    wiring: Wiring

    def uses(self, name: str) -> bool:
        """Whether a layer is called, and something depends on it."""
        return bool(self.evidence.probe.calls[name]) and self.wiring.left_out.get(name) != IDLE


def unite(ways: list[Traced]) -> Wiring:
    """The wiring that holds in all of the ways in which a model was traced."""
    wirings = [way.wiring for way in ways]
    if len(ways) == 1:
        return wirings[0]
    refused = {name: reason for wiring in wirings for name, reason in wiring.refused.items()}
    guesses = {name: guess for wiring in wirings for name, guess in wiring.guesses.items()}
    if not all(wiring.avoidable for wiring in wirings):
        return Wiring((), {}, refused, guesses, avoidable=False)
    left_out = _reasons(wirings)
    found: dict[Rows, dict[int, UnitGroup]] = {}
    for number, wiring in enumerate(wirings):
        for group in wiring.groups:
            found.setdefault(_rows(group), {})[number] = group
    joined: list[tuple[UnitGroup, dict[int, UnitGroup]]] = []
    for mine in found.values():
        names = list(dict.fromkeys(port.module for group in mine.values() for port in group.producers))
        group, problem = _join(ways, names, mine, {**left_out, **refused})
        if group is None:
            for name in names:
                left_out.setdefault(name, problem)
        else:
            joined.append((group, mine))
    for number, way in enumerate(ways):
        other = [group for group, mine in joined if number not in mine or not _same_ports(group, mine[number])]
        for group, failure in zip(other, way.check(other), strict=True):
            if failure is not None:
                refused[group.producers[0].module] = failure
    groups = [group for group, _ in joined if not any(port.module in refused for port in group.producers)]
    called = {name: None for way in ways for name in way.evidence.probe.order}
    places = {name: place for place, name in enumerate(called)}
    groups.sort(key=lambda group: places[group.producers[0].module])
    ordered = sorted(left_out, key=lambda name: places.get(name.split("[")[0], len(places)))
    taken = {*refused, *(port.module for group in groups for port in group.producers)}
    uncalled = tuple(name for name in wirings[0].uncalled if all(name in each.uncalled for each in wirings))
    return Wiring(
        tuple(groups),
        {name: left_out[name] for name in ordered if name not in taken},
        refused,
        guesses,
        uncalled=uncalled,
    )


def _reasons(wirings: list[Wiring]) -> dict[str, str]:
    """Why layers are left out: what is only not called, or idle, in some ways may be in a group of the others."""
    weak = (IDLE, FUNCTIONAL, NOT_CALLED)
    producers = {port.module for wiring in wirings for group in wiring.groups for port in group.producers}
    reasons: dict[str, str] = {}
    for strength in (-1, 0, 1, 2):  # a reason that says more comes first
        for wiring in wirings:
            for name, reason in wiring.left_out.items():
                if (weak.index(reason) if reason in weak else -1) == strength:
                    reasons.setdefault(name, reason)
    return {
        name: reason for name, reason in reasons.items() if name not in producers or reason not in (IDLE, NOT_CALLED)
    }


def _join(
    ways: list[Traced], names: list[str], mine: dict[int, UnitGroup], reasons: dict[str, str]
) -> tuple[UnitGroup | None, str]:
    """The group that units have in all ways together, or the reason why there is none."""
    for name in names:
        if name in reasons:
            return None, f"shares its columns with {name}, which is left out: {reasons[name]}"
    for number, way in enumerate(ways):
        if number not in mine and any(way.uses(name) for name in names):
            return None, "its units form other groups when the model is called differently"
    consumers = _merge(port for group in mine.values() for port in group.consumers)
    norms = _merge(port for group in mine.values() for port in group.norms)
    if consumers is None or norms is None:
        return None, "its units have other columns in the same layer when the model is called differently"
    for number, way in enumerate(ways):
        known = {port.key for port in mine[number].consumers} if number in mine else set[str]()
        for port in consumers:
            others = [] if port.key in known else _carried(way.evidence, port)
            if others:
                return (
                    None,
                    f"its columns of {port.module} carry {', '.join(others)} when the model is called differently",
                )
    first = next(iter(mine.values()))
    notes = list(dict.fromkeys(note for group in mine.values() for note in group.notes))
    return UnitGroup(first.producers, consumers, norms, first.read, notes), ""


def _carried(evidence: Evidence, port: Port) -> list[str]:
    """What else the columns of a port carry in one way of running the model."""
    if port.weight not in _OF_INPUT:
        return []
    columns = cast(Tensor, port.features).flatten()
    seen = {**evidence.bases, **evidence.foreign}
    return [
        source
        for source, reached in seen.items()
        if port.module in reached.hits and reached.hits[port.module][columns].any()
    ]


def _merge(ports: Iterable[Port]) -> list[Port] | None:
    """One port per weight; None where a weight's ports overlap without being the same."""
    merged: dict[str, Port] = {}
    for port in ports:
        features = cast(Tensor, port.features)
        if port.key in merged:
            if port.norm_behind != merged[port.key].norm_behind:  # not the only reader in all ways of running
                port, merged[port.key] = (replace(each, norm_behind=None) for each in (port, merged[port.key]))
            known = cast(Tensor, merged[port.key].features)
            if torch.equal(known, features):
                continue
            if torch.isin(features, known).any():
                return None
            features = torch.cat([known, features], 1)
        merged[port.key] = replace(port, features=features)
    return list(merged.values())


def _same_ports(left: UnitGroup, right: UnitGroup) -> bool:
    return all(
        {port.key: cast(Tensor, port.features).tolist() for port in mine}
        == {port.key: cast(Tensor, port.features).tolist() for port in theirs}
        for mine, theirs in ((left.consumers, right.consumers), (left.norms, right.norms))
    )


def _rows(group: UnitGroup) -> Rows:
    return tuple((port.key, tuple(cast(Tensor, port.features).flatten().tolist())) for port in group.producers)
