"""Published models: attached at the first try, no false alarm when fresh, damage found.

Each is skipped where its library is not installed, and all but torch's own are slow: `pytest -m slow` runs them.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import neoteny
from neoteny.layers.groups import UnitGroup
from support.damage import alarmed, collapse_rank, grow, kill_units
from support.published_models import PUBLISHED


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in PUBLISHED if not name.startswith("torch ")])
def test_a_published_model(name: str) -> None:
    library = name.partition(" ")[0]
    try:
        pytest.importorskip(library, reason=f"{library} is not installed", exc_type=ImportError)
    except RuntimeError as error:  # its compiled operators are made for another torch
        pytest.skip(f"{library} does not load here: {error}")
    check(name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in PUBLISHED if name.startswith("torch ")])
def test_a_model_of_torch(name: str) -> None:
    check(name)


def check(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = PUBLISHED[name]()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    plastic = neoteny.attach(model, optimizer, neoteny.ContinualBackprop(), example=inputs, norm="accept")
    assert {law.source for law in plastic.view.laws.values()} == {"found"}
    assert plastic.wiring is not None
    groups = [group for group in plastic.wiring.groups if not _is_depthwise(model, group)]
    plastic.detach()
    fresh = neoteny.diagnose(model, inputs)
    assert not alarmed(fresh), fresh.verdict
    group = max(groups, key=lambda each: each.units)  # in few units chance alone kills half of some fresh copies
    for damage in (kill_units, collapse_rank):
        damaged = copy.deepcopy(model)
        damage(damaged, group)
        found = neoteny.diagnose(damaged, inputs)
        assert alarmed(found), f"{damage.__name__} {group.name}: {found}"
    damaged = copy.deepcopy(model)
    grow(damaged)
    grown = neoteny.diagnose(damaged, inputs)
    assert any("times as large" in each for each in grown.verdict), grown


def _is_depthwise(model: nn.Module, group: UnitGroup) -> bool:
    """Whether its units read one input channel each: equal weights are then no collapse."""
    return any(getattr(model.get_submodule(port.module), "groups", 1) > 1 for port in group.producers)
