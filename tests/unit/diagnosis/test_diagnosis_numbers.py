"""diagnose: the numbers, on networks made by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny import metrics
from neoteny.diagnosis import measure as measuring
from neoteny.nets import MLP, ConvNet
from support.diagnosed_models import healthy, mlp
from support.wiring_models import ResNet


@pytest.mark.parametrize("dead", [0, 1, 7, 40])
def test_counts_dead_units(inputs: Tensor, dead: int) -> None:
    model = mlp(10, 40, 30, 2)
    with torch.no_grad():
        model.get_parameter("fc1.bias")[:dead] = -1e3
    found = neoteny.diagnose(model, inputs)
    assert found.layers[0].dead == dead
    assert found.layers[0].dead_share == dead / 40
    assert found.layers[0].saturated_share is None
    assert found.layers[0].fresh is not None
    assert found.layers[0].fresh.dead == 0


def test_agrees_with_the_metrics_on_activations_read_by_hand(inputs: Tensor) -> None:
    model = mlp(10, 40, 30, 2)
    first = model[:2](inputs)
    second = model[2:4](first)
    found = neoteny.diagnose(model, inputs, control=False)
    for layer, activations, name in zip(found.layers, (first, second), ("fc1", "fc2"), strict=True):
        assert layer.name == name
        assert layer.rows == len(inputs)
        assert layer.effective_rank == pytest.approx(float(metrics.effective_rank(activations)), rel=1e-9)
        assert layer.stable_rank == pytest.approx(float(metrics.stable_rank(activations)), rel=1e-9)
        assert layer.weight_magnitude == pytest.approx(
            float(model.get_parameter(f"{name}.weight").detach().abs().mean())
        )
        assert layer.fresh is None
    assert found.weight_magnitude == pytest.approx(float(metrics.weight_magnitude(model.parameters())))
    assert found.fresh_weight_magnitude is None


def test_the_control_is_a_reset_copy_under_a_fixed_seed(inputs: Tensor) -> None:
    model = mlp(10, 40, 30, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    found = neoteny.diagnose(model, inputs)
    again = neoteny.diagnose(model, inputs)
    assert found == again
    fresh = found.layers[0].fresh
    assert fresh is not None
    assert fresh.weight_magnitude == pytest.approx(0.5 / math.sqrt(10), rel=0.1)  # uniform within 1 / sqrt(inputs)


def test_a_fresh_model_can_be_the_control(inputs: Tensor) -> None:
    model, fresh = mlp(10, 40, 30, 2), mlp(10, 40, 30, 2)
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.mul_(0.1)
    found = neoteny.diagnose(model, inputs, control=fresh)
    assert found.fresh_weight_magnitude == pytest.approx(0.1 * found.weight_magnitude)
    assert sum("times as large" in sentence for sentence in found.verdict) == 2
    with pytest.raises(ValueError, match=r"same architecture.*'fc1.weight' has shape \(41, 10\)"):
        neoteny.diagnose(model, inputs, control=mlp(10, 41, 30, 2))


def test_declared_initial_distributions_are_the_control(inputs: Tensor) -> None:
    """Kaiming weights for tanh are 2.9 times torch's own; a network that says so is compared with its own kind."""
    torch.manual_seed(0)
    found = neoteny.diagnose(MLP(10, [50, 50], 2, activation="tanh"), inputs)
    for layer in found.layers:
        assert layer.fresh is not None
        assert layer.weight_magnitude == pytest.approx(layer.fresh.weight_magnitude, rel=0.1)
    assert healthy(found)


def test_a_channel_is_a_unit_and_every_position_a_row() -> None:
    torch.manual_seed(0)
    model = ConvNet()
    with torch.no_grad():
        model.get_parameter("conv2.bias")[:10] = -1e3
        model.get_parameter("conv3.bias")[:8] = -1e3
    images = torch.rand(40, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    found = neoteny.diagnose(model, images)
    layers = {layer.name: layer for layer in found.layers}
    assert {name: layer.units for name, layer in layers.items()} == {
        "conv1": 32, "conv2": 64, "conv3": 128, "fc1": 128, "fc2": 128
    }  # fmt: skip
    assert layers["conv2"].dead == 10
    assert layers["conv3"].dead >= 8
    assert layers["conv1"].rows == measuring.MOST_ROWS  # 40 * 14 * 14 positions
    assert layers["conv3"].rows == 40 * 2 * 2
    assert layers["fc1"].rows == 40
    assert any("conv2's units (10 of 64) never fire" in sentence for sentence in found.verdict)


def test_the_choice_of_rows_hardly_moves_a_rank() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 2, 3))
    images = torch.randn(40, 3, 16, 16)
    found = neoteny.diagnose(model, images, control=False)
    rows = model[:2](images).movedim(1, -1).flatten(0, -2)
    assert len(rows) > found.layers[0].rows == measuring.MOST_ROWS
    assert found.layers[0].effective_rank == pytest.approx(float(metrics.effective_rank(rows)), rel=0.02)


@pytest.mark.parametrize(
    ("act", "bounds"),
    [
        (nn.Tanh, (-1, 1)), (nn.Sigmoid, (0, 1)), (nn.Hardtanh, (-1, 1)), (nn.ReLU6, (0, 6)), (nn.Softsign, (-1, 1)),
        (nn.ReLU, None), (nn.LeakyReLU, None), (nn.GELU, None), (nn.SiLU, None), (nn.ELU, None), (nn.Softplus, None),
        (nn.Identity, None), (nn.Tanhshrink, None),
    ],
)  # fmt: skip
def test_bounded_activation_functions_are_told_by_trying(
    inputs: Tensor, act: type[nn.Module], bounds: tuple[float, float] | None
) -> None:
    model = mlp(10, 20, 2, act=act)
    with torch.no_grad():
        model.get_parameter("fc1.weight")[:5] = 0.0
        model.get_parameter("fc1.bias")[:5] = 1e3
    share = neoteny.diagnose(model, inputs).layers[0].saturated_share
    assert share == (None if bounds is None else 0.25)


@pytest.mark.parametrize("between", [nn.BatchNorm1d(20), nn.LayerNorm(20), nn.RMSNorm(20)])
def test_saturation_behind_a_norm(inputs: Tensor, between: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 20), between, nn.Tanh(), nn.Linear(20, 2))
    with torch.no_grad():
        if isinstance(between, nn.BatchNorm1d):
            between.bias[:4] = 1e3
    share = neoteny.diagnose(model, inputs).layers[0].saturated_share
    # A norm over units turns every constant into the same value: whether the function is bounded cannot be told.
    assert share == (0.2 if isinstance(between, nn.BatchNorm1d) else None)


def test_dead_units_are_read_before_a_batch_norm_that_hides_them(inputs: Tensor) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.BatchNorm1d(20), nn.Linear(20, 2))
    with torch.no_grad():
        model.get_parameter("0.bias")[:6] = -1e3
        model.get_parameter("2.bias")[:] = 0.5
    assert neoteny.diagnose(model, inputs).layers[0].dead == 6


def test_the_control_of_a_trained_batch_norm_has_seen_the_inputs() -> None:
    """An eval-mode batch norm with its first statistics does not normalise: deep fresh copies would look collapsed."""
    torch.manual_seed(0)
    model = ResNet()
    images = torch.randn(64, 3, 8, 8)
    untrained = neoteny.diagnose(model, images)
    for _ in range(60):
        model(images)
    found = neoteny.diagnose(model, images)
    for before, layer in zip(untrained.layers, found.layers, strict=True):
        assert layer.fresh is not None
        assert layer.effective_rank == pytest.approx(layer.fresh.effective_rank, rel=0.25)
        assert before.fresh is not None
        assert before.fresh.effective_rank < layer.fresh.effective_rank  # not settled: its model's are not either
    assert not any(sentence.startswith("Consider") for sentence in (*untrained.verdict, *found.verdict))


def test_the_incoming_weights_of_a_transposed_convolution_lie_along_its_second_axis() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConvTranspose2d(3, 8, 2, stride=2), nn.ReLU(), nn.Conv2d(8, 2, 1))
    found = neoteny.diagnose(model, torch.randn(4, 3, 5, 5))
    weight = model[0].weight
    assert isinstance(weight, Tensor)
    assert found.layers[0].weight_magnitude == pytest.approx(weight.abs().double().mean().item())
