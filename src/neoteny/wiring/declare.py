"""Groups that the user declares: names checked, ports spelled out, each group verified like a found one.

`trace.py` comes here when it is given `groups`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from neoteny.layers.groups import Port, UnitGroup
from neoteny.layers.kinds import kind_of, unwritable, width_in, width_out
from neoteny.wiring.families import group_notes
from neoteny.wiring.modules import first_name
from neoteny.wiring.prepare import prepare
from neoteny.wiring.probe import Probe
from neoteny.wiring.read_point import find_read_points
from neoteny.wiring.recurrent import spell_out, state_notes
from neoteny.wiring.sandbox import Sandbox
from neoteny.wiring.wiring import Wiring


def declare(model: nn.Module, example: Any, groups: Sequence[UnitGroup]) -> Wiring:
    """The wiring of the user's groups, resolved and verified."""
    if isinstance(groups, UnitGroup) or not all(isinstance(group, UnitGroup) for group in groups):
        raise TypeError(f"groups must be a list of neoteny.UnitGroup; got {groups!r}.")
    if not groups:
        raise ValueError("groups must name at least one UnitGroup; leave it out to find the groups.")
    resolved = spell_out(model, [_resolve(model, group) for group in groups])
    _check_disjoint(resolved)
    reasons = unwritable(model)
    refused: dict[str, str] = {}
    done: list[UnitGroup] = []
    with Sandbox(model, example) as sandbox:
        probe, check = prepare(sandbox)
        problems = {group.name: _problems(group, reasons) for group in resolved}
        sound = [group for group in resolved if not problems[group.name]]
        failures = {group.name: failure for group, failure in zip(sound, check(sound), strict=True)}
        found_reads = iter(find_read_points(probe, [group for group in resolved if group.read is None]))
        for group, read in [(group, next(found_reads) if group.read is None else group.read) for group in resolved]:
            failure = problems[group.name] or failures[group.name]
            if failure is not None:
                refused[group.name] = f"the declared group is not right: {failure}"
            notes = [
                *group_notes(model, group),
                *state_notes(probe.recording.states, group),
                *(_calls_note(probe, name) for name in _modules(group)),
            ]
            done.append(UnitGroup(group.producers, group.consumers, group.norms, read, list(filter(None, notes))))
    order = {name: place for place, name in enumerate(dict.fromkeys(probe.order))}
    done.sort(key=lambda group: order.get(group.producers[0].module, len(order)))
    claimed = {port.module for group in done for port in group.producers}
    left_out = {name: "not in a declared group" for name in probe.named("boundary") if name not in claimed}
    return Wiring(tuple(done), left_out, refused, avoidable=False)


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


def _calls_note(probe: Probe, name: str) -> str | None:
    calls = probe.calls[name]
    if calls == 1:
        return None
    return f"{name} is called {calls} times by the example" + ("" if calls else ": that part was not checked")
