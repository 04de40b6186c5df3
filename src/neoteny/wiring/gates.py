"""Gates: a layer that scales the units of another, computed from all of them (squeeze and excitation).

The scaled units and the gate share the columns behind the product, and the units alone also feed the layers that
compute the gate. Both layers' rows together are the units. `families.py` asks; a residual stream, where values are
added to each other, is told apart here: a closed gate lets nothing through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from neoteny.layers.kinds import width_out
from neoteny.wiring.probe import Probe

_CLOSED = -1e4  # a sigmoid of it is zero
_SCALED = (2.0, 3.0, 3e4, 5e4)  # what the units hold behind it; the large ones show through a sum under a ReLU
Columns = Mapping[str, Tensor]  # consumer -> the features that a layer reaches (bool)


def find_gates(probe: Probe, partners: Mapping[str, list[str]], columns: Callable[[str], Columns]) -> dict[str, str]:
    """The layers that are a gate, each with the layer whose units it scales.

    Args:
        probe: the recording to work with.
        partners: the layers that share only some columns with others, each with all of those.
        columns: what a layer reaches.
    """
    pairs: dict[str, str] = {}
    for gate, others in partners.items():
        if len(others) != 1 or partners.get(others[0]) != [gate]:
            continue
        scaled = others[0]
        mine, theirs = columns(gate), columns(scaled)
        inside = set(mine) < set(theirs) and all(torch.equal(mine[sink], theirs[sink]) for sink in mine)
        if inside and width_out(probe.module(gate)) == width_out(probe.module(scaled)) and _once(probe, gate, scaled):
            pairs[gate] = scaled
    if not pairs:
        return {}
    closed = {gate: lambda kept: torch.full_like(kept, _CLOSED) for gate in pairs}
    seen = [
        probe.replay(
            {**closed, **{scaled: lambda kept, value=value: torch.full_like(kept, value) for scaled in pairs.values()}},
            identity_norms=True,
            keep_inputs=True,
        )
        for value in _SCALED
    ]
    if any(each.error is not None or each.order != probe.order for each in seen):
        return {}
    return {
        gate: scaled
        for gate, scaled in pairs.items()
        if all(torch.equal(each.inputs[sink][0], seen[0].inputs[sink][0]) for sink in columns(gate) for each in seen)
    }


def _once(probe: Probe, *names: str) -> bool:
    return all(probe.calls[name] == 1 for name in names)
