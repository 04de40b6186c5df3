"""Resets in every kind of layer; which elements belong to a unit is found here by differentiation, not by layout."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.draws.initial import resolve
from neoteny.methods import SGD
from support.replaced_units import (
    chosen_units,
    incoming_elements,
    outgoing_elements,
    outputs_of,
    tensors_of,
    train_until_replaced,
)
from support.wiring_checks import checked

pytestmark = pytest.mark.usefixtures("double_precision")


class Conv1D(nn.Module):
    """A linear layer with a weight (in, out), as transformers has one for GPT-2."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf) * 0.02)
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)


LINE, IMAGE, VOLUME, TOKENS = (2, 7), (2, 4, 4), (2, 4, 5, 3), (5, 4)
# Layer 0 has six units, which layer 2 reads; the last number is the axis of the features.
MODELS: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...], int]] = {
    "conv 3d": (
        lambda: nn.Sequential(nn.Conv3d(2, 6, 3, padding=1), nn.ReLU(),
                              nn.Conv3d(6, 4, (3, 2, 1), stride=(2, 1, 1), padding=1, dilation=(1, 2, 1))), VOLUME, 1),
    "conv 3d groups circular": (
        lambda: nn.Sequential(nn.Conv3d(2, 6, 1, groups=2), nn.ReLU(),
                              nn.Conv3d(6, 4, 3, padding=1, padding_mode="circular", groups=2)), VOLUME, 1),
    "transposed 1d": (
        lambda: nn.Sequential(nn.ConvTranspose1d(2, 6, 3), nn.ReLU(),
                              nn.ConvTranspose1d(6, 4, 4, stride=2, padding=1)), LINE, 1),
    "transposed 2d": (
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 6, 2, stride=2), nn.ReLU(),
                              nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1)), IMAGE, 1),
    "transposed 2d groups": (
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 6, 3, groups=2), nn.ReLU(),
                              nn.ConvTranspose2d(6, 4, (3, 2), stride=(3, 1), groups=2, dilation=(2, 1))), IMAGE, 1),
    "transposed 3d": (
        lambda: nn.Sequential(nn.ConvTranspose3d(2, 6, 1), nn.ReLU(),
                              nn.ConvTranspose3d(6, 3, 2, stride=2, padding=1)), VOLUME, 1),
    "linear, input first": (lambda: nn.Sequential(Conv1D(6, 4), nn.GELU(), Conv1D(3, 6)), TOKENS, -1),
}  # fmt: skip
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
    "element-wise adam": lambda model: neoteny.optim.Adam(model.parameters(), lr=0.01),
}


def mean(values: Tensor, axis: int) -> Tensor:
    """Mean of each feature over examples and positions."""
    return values.movedim(axis, 0).flatten(1).mean(1)


def size(outputs: Tensor, _: Tensor | None = None) -> Tensor:
    return outputs.square().mean()


@pytest.mark.parametrize("name", MODELS)
def test_a_consumer_keeps_its_mean_over_all_positions(name: str) -> None:
    make, shape, axis = MODELS[name]
    model = make()
    x = torch.randn(8, *shape) + 0.5
    (before,) = outputs_of(model, x)
    train_until_replaced(model, x, torch.optim.SGD(model.parameters(), lr=0.0))
    (after,) = outputs_of(model, x)
    assert (after - before).abs().max() > 1e-3 * before.abs().max()
    torch.testing.assert_close(mean(after, axis), mean(before, axis), rtol=0, atol=1e-13)


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_exactly_the_elements_of_a_reset_unit_change(name: str, optimizer_name: str) -> None:
    make, shape, axis = MODELS[name]
    model = make()
    x = torch.randn(6, *shape)
    hidden = model[1](model[0](x)).detach()
    optimizer = OPTIMIZERS[optimizer_name](model)
    before: dict[str, Tensor] = {}
    plastic = train_until_replaced(model, x, optimizer, before=lambda: before.update(tensors_of(model, optimizer)))
    units = chosen_units(plastic)["0"]
    after = tensors_of(model, optimizer)
    rows, columns = incoming_elements(model[0], x, units, axis), outgoing_elements(model[2], hidden, units, axis)
    bias = torch.zeros(6, dtype=torch.bool).index_fill(0, torch.tensor(units), True)
    everything = torch.ones_like(model.get_parameter("2.bias"), dtype=torch.bool)  # compensation
    may_change = {"0.weight": rows, "0.bias": bias, "2.weight": columns, "2.bias": everything}
    assert rows.sum() == model.get_parameter("0.weight").numel() * len(units) / 6
    assert columns.sum() == model.get_parameter("2.weight").numel() * len(units) / 6
    assert (after["0.weight"][rows] != before["0.weight"][rows]).all()
    assert not after["2.weight"][columns].any()
    for key, value in after.items():
        parameter, _, state = key.partition("/")
        inside = may_change[parameter]
        assert torch.equal(value[~inside], before[key][~inside]), key
        if state and parameter != "2.bias":
            assert not value[inside].any(), key
            assert before[key][inside].any(), key


class Own(nn.Linear):
    """A linear layer that says how to compute itself."""

    def forward(self, input: Tensor) -> Tensor:
        return input @ self.weight.T + self.bias


CUT: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...], int]] = {
    **{name: case for name, case in MODELS.items() if name != "linear, input first"},
    "linear": (lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), (4,), -1),
    "linear with a forward of its own": (lambda: nn.Sequential(Own(4, 6), nn.ReLU(), Own(6, 3)), (4,), -1),
    "batch norm": (lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3, bias=False)), (4,), -1),
}


@pytest.mark.parametrize("name", CUT)
def test_layers_that_were_cut_in_place_train_as_layers_of_that_size(name: str) -> None:
    """After a cut the weight has its size alone; `out_features` and the like still say what it was."""
    make, shape, _ = CUT[name]
    model = make()
    cut = copy.deepcopy(model)
    for layer in cut:
        for size_of in ("in_features", "out_features", "in_channels", "out_channels", "num_features"):
            if hasattr(layer, size_of):
                setattr(layer, size_of, 12)
    x = torch.randn(6, *shape)
    for each in (model, cut):
        plastic = train_until_replaced(each, x, torch.optim.SGD(each.parameters(), lr=0.01))
        assert plastic.state_dict()["groups"] == {"0": 6}
    for key, value in model.state_dict().items():
        assert torch.equal(cut.state_dict()[key], value), key
    assert neoteny.diagnose(cut, x, control=False).layers == neoteny.diagnose(model, x, control=False).layers


@pytest.mark.parametrize("name", ["transposed 2d groups", "conv 3d", "linear, input first"])
def test_stacked_runs_do_what_single_runs_do(name: str) -> None:
    make, shape, _ = MODELS[name]
    x = torch.randn(2, 4, *shape)
    models = [make() for _ in range(2)]
    singles = copy.deepcopy(models)
    method = neoteny.ContinualBackprop(0.4, 2, decay_rate=0.8)
    stack = neoteny.stack(models, SGD(0.01), method, seeds=[3, 4], example=x[0], loss=size)
    for _ in range(4):
        stack.step(x, torch.zeros(2, 4))
    for run, model in enumerate(singles):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        plastic = neoteny.attach(model, optimizer, method, example=x[run], seed=3 + run)
        for _ in range(4):
            optimizer.zero_grad()
            size(model(x[run])).backward()
            optimizer.step()
            plastic.step()
        assert plastic.replaced["0"] > 0
        for key, value in model.state_dict().items():
            torch.testing.assert_close(stack.view.tensor(key)[run], value, rtol=0, atol=1e-12)


def test_a_transposed_convolution_is_drawn_as_torch_draws_it() -> None:
    layer = nn.ConvTranspose2d(40, 30, 3, groups=10)
    law = resolve(layer, "default")
    weight = layer.weight.detach()
    assert law.std == pytest.approx(weight.square().mean().sqrt().item(), rel=0.05)
    assert weight.abs().max() < law.std * 3**0.5

    class Own(nn.ConvTranspose2d):
        def reset_parameters(self) -> None:
            torch.nn.init.normal_(self.weight)
            with torch.no_grad():  # a row of one size each
                self.weight.mul_(0).add_(torch.arange(self.weight.shape[1]).view(1, -1, 1, 1) + 1.0)

    rows = torch.tensor([[0, 3, 5]])
    drawn = resolve(Own(4, 6, 2, groups=2), "default").draw(torch.tensor([1]), 1, "w", rows, 8)
    assert drawn[0, :, 0].tolist() == [1.0, 1.0, 3.0]


def test_three_kinds_in_one_generator() -> None:
    model = nn.Sequential(
        nn.ConvTranspose2d(3, 8, 4, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 4, 2, 1, groups=2), nn.ReLU(),
        nn.Conv2d(4, 6, 3), nn.ReLU(), nn.ConvTranspose2d(6, 1, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip
    wiring = checked(model, torch.randn(2, 3, 1, 1))
    assert [(group.name, group.units, [port.module for port in group.consumers]) for group in wiring] == [
        ("0", 8, ["3"]),
        ("3", 4, ["5"]),
        ("5", 6, ["7"]),
    ]


def test_a_gated_unit_is_two_rows_of_one_layer() -> None:
    model = nn.Sequential(nn.Linear(4, 12), nn.GLU(), nn.Linear(6, 3))
    x = torch.randn(16, 4) + 0.5
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    before: dict[str, Tensor] = {}
    plastic = train_until_replaced(model, x, optimizer, before=lambda: before.update(tensors_of(model, optimizer)))
    after, units = tensors_of(model, optimizer), chosen_units(plastic)["0"]
    rows = torch.zeros(12, dtype=torch.bool)
    rows[[*units, *(unit + 6 for unit in units)]] = True
    for key, value in after.items():
        if key.startswith("0."):
            assert torch.equal(value[~rows], before[key][~rows]), key
            assert (value[rows] != before[key][rows]).all(), key
            assert key == "0.weight" or not value[rows].any(), key
    assert len(after["0.weight"][rows].unique()) == 4 * 2 * len(units)  # both rows are drawn, not one twice
    assert not after["2.weight"][:, units].any()
    kept = [unit for unit in range(6) if unit not in units]
    assert torch.equal(after["2.weight"][:, kept], before["2.weight"][:, kept])
    still = nn.Sequential(nn.Linear(4, 12), nn.GLU(), nn.Linear(6, 3))
    (expected,) = outputs_of(still, x)
    train_until_replaced(still, x, torch.optim.SGD(still.parameters(), lr=0.0))
    torch.testing.assert_close(outputs_of(still, x)[0].mean(0), expected.mean(0), rtol=0, atol=1e-14)


@pytest.mark.parametrize("norm", [nn.LayerNorm, lambda width: nn.GroupNorm(2, width), nn.RMSNorm])
def test_behind_a_coupling_norm_neighbours_keep_their_parameters_and_move_little(
    norm: Callable[[int], nn.Module],
) -> None:
    moved = []
    for width in (16, 256):
        model = nn.Sequential(nn.Linear(8, width), norm(width), nn.ReLU(), nn.Linear(width, 3))
        x, still = torch.randn(32, 8), torch.optim.SGD(model.parameters(), lr=0.0)
        before, hidden = tensors_of(model, still), model[:3](x).detach()
        plastic = train_until_replaced(model, x, still, rate=1.4 / width)
        (unit,) = chosen_units(plastic)["0"]
        assert "norms that couple units, 1: a reset moves the neighbours" in str(plastic)
        assert not model.get_parameter("3.weight")[:, unit].any()
        others = torch.arange(width) != unit
        for name in ("0.weight", "0.bias", "1.weight"):
            assert torch.equal(model.get_parameter(name)[others], before[name][others]), name
        assert torch.equal(model.get_parameter("3.weight")[:, others], before["3.weight"][:, others])
        moved.append((model[:3](x) - hidden)[:, others].abs().mean().item())
    assert 0 < moved[1] < moved[0] / 4
