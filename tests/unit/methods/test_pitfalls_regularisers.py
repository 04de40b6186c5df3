"""Pitfalls of other code in this field: regularisers of weights. Each test fails on one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import L2Init, Method, Parseval, ReDo, Spectral, Wasserstein
from reference import parseval
from support.regularised import Training, mlp

pytestmark = pytest.mark.usefixtures("double_precision")

REGULARISERS: list[Method] = [L2Init(0.1), L2Init(0.1, norm="l1"), Wasserstein(0.1), Parseval(0.1), Spectral(0.1)]


# --------------------------------------------------------------------- the anchor is captured after the first update


@pytest.mark.parametrize("method", [L2Init(0.5), Wasserstein(0.5)], ids=["L2-init", "Wasserstein"])
def test_the_anchor_is_from_before_the_first_update(method: Method) -> None:
    run = Training(mlp(), method, step_size=1.0)
    start = run.weights()
    run.update(torch.ones(4, 3))
    moved = run.weights()
    assert any(not torch.equal(start[name], moved[name]) for name in start)
    run.update(torch.ones(4, 3), weight=0.0)  # the second update sees the term alone
    for name, gradient in run.gradients().items():
        if isinstance(method, L2Init):
            expected = 0.5 * (moved[name] - start[name])
        else:
            order = moved[name].flatten().argsort(stable=True)
            expected = torch.empty(order.shape)
            expected[order] = moved[name].flatten()[order] - start[name].flatten().sort().values
            expected = expected.reshape(start[name].shape)
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-14)


# ---------------------------------------------------------------------------- a norm that is not squared; one tensor


@pytest.mark.parametrize("method", [L2Init(0.5), Wasserstein(0.5)], ids=["L2-init", "Wasserstein"])
def test_the_pull_grows_with_the_distance(method: Method) -> None:
    run = Training(mlp(), method, step_size=0.0)
    found: list[dict[str, Tensor]] = []
    for _ in range(2):
        with torch.no_grad():
            for parameter in run.net.parameters():
                parameter.add_(1.0)  # all by the same: the order stays
        run.update(torch.ones(4, 3), weight=0.0)
        found.append(run.gradients())
    for name in found[0]:
        torch.testing.assert_close(found[1][name], 2.0 * found[0][name])


@pytest.mark.parametrize("method", REGULARISERS, ids=repr)
def test_every_tensor_that_the_term_is_about_is_pulled(method: Method) -> None:
    """Not the last one alone, and not none because the term was computed without gradients."""
    run = Training(mlp(), method, step_size=0.0)
    with torch.no_grad():
        for parameter in run.net.parameters():
            parameter.add_(torch.randn(parameter.shape))
    run.update(torch.ones(4, 3), weight=0.0)
    pulled = {name for name, gradient in run.gradients().items() if bool(gradient.any())}
    everything = set(dict(run.net.named_parameters()))
    assert pulled == ({"0.weight", "2.weight"} if isinstance(method, Parseval) else everything)


# ------------------------------------------------------------------------------------- decoupled decay under Adam


@pytest.mark.parametrize("early", [False, True], ids=["in order", "gradients and schedule before the tick"])
def test_decoupled_the_pull_does_not_pass_through_adam(early: bool) -> None:
    net = mlp()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
    plastic = neoteny.attach(net, optimizer, L2Init(0.5, decoupled=True))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(2.0)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    (net(torch.ones(1, 3)).sum() * 0.0).backward()
    optimizer.step()
    if early:  # as frameworks do that call back after the whole step
        optimizer.zero_grad()
        schedule.step()
    plastic.step()
    for old, new in zip(before, net.parameters(), strict=True):
        torch.testing.assert_close(new.detach(), old - 0.01 * 0.5 * 2.0)
    assert not any(state["exp_avg"].any() for state in optimizer.state.values())


def test_decoupled_towards_zero_it_is_adam_w() -> None:
    """The decay takes the weights from before the update."""
    net, twin = mlp(), mlp()
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    ours = torch.optim.Adam(net.parameters(), lr=0.01)
    theirs = torch.optim.AdamW(twin.parameters(), lr=0.01, weight_decay=0.5)
    plastic = neoteny.attach(net, ours, L2Init(0.5, decoupled=True))
    with torch.no_grad():
        for mine, other in zip(net.parameters(), twin.parameters(), strict=True):
            mine.copy_(other)
    for _ in range(30):
        x = torch.randn(4, 3)
        for each, optimizer in ((net, ours), (twin, theirs)):
            optimizer.zero_grad()
            each(x).square().mean().backward()
            optimizer.step()
        plastic.step()
    for mine, other in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-14)


def test_decoupled_a_weight_that_is_reset_between_update_and_pull_is_not_pulled() -> None:
    net = mlp()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    methods = (ReDo(period=1, threshold=0.0), L2Init(0.5, decoupled=True))
    plastic = neoteny.attach(net, optimizer, *methods, example=torch.zeros(2, 3))
    with torch.no_grad():
        net.get_parameter("0.weight")[1] = 0.0  # a silent unit, far from its initial weights
        net.get_parameter("0.bias")[1] = -1.0
    net(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
    plastic.step()
    assert plastic.replaced["0"] >= 1
    new = net.get_parameter("0.weight")[1].detach()
    assert bool(new.all())
    assert torch.equal(plastic._chain.states[1]["parameters"]["0.weight"][1], new)


def test_decoupled_a_parameter_without_gradient_rests() -> None:
    net = mlp()
    run = Training(net, L2Init(0.5, decoupled=True))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(2.0)
    run.update(torch.ones(4, 3), weight=0.0)
    before = run.weights()
    run.optimizer.zero_grad()
    net[0](torch.ones(1, 3)).sum().mul(0.0).backward()  # a pass through the first layer alone
    run.optimizer.step()
    run.plastic.step()
    changed = {name for name, value in run.weights().items() if not torch.equal(value, before[name])}
    assert changed == {"0.weight", "0.bias"}


# ---------------------------------------------------------------------------------------------------- layers, heads


class Heads(nn.Module):
    """A body and two heads, the first of which is not the last module."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.policy = nn.Linear(4, 2)
        self.value = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.body(x))
        return torch.cat([self.policy(hidden), self.value(hidden)], -1)


def test_parseval_leaves_the_heads_alone_that_are_named() -> None:
    def pulled(method: Parseval) -> set[str]:
        run = Training(Heads(), method, step_size=0.0)
        run.update(torch.ones(4, 3), weight=0.0)
        return {name for name, gradient in run.gradients().items() if bool(gradient.any())}

    assert pulled(Parseval(0.1)) == {"body.weight", "policy.weight"}
    assert pulled(Parseval(0.1, outputs=("policy", "value"))) == {"body.weight"}
    assert pulled(Parseval(0.1, outputs=())) == {"body.weight", "policy.weight", "value.weight"}
    with pytest.raises(ValueError, match=r"outputs names 'polcy'.*Did you mean 'policy'"):
        Training(Heads(), Parseval(0.1, outputs=("polcy",)))


def as_rows(layer: nn.Module, weight: Tensor) -> list[tuple[Any, np.ndarray]]:
    """For each group of a layer, where its weights lie and what they are as a matrix (outputs, inputs * taps)."""
    groups = getattr(layer, "groups", 1)
    found: list[tuple[Any, np.ndarray]] = []
    for rows in np.split(np.arange(weight.shape[0]), groups):
        part = weight[rows].detach().numpy()
        part = part.swapaxes(0, 1) if getattr(layer, "transposed", False) else part
        found.append((rows, part.reshape(len(part), -1)))
    return found


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv2d(4, 6, 3),
        lambda: nn.Conv2d(4, 6, 3, groups=2),
        lambda: nn.Conv2d(4, 4, 3, groups=4),
        lambda: nn.ConvTranspose2d(4, 6, 3),
        lambda: nn.ConvTranspose2d(4, 6, 3, groups=2),
        lambda: nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last),  # pyright: ignore[reportCallIssue]
    ],
    ids=["plain", "groups", "depthwise", "transposed", "transposed groups", "channels last"],
)
def test_parseval_takes_a_convolution_by_output_channels_within_its_groups(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(make(), nn.Flatten(), nn.LazyLinear(2))
    x = torch.randn(2, 4, 5, 5)
    net(x)
    run = Training(net, Parseval(0.1), step_size=0.0)
    run.update(x, weight=0.0)
    weight, found = net.get_parameter("0.weight"), run.gradients()["0.weight"]
    outputs: Any = net[0].out_channels
    for (rows, matrix), (_, pull) in zip(as_rows(net[0], weight), as_rows(net[0], found), strict=True):
        expected = 0.1 * (64 / outputs) ** 2 * parseval.gradient(matrix, 2.0)
        np.testing.assert_allclose(pull, expected, rtol=1e-10, atol=1e-12, err_msg=str(rows))


@pytest.mark.parametrize("groups", [1, 2])
def test_spectral_takes_a_transposed_convolution_by_output_channels(groups: int) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.ConvTranspose2d(4, 6, 3, groups=groups, bias=False), nn.Flatten(), nn.LazyLinear(2))
    x = torch.randn(2, 4, 5, 5)
    net(x)
    run = Training(net, Spectral(0.1, iterations=500), step_size=0.0)
    run.update(x, weight=0.0)
    weight, found = net.get_parameter("0.weight"), run.gradients()["0.weight"]
    matrix = np.concatenate([rows for _, rows in as_rows(net[0], weight)])
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    expected = 0.1 * 4.0 * (values[0] ** 2 - 1.0) * values[0] * np.outer(left[:, 0], right[0])
    pull = np.concatenate([rows for _, rows in as_rows(net[0], found)])
    np.testing.assert_allclose(pull, expected, rtol=1e-6, atol=1e-9)
