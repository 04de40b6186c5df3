"""Checks and outlines of a traced wiring."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from neoteny.layers.groups import Port
from neoteny.wiring.sandbox import Sandbox
from neoteny.wiring.trace import trace
from neoteny.wiring.verify import verify
from neoteny.wiring.wiring import Wiring


def checked(model: nn.Module, example: Any, **options: Any) -> Wiring:
    """The wiring, each group verified once more from outside, names distinct, ports spelled out."""
    wiring = trace(model, example, **options)
    with Sandbox(model, example) as sandbox:
        assert all(verify(sandbox, group) is None for group in wiring)
    assert len({group.name for group in wiring}) == len(wiring)
    for group in wiring:
        assert group.read in {port.module for port in (*group.consumers, *group.norms)}
        for port in (*group.consumers, *group.producers):
            assert features_of(port).shape == (group.units, port.repeat)
    return wiring


def features_of(port: Port) -> Tensor:
    """The port's features, which every traced port has."""
    assert port.features is not None
    return port.features


def outline(wiring: Wiring) -> list[tuple[list[str], list[str], list[str], str | None]]:
    return [
        ([p.module for p in g.producers], [p.module for p in g.norms], [p.module for p in g.consumers], g.read)
        for g in wiring
    ]
