"""Resets and projections of weights on convolutions: taps, groups, transposed layers, memory layouts, flattening."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import (
    DASH,
    FIRE,
    SGD,
    HardReset,
    NormalizeAndProject,
    PlasticityInjection,
    SoftShrinkAndPerturb,
    WeightClipping,
)
from neoteny.methods.fire import newton_schulz
from reference import dash, fire, projections

CHANNELS_LAST = torch.channels_last


def images(seed: int = 0, memory_format: torch.memory_format = torch.contiguous_format) -> Any:
    """conv (3 x 2 taps), norm, conv, flatten, linear: nine columns per channel of the second convolution."""
    torch.manual_seed(seed)
    layers = [nn.Conv2d(2, 4, (3, 2)), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 2), nn.ReLU(), nn.Flatten()]
    model: Any = nn.Sequential(*layers, nn.Linear(27, 2)).double()
    return model.to(memory_format=memory_format)


def pictures(seed: int = 0) -> Tensor:
    return torch.randn(5, 2, 6, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def attach(model: nn.Module, method: Any, lr: float = 0.05) -> tuple[Any, neoteny.Attachment]:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return optimizer, neoteny.attach(model, optimizer, method, seed=4)


def update(model: nn.Module, optimizer: Any, plastic: neoteny.Attachment) -> None:
    optimizer.zero_grad()
    model(pictures()).square().mean().backward()
    optimizer.step()
    plastic.step()


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, CHANNELS_LAST], ids=["contiguous", "channels_last"])
class TestInAConvolutionalNetwork:
    def test_fire_takes_each_tap_by_itself(self, memory_format: torch.memory_format) -> None:
        model = images(memory_format=memory_format)
        expected = {
            name: fire.orthogonalised(model.get_parameter(name).detach().numpy().copy(), 10)
            for name in ("0.weight", "3.weight", "6.weight")
        }
        attach(model, FIRE())[1].task_boundary()
        for name, weight in expected.items():
            np.testing.assert_allclose(model.get_parameter(name).detach().numpy(), weight, rtol=1e-10, atol=1e-13)

    def test_dash_takes_each_kernel_by_itself(self, memory_format: torch.memory_format) -> None:
        model = images(memory_format=memory_format)
        data = [(pictures(seed), torch.zeros(5, 2, dtype=torch.float64)) for seed in (1, 2, 3)]
        gradients: list[dict[str, np.ndarray]] = []
        statistics = {name: value.clone() for name, value in model.named_buffers()}
        for x, y in data:
            found = torch.autograd.grad((model(x) - y).square().mean(), list(model.parameters()))
            gradients.append(
                {name: each.numpy() for (name, _), each in zip(model.named_parameters(), found, strict=True)}
            )
        for name, value in model.named_buffers():
            value.copy_(statistics[name])
        before = {name: value.detach().numpy().copy() for name, value in model.named_parameters()}
        _, plastic = attach(model, DASH(0.2, 0.1))
        plastic.task_boundary(data, loss=lambda outputs, targets: (outputs - targets).square().mean())
        for name, value in model.named_parameters():
            expected = before[name]
            if not name.startswith("1."):  # the norm is kept
                expected = dash.shrunk(expected, [each[name] for each in gradients], 0.2, 0.1)
            np.testing.assert_allclose(value.detach().numpy(), expected, rtol=1e-10, atol=1e-13, err_msg=name)

    def test_clipping_counts_taps_as_inputs(self, memory_format: torch.memory_format) -> None:
        model = images(memory_format=memory_format)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(30.0)
        optimizer, plastic = attach(model, WeightClipping(2.0), lr=0.0)
        before = {name: value.detach().numpy().copy() for name, value in model.named_parameters()}
        update(model, optimizer, plastic)
        for layer, inputs in (("0", 12), ("3", 16), ("6", 27)):
            for part in ("weight", "bias"):
                expected = projections.clipped(before[f"{layer}.{part}"], 2.0, inputs)
                np.testing.assert_allclose(
                    model.get_parameter(f"{layer}.{part}").detach().numpy(), expected, rtol=1e-15
                )

    def test_projection_takes_the_whole_kernel(self, memory_format: torch.memory_format) -> None:
        model = images(memory_format=memory_format)
        norms = [projections.frobenius(model[place].weight.detach().numpy()) for place in (0, 3)]
        optimizer, plastic = attach(model, NormalizeAndProject(presume_norms=True))
        for _ in range(3):
            update(model, optimizer, plastic)
        after = [projections.frobenius(model[place].weight.detach().numpy()) for place in (0, 3)]
        assert after == pytest.approx(norms, rel=1e-12)

    @pytest.mark.parametrize("method", [HardReset("all"), SoftShrinkAndPerturb(0.5)], ids=["hard", "soft"])
    def test_fresh_weights_do_not_depend_on_the_layout(
        self, method: HardReset | SoftShrinkAndPerturb, memory_format: torch.memory_format
    ) -> None:
        plain, other = images(), images(memory_format=memory_format)
        for model in (plain, other):
            optimizer, plastic = attach(model, method)
            update(model, optimizer, plastic)
            plastic.task_boundary()
        for ours, theirs in zip(plain.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
            assert ours.shape == theirs.shape
        assert float(plain[0].weight.detach().abs().max()) <= 1 / math.sqrt(12)

    def test_a_head_behind_a_flatten_is_injected(self, memory_format: torch.memory_format) -> None:
        model = images(memory_format=memory_format).eval()
        before = model(pictures())
        attach(model, PlasticityInjection())[1].task_boundary()
        assert torch.equal(model(pictures()), before)


def layer_and_reference(layer: Any) -> tuple[Tensor, Tensor]:
    """A weight after FIRE by the method, and group by group, tap by tap, by hand: each (out, in) of its group."""
    model: Any = nn.Sequential(layer).double()
    old = model[0].weight.detach().clone()
    attach(model, FIRE(6))[1].task_boundary()
    groups: int = layer.groups
    expected = old.clone()
    size = len(old) // groups
    for group in range(groups):
        for tap in range(old.shape[2]):
            matrix = old[group * size : (group + 1) * size, :, tap]
            matrix = matrix.T if layer.transposed else matrix
            new = newton_schulz(matrix, 6) * math.sqrt(matrix.shape[0] / matrix.shape[1]) / old.shape[2]
            expected[group * size : (group + 1) * size, :, tap] = new.T if layer.transposed else new
    return model[0].weight.detach(), expected


@pytest.mark.parametrize(
    "layer",
    [nn.Conv1d(6, 4, 3, groups=2), nn.ConvTranspose1d(4, 6, 3, groups=2), nn.ConvTranspose1d(3, 5, 2)],
    ids=["groups", "transposed groups", "transposed"],
)
def test_fire_takes_groups_and_transposed_convolutions_as_matrices_from_inputs_to_outputs(layer: Any) -> None:
    torch.testing.assert_close(*layer_and_reference(layer), rtol=1e-10, atol=1e-13)


def test_the_bound_of_a_transposed_convolution_counts_its_inputs() -> None:
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(8, 4, 3, groups=2)
    model: Any = nn.Sequential(layer, nn.Flatten())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(9.0)
    optimizer, plastic = attach(model, WeightClipping(1.0), lr=0.0)
    model(torch.zeros(1, 8, 2, 2)).sum().backward()
    optimizer.step()
    plastic.step()
    for parameter in model.parameters():
        torch.testing.assert_close(
            parameter.detach(), torch.full_like(parameter, 1 / 6)
        )  # 4 inputs of the group, 9 taps


def test_a_stack_of_convolutional_networks_is_orthogonalised_run_by_run() -> None:
    models = [images(seed) for seed in range(3)]
    runs = neoteny.stack(models, SGD(0.05), FIRE())
    runs.task_boundary()
    for run, model in enumerate(models):
        attach(model, FIRE())[1].task_boundary()
        for ours, theirs in zip(runs.module(run).parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-13)
