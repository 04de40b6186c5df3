"""What a reset does and does not do: consumers keep their mean, new units are silent, nothing else moves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neoteny
from support.replaced_units import chosen_units, means, outputs_of, shift_norms, tensors_of, train_until_replaced

pytestmark = pytest.mark.usefixtures("double_precision")


class Heads(nn.Module):
    """Two heads on one trunk, one of them behind a flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Linear(5 * 16, 2)
        self.trunk = nn.Conv2d(2, 5, 3, padding=1)
        self.policy = nn.Conv2d(5, 3, 3, stride=2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = F.relu(self.trunk(x))
        return self.policy(hidden), self.value(hidden.flatten(1))


class Concatenated(nn.Module):
    """Two branches of different widths, concatenated in front of one consumer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(11, 3)
        self.left = nn.Linear(4, 5)
        self.right = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([torch.tanh(self.right(x)), F.relu(self.left(x))], dim=-1))


class ConcatenatedImages(nn.Module):
    """Two convolutional branches, concatenated along channels, pooled and flattened."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Conv2d(2, 4, 3, padding=1)
        self.right = nn.Conv2d(2, 3, 1)
        self.head = nn.Linear(7 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        joined = torch.cat([F.relu(self.left(x)), torch.sigmoid(self.right(x))], dim=1)
        return self.head(F.avg_pool2d(joined, 2).flatten(1))


def conv(*modules: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), *copy.deepcopy(modules)).double()


VECTOR, IMAGE, LINE = (4,), (2, 4, 4), (2, 7)
# Every output of these models is a pre-activation of a consumer of hidden units.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), VECTOR),
    "conv stride padding": (conv(nn.Conv2d(6, 4, 3, stride=2, padding=1)), IMAGE),
    "conv uneven": (conv(nn.Conv2d(6, 4, (3, 2), stride=(1, 2), padding=(2, 0))), IMAGE),
    "conv dilation": (conv(nn.Conv2d(6, 4, 3, dilation=2, padding=2)), IMAGE),
    "conv circular": (conv(nn.Conv2d(6, 4, 3, padding=1, stride=2, padding_mode="circular")), IMAGE),
    "conv reflect": (conv(nn.Conv2d(6, 4, 3, padding=1, padding_mode="reflect")), IMAGE),
    "conv same": (conv(nn.Conv2d(6, 4, (1, 3), padding="same")), IMAGE),
    "conv groups": (conv(nn.Conv2d(6, 4, 3, padding=1, groups=2)), IMAGE),
    "conv depthwise": (conv(nn.Conv2d(6, 12, 3, padding=1, groups=6)), IMAGE),
    "conv pool": (conv(nn.MaxPool2d(2), nn.Conv2d(6, 4, 2)), IMAGE),
    "conv flatten": (conv(nn.Flatten(), nn.Linear(96, 3)), IMAGE),
    "conv pool flatten": (conv(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(24, 3)), IMAGE),
    "conv norm": (conv(nn.BatchNorm2d(6), nn.Conv2d(6, 4, 3, padding=1)), IMAGE),
    "conv norm flatten": (conv(nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(96, 3)), IMAGE),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(2, 5, 3), nn.ELU(), nn.Conv1d(5, 3, 2, stride=2, padding=1)), LINE),
    "norm after": (lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.Linear(6, 3)), VECTOR),
    "norm before": (lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)), VECTOR),
    "two heads": (Heads, IMAGE),
    "concatenated": (Concatenated, VECTOR),
    "concatenated images": (ConcatenatedImages, IMAGE),
}


# ----------------------------------------------------------------------------------------------- mean pre-activation


@pytest.mark.parametrize("name", MODELS)
def test_compensation_keeps_the_mean_pre_activation_of_every_consumer(name: str) -> None:
    make, shape = MODELS[name]
    model = make()
    shift_norms(model)
    x = torch.randn(16, *shape) + 0.5
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    before = means(outputs_of(model, x))
    train_until_replaced(model, x, still)
    after = means(outputs_of(model, x))
    for mine, theirs in zip(after, before, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_without_compensation_the_mean_pre_activation_moves(name: str) -> None:
    make, shape = MODELS[name]
    model = make()
    shift_norms(model)
    x = torch.randn(16, *shape) + 0.5
    before = means(outputs_of(model, x))
    train_until_replaced(model, x, torch.optim.SGD(model.parameters(), lr=0.0), compensate=False)
    after = means(outputs_of(model, x))
    assert all((mine - theirs).abs().max() > 1e-3 for mine, theirs in zip(after, before, strict=True))


def test_compensation_uses_the_running_mean_of_changing_data() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    plastic = neoteny.attach(
        model, optimizer, neoteny.ContinualBackprop(0.5, 4, 0.8), example=torch.zeros(1, 4), seed=1
    )
    old = copy.deepcopy(model)
    weighted, total = torch.zeros(6), 0.0
    for _ in range(5):
        x = torch.randn(3, 4)
        model(x).sum().backward()
        optimizer.step()
        plastic.step()
        weighted = 0.8 * weighted + 0.2 * F.relu(old[0](x)).mean(0)
        total = 0.8 * total + 0.2
    units = chosen_units(plastic)["0"]
    expected = old.get_parameter("2.bias") + old.get_parameter("2.weight")[:, units] @ (weighted / total)[units]
    torch.testing.assert_close(model[2].bias, expected, rtol=0, atol=1e-14)


def test_compensation_averages_over_all_passes_since_the_last_tick() -> None:
    model = nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x = torch.randn(12, 2, 4, 4)
    before = means(outputs_of(model, x))
    plastic = neoteny.attach(model, optimizer, neoteny.ContinualBackprop(0.5, 2, 0.8), example=x, seed=1)
    for _ in range(3):
        for part in (x[:1], x[1:8], x[8:]):
            model(part).sum().backward()
        optimizer.step()
        plastic.step()
    assert chosen_units(plastic)["0"]
    torch.testing.assert_close(means(outputs_of(model, x)), before, rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------------------------------- silence


@pytest.mark.parametrize("name", MODELS)
def test_the_output_does_not_depend_on_a_new_units_incoming_weights(name: str) -> None:
    make, shape = MODELS[name]
    model = make()
    x = torch.randn(8, *shape)
    plastic = train_until_replaced(model, x, torch.optim.SGD(model.parameters(), lr=0.01))
    before = outputs_of(model, x)
    assert plastic.wiring is not None
    with torch.no_grad():
        for group in plastic.wiring.groups:
            units = chosen_units(plastic)[group.name]
            for port in (*group.producers, *group.norms):
                weight = model.get_parameter(f"{port.module}.weight")
                weight[units] += torch.randn_like(weight[units])
                model.get_parameter(f"{port.module}.bias")[units] += 1.0
    torch.testing.assert_close(outputs_of(model, x), before, rtol=0, atol=1e-14)


def test_new_incoming_weights_come_from_the_layers_initial_distribution() -> None:
    model = nn.Sequential(nn.Linear(50, 400), nn.ReLU(), nn.Linear(400, 1))
    plastic = train_until_replaced(model, torch.randn(2, 50), torch.optim.SGD(model.parameters(), lr=0.0), rate=1.0)
    assert chosen_units(plastic)["0"] == list(range(400))
    bound = 1 / 50**0.5
    weight = model.get_parameter("0.weight").detach()
    assert weight.abs().max() < bound
    assert abs(weight.mean()) < 5 * bound / 3**0.5 / weight.numel() ** 0.5
    assert abs(weight.std() / (bound / 3**0.5) - 1) < 0.02


# ------------------------------------------------------------------------------------------- exactly these tensors


# For each model: group -> (producer, norms, {consumer: columns per unit}); written by hand, not traced.
Wiring = dict[str, tuple[list[str], dict[str, int]]]
WIRED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Wiring]] = {
    "three layers": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.ReLU(),
                              nn.Linear(4, 2)),
        VECTOR,
        {"0": ([], {"2": 1}), "2": ([], {"4": 1}), "4": ([], {"6": 1})},
    ),
    "no biases": (
        lambda: nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 5, bias=False), nn.ReLU(),
                              nn.Linear(5, 2, bias=False)),
        VECTOR,
        {"0": ([], {"2": 1}), "2": ([], {"4": 1})},
    ),
    "conv flatten": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, stride=2), nn.ReLU(),
                              nn.Flatten(), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)),
        IMAGE,
        {"0": ([], {"2": 1}), "2": ([], {"5": 1}), "5": ([], {"7": 1})},
    ),
    "conv groups": (
        lambda: nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 3, groups=2), nn.ReLU(),
                              nn.Flatten(), nn.Linear(16, 2)),
        IMAGE,
        {"0": ([], {"2": 1}), "2": ([], {"5": 4})},
    ),
    "norms": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(),
                              nn.BatchNorm1d(5), nn.Linear(5, 2)),
        VECTOR,
        {"0": (["1"], {"3": 1}), "3": (["5"], {"6": 1})},
    ),
    "two heads": (Heads, IMAGE, {"trunk": ([], {"policy": 1, "value": 16})}),
}  # fmt: skip
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, amsgrad=True),
    "element-wise adam": lambda parameters: neoteny.optim.Adam(parameters, lr=0.01),
}
FRESH = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("name", WIRED)
def test_everything_of_a_reset_unit_is_reset_and_nothing_else_changes(name: str, optimizer_name: str) -> None:
    make, shape, wiring = WIRED[name]
    model = make()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    shift_norms(model)
    before: dict[str, Tensor] = {}
    plastic = train_until_replaced(
        model, torch.randn(8, *shape), optimizer, rate=0.4, before=lambda: before.update(tensors_of(model, optimizer))
    )
    after = tensors_of(model, optimizer)
    assert set(plastic.replaced) == set(wiring)
    may_change = {key: torch.zeros(value.shape, dtype=torch.bool) for key, value in after.items()}
    rewritten: dict[str, Tensor] = {}  # fresh incoming rows may overlap what a neighbouring layer's reset zeroed

    for group, (norms, consumers) in wiring.items():
        units = chosen_units(plastic)[group]
        for part in ("weight", "bias"):
            for key in after:
                if key.split("/")[0] == f"{group}.{part}":
                    may_change[key][units] = True
                    if "/" in key or part == "bias":
                        assert not after[key][units].any(), key
        rewritten[group] = after[f"{group}.weight"][units]
        assert (rewritten[group] != before[f"{group}.weight"][units]).all()
        for norm in norms:
            for part, value in FRESH.items():
                for key in after:
                    if key.split("/")[0] == f"{norm}.{part}":
                        may_change[key][units] = True
                        assert (after[key][units] == (0.0 if "/" in key else value)).all(), key
        for consumer, repeat in consumers.items():
            module, weight = model.get_submodule(consumer), model.get_parameter(f"{consumer}.weight")
            rows_reset = chosen_units(plastic).get(consumer, [])
            if f"{consumer}.bias" in after:
                may_change[f"{consumer}.bias"][:] = True  # compensation
            groups = getattr(module, "groups", 1)
            outputs, width = weight.shape[0] // groups, weight.shape[1]
            for unit in units:
                block = unit * repeat // width
                rows = slice(block * outputs, (block + 1) * outputs)
                columns = slice(unit * repeat - block * width, (unit + 1) * repeat - block * width)
                for key in after:
                    if key.split("/")[0] == f"{consumer}.weight":
                        may_change[key][rows, columns] = True
                        kept = torch.ones(weight.shape[0], dtype=torch.bool)
                        if "/" not in key:
                            kept[rows_reset] = False  # a new unit of the next layer has new incoming weights
                        inside = torch.zeros_like(kept)
                        inside[rows] = True
                        assert not after[key][kept & inside][:, columns].any(), key
    for key, value in after.items():
        outside = ~may_change[key]
        assert torch.equal(value[outside], before[key][outside]), key


def test_a_consumer_without_bias_is_not_compensated_and_the_printout_says_so() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3, bias=False))
    plastic = train_until_replaced(model, torch.randn(4, 4), torch.optim.SGD(model.parameters(), lr=0.0))
    assert not model.get_parameter("2.weight")[:, chosen_units(plastic)["0"]].any()
    assert "no bias to compensate in 2" in str(plastic)


def test_a_simultaneous_reset_of_adjacent_layers_compensates_each_from_its_own_old_means() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    old = copy.deepcopy(model)
    x = torch.randn(16, 4)
    plastic = train_until_replaced(model, x, torch.optim.SGD(model.parameters(), lr=0.0))
    first, second = (chosen_units(plastic)[name] for name in ("0", "2"))
    with torch.no_grad():
        h1 = F.relu(old[0](x)).mean(0)
        h2 = F.relu(old[2](F.relu(old[0](x)))).mean(0)
        bias = old.get_parameter("2.bias") + old.get_parameter("2.weight")[:, first] @ h1[first]
        bias[second] = 0.0
        torch.testing.assert_close(model[2].bias, bias, rtol=0, atol=1e-14)
        torch.testing.assert_close(
            model.get_parameter("4.bias"),
            old.get_parameter("4.bias") + old.get_parameter("4.weight")[:, second] @ h2[second],
            rtol=0,
            atol=1e-14,
        )
        kept = [unit for unit in range(5) if unit not in second]
        assert not model.get_parameter("2.weight")[kept][:, first].any()
        assert model.get_parameter("2.weight")[
            second
        ].all()  # the new units' own incoming weights, those from new units included
        assert not model.get_parameter("4.weight")[:, second].any()
