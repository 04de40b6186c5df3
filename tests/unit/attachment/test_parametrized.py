"""attach(): layers whose weight is computed from other parameters (weight norm, parametrizations)."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import neoteny
from neoteny.layers.parametrized import weight_of
from neoteny.layers.regions import ChosenUnits
from neoteny.units.own_initialisation import redraw
from neoteny.units.reset import reset_units
from support.loops import FAST

Wrap = Callable[[nn.Module], nn.Module]


class Doubled(nn.Module):
    """A weight that is twice its parameter."""

    def forward(self, original: Tensor) -> Tensor:
        return 2.0 * original

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight / 2.0


class OneWay(nn.Module):
    """A weight that is the sine of its parameter, which cannot be assigned."""

    def forward(self, original: Tensor) -> Tensor:
        return original.sin()


def new_weight_norm(layer: nn.Module) -> nn.Module:
    return parametrizations.weight_norm(layer)


def old_weight_norm(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch prefers the other one
        return nn.utils.weight_norm(layer)


def doubled(layer: nn.Module) -> nn.Module:
    layer.weight.data.div_(2.0)  # pyright: ignore[reportCallIssue]
    layer = parametrize.register_parametrization(layer, "weight", Doubled(), unsafe=True)
    layer.parametrizations.weight.original.data.mul_(2.0)  # pyright: ignore
    return layer


def linear(wrap: Wrap) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [wrap(nn.Linear(5, 8)), nn.Tanh(), wrap(nn.Linear(8, 7)), nn.Tanh(), wrap(nn.Linear(7, 2))]
    return nn.Sequential(*layers).double()


def convolutional(wrap: Wrap) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [
        wrap(nn.Conv1d(5, 8, 3)),
        nn.ReLU(),
        wrap(nn.Conv1d(8, 6, 3, groups=2)),
        nn.ReLU(),
        wrap(nn.Conv1d(6, 2, 1)),
    ]
    return nn.Sequential(*layers).double()


def example_of(model: nn.Module) -> Tensor:
    return (
        torch.randn(4, 5, 9).double()
        if any(isinstance(m, nn.Conv1d) for m in model.modules())
        else torch.randn(4, 5).double()
    )


def trained(model: nn.Module) -> tuple[neoteny.attachment.attachment.Attachment, torch.optim.Optimizer, Tensor]:
    """An attachment after a few updates, its optimizer and the example."""
    example = example_of(model)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    plastic = neoteny.attach(model, optimizer, neoteny.ContinualBackprop(0.0), example=example, seed=3)
    for _ in range(4):
        optimizer.zero_grad()
        model(example).square().mean().backward()
        optimizer.step()
        plastic.step()
    return plastic, optimizer, example


@pytest.mark.parametrize("make", [linear, convolutional])
@pytest.mark.parametrize("wrap", [new_weight_norm, old_weight_norm, doubled])
def test_a_replaced_unit_has_its_draw_and_leaves_all_else(make: Callable[[Wrap], nn.Sequential], wrap: Wrap) -> None:
    model = make(wrap)
    plastic, optimizer, _ = trained(model)
    group = plastic.view.groups[0]
    assert (group.name, len(plastic.view.groups)) == ("0", 2)
    before = [weight_of(model[place]).clone() for place in (0, 2, 4)]
    state = {name: optimizer.state[each]["exp_avg"].clone() for name, each in model.named_parameters()}
    units = torch.tensor([1, 6])
    reset_units(plastic.view, group, ChosenUnits((), units), step=9)
    drawn = group.initial[0].draw(
        plastic.view.seeds[None, None], 9, "0.weight", units[:, None], group.producers[0].fan_in
    )
    after = [weight_of(model[place]) for place in (0, 2, 4)]
    others = torch.ones(8, dtype=torch.bool)
    others[units] = False
    torch.testing.assert_close(after[0][units].flatten(1), drawn[:, 0].double(), rtol=1e-14, atol=0.0)
    assert torch.equal(after[0][others], before[0][others])
    assert torch.equal(after[2], before[2])
    columns = torch.zeros_like(before[1], dtype=torch.bool)
    if make is linear:
        columns[:, units] = True
    else:  # unit 1 is column 1 of the first half of rows, unit 6 column 2 of the second
        columns[:3, 1] = columns[3:, 2] = True
    assert bool((after[1][columns] == 0.0).all())
    torch.testing.assert_close(after[1][~columns], before[1][~columns], rtol=1e-14, atol=1e-16)
    assert wrap is not doubled or torch.equal(after[1][~columns], before[1][~columns])
    for name, parameter in model.named_parameters():
        moment, kept = optimizer.state[parameter]["exp_avg"], state[name].clone()
        if name.startswith("0."):
            kept[units] = 0.0
        elif name.startswith("2.") and kept.shape == columns.shape:  # v; the g of these rows keeps its state
            kept[columns] = 0.0
        assert torch.equal(moment, kept), name
    assert bool(state[next(iter(state))].abs().sum() > 0)


@pytest.mark.parametrize("wrap", [new_weight_norm, old_weight_norm])
def test_units_replaced_all_at_once_leave_a_network_that_still_learns(wrap: Wrap) -> None:
    model = linear(wrap)
    plastic, optimizer, example = trained(model)
    for group in reversed(plastic.view.groups):  # else the rows of layer 2 are drawn after its columns were cleared
        reset_units(plastic.view, group, ChosenUnits((), torch.arange(group.units)), step=9)
    assert bool((weight_of(model[2]) == 0.0).all())
    assert torch.equal(model(example), model.get_parameter("4.bias").expand(4, 2))
    for _ in range(3):
        optimizer.zero_grad()
        (model(example) - 1.0).square().mean().backward()
        optimizer.step()
        plastic.step()
    assert all(bool(torch.isfinite(each).all()) for each in model.parameters())
    assert bool((weight_of(model[2]) != 0.0).any())


def test_weight_normed_units_are_replaced_while_training_and_the_run_resumes() -> None:
    outcomes = []
    for pause in (False, True):
        model = linear(new_weight_norm)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        example = example_of(model).zero_()
        plastic = neoteny.attach(model, optimizer, FAST, neoteny.L2Init(1e-3), example=example, seed=1)
        generator = torch.Generator().manual_seed(0)
        for step in range(30):
            if pause and step == 20:
                kept = plastic.state_dict()
                plastic.detach()
                plastic = neoteny.attach(
                    model, optimizer, FAST, neoteny.L2Init(1e-3), example=example, seed=2, trained=True
                )
                plastic.load_state_dict(kept)
            optimizer.zero_grad()
            model(torch.randn(4, 5, generator=generator).double()).square().mean().backward()
            optimizer.step()
            plastic.step()
        assert min(plastic.replaced.values()) > 5
        outcomes.append([each.detach().clone() for each in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*outcomes, strict=True))
    assert "its other columns are kept up to rounding" in str(plastic.wiring)


@pytest.mark.parametrize(
    ("wrap", "reason"),
    [
        (parametrizations.spectral_norm, "computed by SpectralNorm: single rows and columns cannot be rewritten"),
        (parametrizations.orthogonal, "computed by Orthogonal"),
        (nn.utils.spectral_norm, "computed from other parameters"),
        (lambda layer: prune.random_unstructured(layer, "weight", 0.5), "computed from other parameters"),
        (lambda layer: parametrizations.weight_norm(layer, dim=1), "a new row moves all others"),
        (lambda layer: parametrize.register_parametrization(layer, "weight", OneWay()), "no right_inverse"),
        (lambda layer: parametrize.register_parametrization(layer, "bias", Doubled()), "its bias is computed"),
    ],
)
def test_weights_that_cannot_be_rewritten_unit_by_unit_are_left_out(wrap: Wrap, reason: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(wrap(nn.Linear(5, 8)), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    saved = {name: each.clone() for name, each in model.state_dict().items()}
    wiring = neoteny.trace(model, torch.randn(4, 5))
    assert [group.name for group in wiring] == ["2"]
    assert reason in wiring.left_out["0"]
    assert all(torch.equal(each, saved[name]) for name, each in model.state_dict().items())


def test_stacks_leave_computed_weights_out() -> None:
    nets = [nn.Sequential(old_weight_norm(nn.Linear(5, 8)), nn.ReLU(), nn.Linear(8, 2)) for _ in range(2)]
    methods = neoteny.methods.SGD(0.01), neoteny.ContinualBackprop(1e-3)
    with pytest.raises(ValueError, match="the weight of 0 is computed, and a stack rewrites plain weights only"):
        neoteny.stack(nets, *methods, example=torch.zeros(1, 5))


def test_a_transposed_convolution_with_weight_norm_is_cleared_by_its_lengths() -> None:
    torch.manual_seed(0)
    up = new_weight_norm(nn.ConvTranspose1d(6, 4, 4, 2, 1))  # its weight norm runs over all but the inputs
    model = nn.Sequential(nn.Conv1d(5, 6, 3), nn.ReLU(), up, nn.ReLU(), nn.Conv1d(4, 2, 1)).double()
    plastic, optimizer, example = trained(model)
    assert list(plastic.replaced) == ["0"]
    assert "a new row moves all others" in plastic.wiring.left_out["2"]
    before = weight_of(up).clone()
    reset_units(plastic.view, plastic.view.groups[0], ChosenUnits((), torch.tensor([1])), step=9)
    others = torch.arange(6) != 1
    assert bool((weight_of(up)[1] == 0.0).all())
    assert torch.equal(weight_of(up)[others], before[others])
    moment = optimizer.state[up.get_parameter("parametrizations.weight.original0")]["exp_avg"]
    assert bool((moment[1] == 0.0).all())
    assert bool((moment[others] != 0.0).all())
    optimizer.zero_grad()
    model(example).sum().backward()
    optimizer.step()
    assert bool((weight_of(up)[1] != 0.0).all())


@pytest.mark.parametrize("wrap", [new_weight_norm, doubled])
def test_a_fresh_copy_has_computed_weights_drawn_again(wrap: Wrap) -> None:
    model = linear(wrap)
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(5.0)
    before = weight_of(model[2]).clone()
    torch.manual_seed(1)
    redraw(model)
    after = weight_of(model[2])
    assert float(before.abs().max()) > 1.0
    assert 0.2 < float(after.abs().max()) <= 8**-0.5  # torch's own bound for eight inputs
    assert bool((after != before / 5.0).all())
