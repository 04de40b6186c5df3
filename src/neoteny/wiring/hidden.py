"""hidden_layers: every layer of hidden units that can be read, also where units cannot be reset one by one.

`trace` finds the groups that a method may act on. Measures only read, so they also count layers that `trace` leaves
out: behind a norm that couples their units, or with shared weights. Such a layer is read where its values arrive, and
every feature there counts as a unit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from neoteny.layers.groups import Port, UnitGroup
from neoteny.layers.kinds import width_out
from neoteny.layers.recurrent import RECURRENT
from neoteny.wiring.classify import classify
from neoteny.wiring.evidence import Evidence
from neoteny.wiring.prepare import prepare
from neoteny.wiring.probe import Probe
from neoteny.wiring.read_point import find_read_points, read_at
from neoteny.wiring.recurrent import is_hidden
from neoteny.wiring.sandbox import Sandbox
from neoteny.wiring.verify import inert


def hidden_layers(model: nn.Module, example: Any) -> tuple[UnitGroup, ...]:
    """The layers of hidden units in the order in which a forward pass reads them; none in a linear model.

    Raises:
        ValueError: a layer's values cannot be followed to where they are used; the message names model and layer.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> [group.read for group in hidden_layers(model, torch.zeros(3, 4))]
        ['2']
    """
    with Sandbox(model, example) as sandbox:
        part = prepare(sandbox, sandbox.example)[0]
        probe = part.probe
        wiring = classify(Evidence(probe, [], frozen=False), part.check, accept=True)
        groups = [group for group in wiring.groups if not is_hidden(model, group)]  # followed below, as a whole
        producers = {port.module for group in groups for port in group.producers}
        taken = {port.module for group in groups for port in group.consumers}
        lost = {} if wiring.avoidable else dict(wiring.refused)
        for name in probe.named("boundary") if wiring.avoidable else ():
            if name in producers:
                continue
            group, reason = _follow(probe, name)
            if reason:
                lost[name] = wiring.refused.get(name, reason)
            elif group is not None and taken.isdisjoint(port.module for port in group.consumers):
                groups.append(group)
                taken.update(port.module for port in group.consumers)
        if lost:
            reasons = "".join(f"\n  {name or 'the model'}: {reason}" for name, reason in lost.items())
            raise ValueError(
                f"{type(model).__name__}: cannot tell where the hidden units of these layers are read:{reasons}"
            )
        called = {name: place for place, name in enumerate(dict.fromkeys(probe.order))}
        return tuple(sorted(groups, key=lambda group: called[read_at(group)]))


def _follow(probe: Probe, name: str) -> tuple[UnitGroup | None, str]:
    """A layer as a group to read (None if its units are not hidden), or the reason why it cannot be read."""
    if probe.calls[name] > 1 and not isinstance(probe.module(name), RECURRENT):
        return None, f"it is called {probe.calls[name]} times in one forward pass"
    seen, (_, moved) = probe.taint([name]), probe.move([name])
    hits = {**moved.hits, **seen.hits}
    consumers = [Port(sink, _indices(hit)) for sink, hit in hits.items() if probe.watched[sink][1] == "boundary"]
    norms = [Port(sink, _indices(hit)) for sink, hit in hits.items() if probe.watched[sink][1] == "norm"]
    width = width_out(probe.module(name))
    if consumers:
        group = UnitGroup(Port(name).resolve(width, width), consumers, norms)
        return UnitGroup(group.producers, consumers, norms, read=find_read_points(probe, [group])[0]), ""
    if seen.opaque:
        return None, f"it feeds {', '.join(seen.opaque)}, which is neither a Linear nor a Conv"
    if seen.leaked or moved.leaked or inert(probe.recording, name, torch.arange(width)):
        return None, ""
    return None, "the output depends on it, but where its values go was lost on the way"


def _indices(hit: Tensor) -> Tensor:
    return hit.nonzero()  # (units, 1)
