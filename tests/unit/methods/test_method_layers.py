"""The new methods on convolutions and norms: which elements of such layers they read, pull or reset."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import HareAndTortoise, L2Init, Method, ReDo, Spectral
from reference import redo, spectral

pytestmark = pytest.mark.usefixtures("double_precision")


class ConvNet(nn.Module):
    """conv, norm, relu, flatten, linear: 3 channels of 4 positions each."""

    def __init__(self, norm: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 2)
        self.norm = nn.BatchNorm2d(3) if norm else nn.Identity()
        self.out = nn.Linear(12, 2)

    def hidden(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(x).flatten(1))


def attached(model: ConvNet, method: Method, step_size: float = 0.0) -> tuple[torch.optim.SGD, neoteny.Attachment]:
    optimizer = torch.optim.SGD(model.parameters(), lr=step_size)
    plastic = neoteny.attach(model, optimizer, method, example=torch.zeros(2, 1, 3, 3), seed=1, trained=True)
    return optimizer, plastic


def update(model: ConvNet, optimizer: torch.optim.SGD, plastic: neoteny.Attachment, x: Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    plastic.step()


def test_redo_averages_over_positions_and_cuts_all_columns_of_a_flattened_channel() -> None:
    model = ConvNet(norm=False)
    bias = model.conv.bias
    assert bias is not None
    with torch.no_grad():
        bias.copy_(torch.tensor([2.0, -3.0, 0.2]))  # the second channel is silent
    x = 0.1 * torch.randn(5, 1, 3, 3)
    h = model.hidden(x).detach()
    per_position = h.movedim(1, -1).reshape(-1, 3).numpy()  # (examples * positions, channels)
    threshold = float(np.mean(np.sort(redo.scores(per_position))[1:]))  # between the second and the third
    expected = redo.dormant_units(per_position, threshold)
    assert len(expected) == 2
    optimizer, plastic = attached(model, ReDo(period=1, threshold=threshold))
    start = model.out.weight.detach().clone()
    update(model, optimizer, plastic, x)
    assert plastic.replaced == {"conv": 2}
    for channel in range(3):
        columns = slice(4 * channel, 4 * channel + 4)  # channel-first: contiguous
        cut = torch.zeros(2, 4) if channel in expected else start[:, columns]
        assert torch.equal(model.out.weight.detach()[:, columns], cut)
    assert [float(bias[channel].detach()) for channel in expected] == [0.0, 0.0]


def test_redo_makes_the_norm_of_a_reset_unit_new() -> None:
    model = ConvNet()
    with torch.no_grad():
        model.norm.bias.copy_(torch.tensor([0.5, -9.0, 0.5]))  # pyright: ignore[reportCallIssue]
        model.norm.weight.fill_(1.7)  # pyright: ignore[reportCallIssue]
    optimizer, plastic = attached(model, ReDo(period=1, threshold=0.0))
    update(model, optimizer, plastic, torch.randn(5, 1, 3, 3))
    assert plastic.replaced == {"conv": 1}
    state = model.state_dict()
    found = {key: float(state[f"norm.{key}"][1]) for key in ("weight", "bias", "running_mean", "running_var")}
    assert found == {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
    assert float(state["norm.weight"][0]) == 1.7


def test_spectral_takes_a_convolution_as_a_matrix_and_pulls_gains_to_one() -> None:
    model = ConvNet()
    with torch.no_grad():
        model.norm.weight.copy_(torch.tensor([1.5, 1.0, -2.0]))  # pyright: ignore[reportCallIssue]
        model.norm.bias.copy_(torch.tensor([0.3, 0.2, -0.5]))  # pyright: ignore[reportCallIssue]
    optimizer, plastic = attached(model, Spectral(0.1))
    x = torch.randn(5, 1, 3, 3)
    for _ in range(300):
        update(model, optimizer, plastic, x)
    with_term = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    plastic.detach()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        array = parameter.detach().numpy()
        if name == "norm.weight":
            expected = spectral.gain_gradient(array)
        elif name == "norm.bias":
            expected = np.zeros_like(array)
        elif name.endswith("bias"):
            expected = spectral.bias_gradient(array, 2, "power")
        else:
            matrix = array.reshape(len(array), -1)
            left, values, right = np.linalg.svd(matrix)
            expected = spectral.weight_gradient(float(values[0]), left[:, 0], right[0], 2).reshape(array.shape)
        added = (with_term[name] - parameter.grad).numpy()
        np.testing.assert_allclose(added, 0.1 * expected, rtol=1e-6, atol=1e-8, err_msg=name)


def test_l2_init_leaves_norms_alone() -> None:
    model = ConvNet()
    optimizer, plastic = attached(model, L2Init(0.5))
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    x = torch.randn(5, 1, 3, 3)
    update(model, optimizer, plastic, x)
    with_term = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    plastic.detach()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        pull = 0.0 if name.startswith("norm") else 0.5 * (parameter.detach() - start[name])
        torch.testing.assert_close(with_term[name], parameter.grad + pull)


def test_hare_and_tortoise_averages_running_statistics_too() -> None:
    model = ConvNet()
    optimizer, plastic = attached(model, HareAndTortoise(decay=0.5, period=0), step_size=0.1)
    slow = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(5):
        update(model, optimizer, plastic, torch.randn(5, 1, 3, 3))
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                slow[name] = 0.5 * slow[name] + 0.5 * value
    with plastic.evaluating():
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                torch.testing.assert_close(value, slow[name])
