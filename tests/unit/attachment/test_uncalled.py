"""attach: layers that no example reached never leave a unit half reset in silence."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neoteny
from neoteny.attachment.attachment import Attachment

X = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))


class Heads(nn.Module):
    """A head per task."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 8)
        self.heads = nn.ModuleList(nn.Linear(8, 2) for _ in range(2))

    def forward(self, x: Tensor, task: int = 0) -> Tensor:
        return self.heads[task](F.relu(self.b(F.relu(self.a(x)))))


def attached(example: Any, **options: Any) -> tuple[Heads, torch.optim.Optimizer, Attachment]:
    torch.manual_seed(0)
    model = Heads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    method = neoteny.ContinualBackprop(0.05, maturity_threshold=2)
    return model, optimizer, neoteny.attach(model, optimizer, method, example=example, seed=0, **options)


def train(model: Heads, optimizer: torch.optim.Optimizer, plastic: Attachment, task: int, steps: int = 1) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(X, task).square().mean().backward()
        optimizer.step()
        plastic.step()


def test_a_list_of_calls_resets_units_in_every_head() -> None:
    model, optimizer, plastic = attached([(X, 0), (X, 1)])
    head = model.get_parameter("heads.1.weight")
    kept = head.detach().clone()
    train(model, optimizer, plastic, task=0, steps=20)
    assert plastic.replaced["b"] > 0
    gone = (head == 0).all(0)
    assert 1 <= int(gone.sum()) <= plastic.replaced["b"]
    assert torch.equal(head[:, ~gone], kept[:, ~gone])
    train(model, optimizer, plastic, task=1)


@pytest.mark.parametrize("options", [{}, {"leave_out": ["heads.1"]}])
def test_a_layer_that_no_example_reached_stops_the_tick_until_it_is_traced(options: dict[str, Any]) -> None:
    if options:
        model, optimizer, plastic = attached(X, **options)
    else:
        with pytest.warns(RuntimeWarning, match=r"does not call heads\.1"):
            model, optimizer, plastic = attached(X)
    train(model, optimizer, plastic, task=0, steps=3)
    with torch.no_grad():
        model(X, 1)
    model.eval()
    model(X, 1)
    model.train()
    train(model, optimizer, plastic, task=0)  # evaluation alone trains nothing there
    before = plastic.replaced
    for task in (1, 0):  # once it has been trained, resets of the other task would miss it as well
        with pytest.raises(ValueError, match=r"called heads\.1.*refresh\(example=\[call, another\]\)"):
            train(model, optimizer, plastic, task)
    assert plastic.replaced == before
    twin = copy.deepcopy(model)
    twin(X, 1)  # a copy carries nothing of it
    plastic.refresh(example=[(X, 0), (X, 1)])
    assert plastic.wiring is not None
    assert [port.module for port in plastic.wiring.groups[1].consumers] == ["heads.0", "heads.1"]
    train(model, optimizer, plastic, task=0, steps=20)
    assert bool((model.get_parameter("heads.1.weight") == 0).all(0).any())


def test_a_head_that_is_added_after_attach_is_asked_for_as_well() -> None:
    model, optimizer, plastic = attached([(X, 0), (X, 1)])
    train(model, optimizer, plastic, task=0, steps=2)
    model.heads.append(nn.Linear(8, 2))
    optimizer.add_param_group({"params": list(model.heads[2].parameters())})
    replaced = plastic.replaced
    train(model, optimizer, plastic, task=2)  # the new head had no hook yet: nothing is reset
    with pytest.raises(ValueError, match=r"called heads\.2"):
        train(model, optimizer, plastic, task=2)
    plastic.refresh()
    with pytest.raises(ValueError, match=r"called heads\.2"):
        train(model, optimizer, plastic, task=0)
    assert plastic.replaced == replaced
    plastic.refresh(example=[(X, 0), (X, 1), (X, 2)])
    train(model, optimizer, plastic, task=0, steps=20)
    assert plastic.replaced["b"] > replaced["b"]
    assert bool((model.get_parameter("heads.2.weight") == 0).all(0).any())


def test_a_declared_consumer_is_not_asked_for() -> None:
    declared = neoteny.UnitGroup("b", ["heads.0", "heads.1"])
    model, optimizer, plastic = attached(X, groups=[declared])
    assert list(plastic.replaced) == ["a", "b"]
    train(model, optimizer, plastic, task=1, steps=20)
    assert bool((model.get_parameter("heads.0.weight") == 0).all(0).any())
    _, _, plastic = attached(X, groups=[declared], leave_out="others")
    assert list(plastic.replaced) == ["b"]
    plastic.refresh(example=X)
    assert list(plastic.replaced) == ["b"]


def test_a_saved_wiring_remembers_what_was_not_called(tmp_path: Any) -> None:
    wiring = neoteny.trace(Heads(), X, leave_out=["heads"])
    wiring.save(tmp_path / "wiring.json")
    assert neoteny.Wiring.load(tmp_path / "wiring.json").uncalled == wiring.uncalled == ("heads.1",)
