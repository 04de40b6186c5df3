"""diagnose: no false alarm on fresh networks of every family of initialisations, and damage found in each."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.diagnosis import fresh_copy
from support.damage import alarmed, collapse_rank, groups_of, grow, kill_units
from support.initialised_models import FAMILIES, Blocks, batch, mlp


def made(family: str, seed: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    model = FAMILIES[family][0]()
    return model, batch(model, 100)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fresh_network_raises_no_alarm(family: str) -> None:
    for seed in (0, 1):
        model, inputs = made(family, seed)
        found = neoteny.diagnose(model, inputs)
        assert not alarmed(found), found.verdict
        for layer in found.layers:
            assert layer.fresh is not None
            assert layer.weight_magnitude == pytest.approx(layer.fresh.weight_magnitude, rel=0.15)


@pytest.mark.parametrize("family", FAMILIES)
def test_damage_is_found(family: str) -> None:
    model, inputs = made(family, 0)
    group = groups_of(model, inputs[:2])[-1]
    kill_units(model, group)
    assert any(
        sentence.startswith(f"50% of {group.name}'s units") for sentence in neoteny.diagnose(model, inputs).verdict
    )
    model, inputs = made(family, 0)
    collapse_rank(model, group)
    assert any(f"{group.name}'s effective rank" in each for each in neoteny.diagnose(model, inputs).verdict)
    model, inputs = made(family, 0)
    grow(model)
    found = neoteny.diagnose(model, inputs)
    grown = [sentence for sentence in found.verdict if sentence.startswith("The weights of")]
    assert len(grown) == len(found.layers), found
    for layer in found.layers:
        assert layer.fresh is not None
        assert layer.weight_magnitude / layer.fresh.weight_magnitude > 3.0


class Unet(nn.Module):
    """Many narrow layers: what is dead by chance differs from copy to copy."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, width, 3, padding=1)
        self.middle = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1),
            nn.ReLU(),
        )
        self.up = nn.Conv2d(3 * width, width, 3, padding=1)
        self.last = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        down = torch.relu(self.down(x))
        middle = nn.functional.interpolate(self.middle(nn.functional.max_pool2d(down, 2)), scale_factor=2.0)
        return self.last(torch.relu(self.up(torch.cat([middle, down], 1))))


def test_narrow_networks_are_compared_with_several_copies() -> None:
    alarms = 0
    for seed in range(3):
        torch.manual_seed(seed)
        alarms += alarmed(neoteny.diagnose(Unet(), torch.randn(12, 3, 8, 8)))
    assert alarms == 0
    model, inputs = Unet(), torch.randn(12, 3, 8, 8)
    kill_units(model, next(group for group in groups_of(model, inputs[:2]) if group.name == "middle.2"))
    found = neoteny.diagnose(model, inputs)
    assert alarmed(found)
    assert all(layer.fresh_most is not None for layer in found.layers)


def test_an_attached_network_is_compared_with_what_it_was_attached_with() -> None:
    torch.manual_seed(0)
    model = mlp(lambda weight: nn.init.normal_(weight, std=0.0123))
    inputs = batch(model, 100)
    unattached = neoteny.diagnose(model, inputs)
    assert any(note.startswith("no rule says how large the weights of 0, 2") for note in unattached.notes)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    plastic = neoteny.attach(model, optimizer, neoteny.ContinualBackprop(), example=inputs[:2])
    grow(model)
    found = neoteny.diagnose(model, inputs)
    assert found.layers[0].fresh is not None
    assert found.layers[0].fresh.weight_magnitude == pytest.approx(found.layers[0].weight_magnitude / 4.0, rel=0.05)
    assert any("times as large" in sentence for sentence in found.verdict)
    plastic.detach()


def test_a_trained_network_is_compared_with_what_its_own_code_draws() -> None:
    torch.manual_seed(0)
    model = Blocks(std=0.05)
    inputs = batch(model, 100)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.sign(parameter) * 0.2)
    found = neoteny.diagnose(model, inputs)
    for layer in found.layers:
        assert layer.fresh is not None
        assert layer.fresh.weight_magnitude == pytest.approx(0.05 * (2 / torch.pi) ** 0.5, rel=0.05)
    assert any("times as large" in sentence for sentence in found.verdict)


class DrawnInItsConstructor(nn.Module):
    """All weights with one spread, and no method for it: the source alone says which."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 4)
        for module in (self.first, self.second, self.out):
            nn.init.trunc_normal_(module.weight, std=0.0345)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.second(torch.relu(self.first(x)))))


def test_a_spread_that_the_source_alone_names_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, inputs = DrawnInItsConstructor(), torch.randn(100, 64)
    source = inspect.getsource(DrawnInItsConstructor)  # this file names other spreads, too
    monkeypatch.setattr(fresh_copy.inspect, "getsource", lambda module: source)
    assert not alarmed(neoteny.diagnose(model, inputs))
    grow(model)
    found = neoteny.diagnose(model, inputs)
    assert sum("are 4.0 times as large" in each for each in found.verdict) == 2, found
    monkeypatch.undo()
    assert fresh_copy.named_spread(DrawnInItsConstructor) is None
    assert fresh_copy.named_spread(int) is None
