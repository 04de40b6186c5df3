"""Fresh parameters: the law of each kind, per run, by (seed, step, name); and an optimizer that starts again."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import SGD, HardReset
from neoteny.units.fresh import draw_fresh, start_of
from neoteny.units.view import View


class Mixed(nn.Module):
    """A parameter of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 40)
        self.body, self.norm, self.zero = nn.Linear(40, 30), nn.LayerNorm(30), nn.Linear(30, 20)
        self.temperature = nn.Parameter(torch.tensor(0.37))
        self.position = nn.Parameter(torch.randn(40) * 0.02 + 5.0)
        nn.init.zeros_(self.zero.weight)
        nn.init.constant_(self.zero.bias, 0.1)
        nn.init.zeros_(self.norm.weight)  # as in a residual branch that begins as nothing

    def forward(self, x: Tensor) -> Tensor:
        return self.zero(self.norm(self.body(self.embedding(x) + self.position)).relu()) * self.temperature


class Own(nn.Linear):
    """A layer with a law of its own."""

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight, 2.0, 3.0)
        nn.init.uniform_(self.bias, -5.0, -4.0)


class OwnTransposed(nn.ConvTranspose1d):
    def reset_parameters(self) -> None:
        with torch.no_grad():  # each output of each input has its own number, and taps theirs
            inputs = torch.arange(self.in_channels).reshape(-1, 1, 1)
            outputs = torch.arange(self.out_channels // self.groups).reshape(1, -1, 1)
            taps = torch.arange(self.kernel_size[0]).reshape(1, 1, -1)
            self.weight.copy_(100 * inputs + 10 * outputs + taps + torch.rand(1))
            if self.bias is not None:
                self.bias.zero_()


def fresh(view: View, step: int = 1) -> dict[str, Tensor]:
    starts = {name: start_of(view, value) for name, value in view.parameters.items()}
    return draw_fresh(view, starts, view.parameters, step, "test")


def attached(model: nn.Module, **options: Any) -> View:
    return neoteny.attach(model, torch.optim.SGD(model.parameters(), 0.1), HardReset("all"), seed=5, **options).view


class TestFreshParameters:
    def test_follow_the_law_of_their_kind(self) -> None:
        torch.manual_seed(0)
        model = Mixed()
        drawn = fresh(attached(model))
        assert float(drawn["embedding.weight"].std()) == pytest.approx(1.0, rel=0.1)
        assert 0.9 / math.sqrt(40) < float(drawn["body.weight"].abs().max()) <= 1 / math.sqrt(40)
        assert 0.5 / math.sqrt(40) < float(drawn["body.bias"].abs().max()) <= 1 / math.sqrt(40)
        assert not drawn["norm.weight"].any()
        assert not drawn["norm.bias"].any()
        assert not drawn["zero.weight"].any()
        assert torch.equal(drawn["zero.bias"], torch.full((20,), 0.1))
        assert float(drawn["temperature"]) == pytest.approx(0.37)
        assert float(drawn["position"].mean()) == pytest.approx(5.0, abs=0.02)
        assert float(drawn["position"].std()) == pytest.approx(0.02, rel=0.5)
        for name, value in model.named_parameters():
            assert drawn[name].shape == value.shape

    def test_are_the_same_for_one_seed_and_step_and_others_for_another(self) -> None:
        torch.manual_seed(0)
        view = attached(Mixed())
        assert all(torch.equal(a, b) for a, b in zip(fresh(view).values(), fresh(view).values(), strict=True))
        assert not torch.equal(fresh(view)["body.weight"], fresh(view, 2)["body.weight"])
        assert not torch.equal(fresh(view)["body.bias"], fresh(view, 2)["body.bias"])

    def test_of_trained_norms_are_one_and_zero(self) -> None:
        model: Any = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
        with torch.no_grad():
            model[1].weight.normal_()
            model[1].bias.normal_()
        drawn = fresh(attached(model, trained=True))
        assert torch.equal(drawn["1.weight"], torch.ones(4))
        assert torch.equal(drawn["1.bias"], torch.zeros(4))

    @pytest.mark.parametrize("runs", [0, 3])
    def test_of_a_layer_with_a_law_of_its_own_are_drawn_by_it(self, runs: int) -> None:
        nets = [nn.Sequential(Own(3, 4), nn.ReLU(), OwnTransposed(6, 4, 3, groups=2)) for _ in range(max(runs, 1))]
        view = neoteny.stack(nets, SGD(0.1), seeds=[5, 6, 7]).view if runs else attached(nets[0], init="default")
        drawn = fresh(view)
        assert bool(((drawn["0.weight"] >= 2.0) & (drawn["0.weight"] <= 3.0)).all())
        assert bool(((drawn["0.bias"] >= -5.0) & (drawn["0.bias"] <= -4.0)).all())
        assert drawn["2.weight"].shape == view.tensor("2.weight").shape
        layout = drawn["2.weight"] - drawn["2.weight"].flatten(len(view.runs)).amin(-1).reshape(*view.runs, 1, 1, 1)
        expected = 100 * torch.arange(6).reshape(-1, 1, 1) + 10 * torch.arange(2).reshape(1, -1, 1) + torch.arange(3)
        torch.testing.assert_close(layout, expected.float().expand_as(layout), rtol=0, atol=1e-3)
        if runs:
            assert len({float(each[0, 0]) for each in drawn["0.weight"]}) == 3
            alone = fresh(attached(nets[0], init="default"))
            for name, value in drawn.items():
                torch.testing.assert_close(value[0], alone[name])

    def test_a_declaration_for_a_module_holds_for_the_layers_in_it(self) -> None:
        model: Any = nn.Sequential(nn.Sequential(nn.Linear(60, 50), nn.ReLU()), nn.Linear(50, 40))
        nn.init.normal_(model[0][0].weight, std=0.5)
        view = attached(model, init={"0": neoteny.Initial("normal", scale=0.5)})
        assert float(fresh(view)["0.0.weight"].std()) == pytest.approx(0.5, rel=0.1)
        assert view.initial("1.weight").std == pytest.approx(1 / math.sqrt(150))


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """One update on a fixed batch; how far each parameter moved."""
    before = [each.detach().clone() for each in model.parameters()]
    optimizer.zero_grad()
    x = torch.linspace(-1, 1, 12).reshape(4, 3)
    model(x).sub(1.0).square().mean().backward()
    optimizer.step()
    return [now.detach() - then for now, then in zip(model.parameters(), before, strict=True)]


MAKERS = [
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    neoteny.optim.Adam,
]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: f"{make.__module__.partition('.')[0]} {make.__name__}")
def test_an_optimizer_that_starts_again_steps_as_a_new_one(make: Any) -> None:
    """Step counts that are shared by a tensor start again too: else the first step would be three times too long."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    torch.set_default_dtype(torch.float64)
    try:
        optimizer = make(model.parameters(), lr=0.01)
        view = neoteny.attach(model, optimizer, neoteny.L2(0.0)).view
        for _ in range(20):
            step(model, optimizer)
        for name in view.parameters:
            view.restart_optimizer(name)
        saved = {name: value.clone() for name, value in model.state_dict().items()}
        again = step(model, optimizer)
        neoteny.detach(model)
        model.load_state_dict(saved)
        new = step(model, make(model.parameters(), lr=0.01))
    finally:
        torch.set_default_dtype(torch.float32)
    for ours, theirs in zip(again, new, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
