"""trace: what it leaves out or refuses, always by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoteny.layers.groups import UnitGroup
from neoteny.wiring.trace import find, trace
from neoteny.wiring.wiring import WiringError
from support.wiring_checks import checked, outline
from support.wiring_models import (
    ActorCritic,
    Auxiliary,
    Branching,
    FunctionalMLP,
    FunctionalWeight,
    Swallow,
    UsedTwice,
)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (Branching("hidden"), {"a", "b"}),
        (Branching("input"), {"a", "b"}),
        (Swallow("where"), {"fc1"}),
        (Swallow("nan_to_num"), {"fc1"}),
        (Auxiliary("values"), {"fc1"}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_what_is_not_understood_is_refused_by_name(model: nn.Module, names: set[str]) -> None:
    for x in (torch.randn(3, 4), -torch.randn(3, 4).abs(), torch.randn(3, 4).abs()):
        wiring = find(model, x)
        assert set(wiring.refused) & names, wiring
        with pytest.raises(WiringError, match="groups="):
            trace(model, x)


def test_a_guess_is_printed_and_can_be_declared() -> None:
    with pytest.raises(WiringError) as caught:
        trace(Swallow("where"), torch.randn(3, 4))
    assert "neoteny.UnitGroup(['fc1'], consumers=['fc2'])" in str(caught.value)
    assert "leave_out=['fc1']" in str(caught.value)
    wiring = checked(Swallow("where"), torch.randn(3, 4), groups=[UnitGroup("fc1", "fc2")])
    assert outline(wiring) == [(["fc1"], [], ["fc2"], "fc2")]


@pytest.mark.parametrize("how", ["argmax", "sign"])
def test_a_hidden_path_to_the_output_is_left_out(how: str) -> None:
    wiring = find(Swallow(how), torch.randn(3, 4))
    assert not wiring.groups
    assert "reach the model's output" in wiring.left_out["fc1"]
    with pytest.raises(WiringError, match="still move"):
        trace(Swallow(how), torch.randn(3, 4), groups=[UnitGroup("fc1", "fc2")])


def test_a_layer_that_follows_itself_is_left_out() -> None:
    wiring = find(UsedTwice(), torch.randn(3, 4))
    assert not wiring.refused
    assert wiring.left_out["fc1"] == "again is called several times, and reads again in another call"
    assert wiring.left_out["again"] == "again is called several times, and reads fc1 in another call"


def test_leave_out_takes_layers_and_their_parents() -> None:
    wiring = checked(ActorCritic(), torch.randn(3, 4), leave_out=["trunk.0"])
    assert [g.name for g in wiring] == ["trunk.2"]
    with pytest.raises(ValueError, match="left out on request"):
        trace(ActorCritic(), torch.randn(3, 4), leave_out=["trunk"])
    with pytest.raises(ValueError, match="Did you mean 'trunk'"):
        trace(ActorCritic(), torch.randn(3, 4), leave_out=["trunck"])
    with pytest.raises(TypeError, match="list of module names"):
        trace(ActorCritic(), torch.randn(3, 4), leave_out="trunk")


def test_a_weight_used_elsewhere_is_left_out() -> None:
    wiring = find(FunctionalWeight(call=True), torch.randn(3, 4))
    assert not wiring.groups
    assert "outside its own forward" in wiring.left_out["b"]
    assert "outside its own forward" in wiring.left_out["a"]


def test_reading_a_weights_dtype_is_not_using_it() -> None:
    class Cast(FunctionalMLP):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.to(self.fc1.weight.dtype).type_as(self.fc2.weight).to(self.fc2.weight.device))

    assert len(checked(Cast(), torch.randn(3, 5))) == 2


def _spectral_norm(model: FunctionalMLP) -> None:
    torch.nn.utils.parametrizations.spectral_norm(model.fc2)


def _old_spectral_norm(model: FunctionalMLP) -> None:
    torch.nn.utils.spectral_norm(model.fc2)


def _frozen(model: FunctionalMLP) -> None:
    model.fc2.weight.requires_grad_(False)


def _frozen_bias(model: FunctionalMLP) -> None:
    model.fc2.bias.requires_grad_(False)


def _shared(model: FunctionalMLP) -> None:
    model.copy = nn.Linear(7, 6)
    model.copy.weight = model.fc2.weight


def _own_forward(model: FunctionalMLP) -> None:
    class Noisy(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) * 2

    model.fc2 = Noisy(7, 6)


@pytest.mark.parametrize("spoil", [_spectral_norm, _old_spectral_norm, _frozen, _frozen_bias, _shared, _own_forward])
def test_layers_that_must_not_be_written_are_left_out_with_their_neighbours(spoil: Any) -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), FunctionalMLP())
    spoil(model[2])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    wiring = checked(model, torch.randn(3, 5), leave_out=["2.copy"] if spoil is _shared else [])
    assert [g.name for g in wiring] == ["0"]
    assert "2.fc2" in wiring.left_out["2.fc1"]
    assert "2.fc2" in wiring.left_out
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_reason_names_all_that_is_frozen() -> None:
    model = FunctionalMLP()
    model.fc2.requires_grad_(False)
    reason = find(model, torch.randn(3, 5)).left_out["fc2"]
    assert reason == "its weight and bias are frozen (requires_grad=False)"


def test_frozen_layers_can_still_be_found() -> None:
    model = FunctionalMLP().requires_grad_(False)
    with pytest.raises(ValueError, match="frozen"):
        trace(model, torch.randn(3, 5))
    assert len(find(model, torch.randn(3, 5), frozen=False)) == 2


def test_a_module_under_two_names_is_one_module() -> None:
    model = FunctionalMLP()
    model.alias = model.fc1
    assert [g.name for g in checked(model, torch.randn(3, 5))] == ["fc1", "fc2"]
    assert checked(model, torch.randn(3, 5), groups=[UnitGroup("alias", "fc2")]).groups[0].name == "fc1"


def test_code_that_rejects_nan_is_left_out() -> None:
    class Picky(FunctionalMLP):
        def forward(self, x: Tensor) -> Tensor:
            h = F.relu(self.fc1(x))
            if not torch.isfinite(h).all():
                raise RuntimeError("not finite")
            return self.fc3(F.relu(self.fc2(h)))

    wiring = checked(Picky(), torch.randn(3, 5))
    assert "rejects NaN (RuntimeError: not finite)" in wiring.left_out["fc1"]
