"""Groups that the user declares: names checked, ports spelled out, each group verified like a found one, and added.

`trace.py` comes here when it is given `groups`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from neoteny.layers.groups import Port, UnitGroup
from neoteny.layers.kinds import kind_of, unwritable, width_in, width_out
from neoteny.wiring.families import group_notes
from neoteny.wiring.modules import first_name
from neoteny.wiring.norm_behind import with_norms_behind
from neoteny.wiring.prepare import Part
from neoteny.wiring.read_point import find_read_points
from neoteny.wiring.recurrent import spell_out, state_notes
from neoteny.wiring.wiring import Wiring


def resolve_groups(model: nn.Module, groups: Sequence[UnitGroup]) -> list[UnitGroup]:
    """The user's groups with every port spelled out.

    Raises:
        TypeError, ValueError: not groups, or groups that do not fit the model.
    """
    if isinstance(groups, UnitGroup) or not all(isinstance(group, UnitGroup) for group in groups):
        raise TypeError(f"groups must be a list of neoteny.UnitGroup; got {groups!r}.")
    if not groups:
        raise ValueError("groups must name at least one UnitGroup; leave it out to find the groups.")
    resolved = spell_out(model, [_resolve(model, group) for group in groups])
    _check_disjoint(resolved)
    return resolved


def declare(model: nn.Module, parts: Sequence[Part], groups: list[UnitGroup], traced: Wiring) -> Wiring:
    """The wiring of the user's groups, verified, and of the traced ones that have none of their rows or columns.

    Layers that tracing refused are left out: the user knows the model better.
    """
    reasons = unwritable(model)
    refused: dict[str, str] = {}
    done: list[UnitGroup] = []
    problems = {group.name: _problems(group, reasons) for group in groups}
    sound = [group for group in groups if not problems[group.name]]
    for part in parts:
        for group, failure in zip(sound, part.check(sound), strict=True):
            problems[group.name] = problems[group.name] or failure or ""
    for group in with_norms_behind(parts[0].probe, groups):
        if problems[group.name]:
            refused[group.name] = f"the declared group is not right: {problems[group.name]}"
        shown = next((p.probe for p in parts if any(p.probe.calls[port.module] for port in group.consumers)), None)
        read = group.read or find_read_points(shown or parts[0].probe, [group])[0]
        notes = [
            *group_notes(model, group),
            *(note for part in parts[:1] for note in state_notes(part.probe.recording.states, group)),
            *(_calls_note(parts, name) for name in _modules(group)),
        ]
        done.append(UnitGroup(group.producers, group.consumers, group.norms, read, list(filter(None, notes))))
    for group in traced.groups:
        if not any(_overlap(group, other) for other in groups):
            done.append(group)
    called = {name: None for part in parts for name in part.probe.order}
    order = {name: place for place, name in enumerate(called)}
    done.sort(key=lambda group: order.get(group.producers[0].module, len(order)))
    claimed = {port.module for group in done for port in group.producers}
    layers = {name: "not in a declared group" for part in parts for name in part.probe.named("boundary")}
    left_out = {**layers, **traced.left_out, **traced.refused}
    consumers = {port.module for group in done for port in group.consumers}
    return Wiring(
        tuple(done),
        {name: reason for name, reason in left_out.items() if name not in claimed},
        refused,
        avoidable=False,
        uncalled=tuple(name for name in _uncalled(parts) if name not in consumers),
    )


def _uncalled(parts: Sequence[Part]) -> list[str]:
    """Layers that no example calls, and whose weights none uses."""
    used = {name for part in parts for name in (*part.probe.calls, *part.probe.recording.functional.values())}
    watched = parts[0].probe.watched
    return [name for name, (_, kind) in watched.items() if kind == "boundary" and name not in used]


def _overlap(group: UnitGroup, other: UnitGroup) -> bool:
    """Whether two groups have a row, or a column of a consumer or norm, in common."""
    return any(
        one.key == two.key and bool(torch.isin(cast(Tensor, one.features), cast(Tensor, two.features)).any())
        for role in ("producers", "consumers", "norms")
        for one in getattr(group, role)
        for two in getattr(other, role)
    )


def _modules(group: UnitGroup) -> list[str]:
    return list(dict.fromkeys(port.module for port in (*group.producers, *group.consumers, *group.norms)))


def _problems(group: UnitGroup, reasons: dict[str, str]) -> str:
    """The modules of a group that must not be written, each with the reason; empty if there are none."""
    return "; ".join(f"{name}: {reasons[name]}" for name in _modules(group) if name in reasons)


def _resolve(model: nn.Module, group: UnitGroup) -> UnitGroup:
    """The group with every port spelled out, module names and classes checked."""
    group = _rename(model, group)
    for role, ports in (("producer", group.producers), ("consumer", group.consumers), ("norm", group.norms)):
        for port in ports:
            if port.weight != "weight":
                raise ValueError(f"UnitGroup({group.name!r}): name the module {port.module!r}, not one of its weights.")
            module = model.get_submodule(port.module)
            expected = "norm" if role == "norm" else "boundary"
            if kind_of(module) != expected:
                layer = "a linear layer, a convolution or a recurrent layer"
                what = "a norm module (BatchNorm, ...)" if role == "norm" else layer
                raise TypeError(f"UnitGroup({group.name!r}): {role} {port.module!r} must be {what}; got {module!r}.")
    given = [port.features for port in group.producers if port.features is not None]
    widths = [width_out(model.get_submodule(port.module)) - port.offset for port in group.producers]
    units = len(torch.as_tensor(given[0])) if given else min(widths)
    producers = []
    for port in group.producers:  # a producer's unit is one row, never several neighbours
        rows = port.features if port.features is not None else torch.arange(units) + port.offset
        producers.append(Port(port.module, rows).resolve(units, width_out(model.get_submodule(port.module))))
    others = [
        [port.resolve(units, width_in(model.get_submodule(port.module))) for port in ports]
        for ports in (group.consumers, group.norms)
    ]
    return UnitGroup(producers, others[0], others[1], group.read, group.notes)


def _rename(model: nn.Module, group: UnitGroup) -> UnitGroup:
    """The group under its modules' first names (a module may be registered twice)."""

    def first(name: str) -> str:
        return first_name(model, name, f"UnitGroup({group.producers[0].module!r})")

    producers, consumers, norms = (
        [Port(first(port.module), port.features, port.offset, port.weight) for port in ports]
        for ports in (group.producers, group.consumers, group.norms)
    )
    return UnitGroup(producers, consumers, norms, None if group.read is None else first(group.read), group.notes)


def _check_disjoint(groups: list[UnitGroup]) -> None:
    seen: dict[tuple[str, str], Tensor] = {}
    for group in groups:
        for role, ports in (("producer", group.producers), ("consumer", group.consumers), ("norm", group.norms)):
            for port in ports:
                features = torch.as_tensor(port.features).flatten()
                before = seen.get((role, port.key), torch.empty(0, dtype=torch.int64))
                if torch.isin(features, before).any():
                    raise ValueError(
                        f"UnitGroup({group.name!r}): each feature of {role} {port.module!r} belongs to one unit, "
                        "but some are claimed twice."
                    )
                seen[role, port.key] = torch.cat([before, features])


def _calls_note(parts: Sequence[Part], name: str) -> str | None:
    calls = max(part.probe.calls[name] for part in parts)
    if calls == 1:
        return None
    return f"{name} is called {calls} times by the example" + ("" if calls else ": that part was not checked")
