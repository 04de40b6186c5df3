"""Stacks: neighbours, predictions, losses, and continuing from a file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import neoteny
from neoteny.methods import SGD, Adam, ContinualBackprop, Method, ShrinkAndPerturb
from support.stacked_models import (
    Make,
    chain,
    conv_net,
    dropout_net,
    norm_net,
    shape_of,
    statistics_of,
)

pytestmark = pytest.mark.usefixtures("double_precision")


# ------------------------------------------------------------------------------------------------------- neighbours


def train(stack: neoteny.Stack, data: Tensor, targets: Tensor) -> Tensor:
    """Losses (steps, n) over data (steps, n, B, ...)."""
    return torch.stack([stack.step(x, y).losses for x, y in zip(data, targets, strict=True)])


def select(methods: Sequence[Method], runs: Sequence[int]) -> list[Method]:
    """The methods with the hyperparameters of some runs, in that order."""
    chosen = []
    for method in methods:
        values = method.hyperparameters()
        picked = {
            k: tuple(v[run] for run in runs) if isinstance(v, tuple) and k != "betas" else v for k, v in values.items()
        }
        chosen.append(type(method)(**picked))
    return chosen


FIVE: list[list[Method]] = [
    [SGD((0.01, 0.02, 0.03, 0.01, 0.02), 0.9), ContinualBackprop((0.05, 0.02, 0.0, 0.1, 1.0), (5, 10, 0, 20, 7))],
    [
        Adam((1e-3, 2e-3, 3e-3, 1e-3, 2e-3)),
        ShrinkAndPerturb((1e-3, 0.0, 1e-4, 1e-2, 0.0), 1e-3),
        ContinualBackprop((0.05, 0.02, 0.0, 0.1, 1.0), (5, 10, 0, 20, 7), utility="random"),
    ],
]


@pytest.mark.parametrize("methods", FIVE, ids=["sgd", "adam"])
@pytest.mark.parametrize("make", [chain, conv_net, dropout_net], ids=lambda make: make.__name__)
def test_a_run_does_not_depend_on_what_else_is_in_the_stack(make: Make, methods: list[Method]) -> None:
    nets = [make() for _ in range(5)]
    seeds = [3, 1, 4, 1, 5]
    steps, shape = 40, shape_of(make)
    data, targets = torch.randn(steps, 5, 2, *shape), torch.randn(steps, 5, 2, 2)
    together = neoteny.stack(nets, *methods, example=data[0, 0], seeds=seeds)
    losses = train(together, data, targets)
    for runs in ([0], [3], [4, 2, 0, 1, 3]):
        some = neoteny.stack(
            [nets[run] for run in runs], *select(methods, runs), example=data[0, 0], seeds=[seeds[run] for run in runs]
        )
        torch.testing.assert_close(train(some, data[:, runs], targets[:, runs]), losses[:, runs], rtol=0, atol=1e-12)
        for name, counts in some.replaced.items():
            assert torch.equal(counts, together.replaced[name][runs])
        for name, values in statistics_of(some).items():
            assert torch.equal(values["born"], statistics_of(together)[name]["born"][runs])


@pytest.mark.parametrize("optimizer", [SGD(0.01, 0.9), Adam(1e-3)], ids=["sgd", "adam"])
@pytest.mark.parametrize("make", [chain, conv_net], ids=lambda make: make.__name__)
def test_a_diverging_run_does_not_disturb_its_neighbours(make: Make, optimizer: Method) -> None:
    nets = [make() for _ in range(3)]
    shape = shape_of(make)
    data, targets = torch.randn(40, 3, 2, *shape), torch.randn(40, 3, 2, 2)
    methods = (optimizer, ContinualBackprop(0.2, 3))
    calm = neoteny.stack(nets, *methods, example=data[0, 0])
    calm_losses = train(calm, data, targets)
    wild_targets = targets.clone()
    wild_targets[10, 1] = torch.nan
    wild = neoteny.stack(nets, *methods, example=data[0, 0])
    wild_losses = train(wild, data, wild_targets)
    assert wild_losses[11:, 1].isnan().all()
    assert torch.equal(wild_losses[:, [0, 2]], calm_losses[:, [0, 2]])
    for name, value in calm.state_dict()["tensors"].items():
        assert torch.equal(wild.state_dict()["tensors"][name][[0, 2]], value[[0, 2]])
    for name, counts in wild.replaced.items():
        assert torch.equal(counts, calm.replaced[name])


def test_a_stack_leaves_the_given_modules_alone() -> None:
    nets = [chain() for _ in range(2)]
    before = [{name: value.clone() for name, value in net.state_dict().items()} for net in nets]
    stack = neoteny.stack(nets, SGD(0.1), ContinualBackprop(0.5, 0), example=torch.zeros(1, 4))
    train(stack, torch.randn(5, 2, 3, 4), torch.randn(5, 2, 3, 2))
    for net, saved in zip(nets, before, strict=True):
        assert all(torch.equal(value, saved[name]) for name, value in net.state_dict().items())
        assert not any(module._forward_pre_hooks for module in net.modules())


def test_a_step_gives_losses_and_outputs_from_before_the_update() -> None:
    nets = [conv_net() for _ in range(2)]
    stack = neoteny.stack(nets, SGD(0.1), ContinualBackprop(0.5, 0), example=torch.zeros(1, 1, 4, 4))
    x, y = torch.randn(2, 3, 1, 4, 4), torch.randn(2, 3, 2)
    before = stack.predict(x)
    losses, outputs = stack.step(x, y)
    torch.testing.assert_close(outputs, before)
    torch.testing.assert_close(losses, (before - y).square().mean((1, 2)))
    assert not torch.allclose(stack.predict(x), before)


@pytest.mark.parametrize("make", [chain, conv_net, dropout_net], ids=lambda make: make.__name__)
def test_prediction_leaves_no_trace(make: Make) -> None:
    nets, shape = [make() for _ in range(2)], shape_of(make)
    stacks = [
        neoteny.stack(nets, SGD(0.1), ContinualBackprop(0.2, 1), example=torch.zeros(1, *shape)) for _ in range(2)
    ]
    data, targets = torch.randn(20, 2, 3, *shape), torch.randn(20, 2, 3, 2)
    for x, y in zip(data, targets, strict=True):
        stacks[1].predict(torch.randn(2, 7, *shape))
        assert torch.equal(stacks[0].step(x, y).losses, stacks[1].step(x, y).losses)


def test_a_loss_of_ones_own_is_mapped_over_the_runs() -> None:
    nets = [chain() for _ in range(3)]
    own = neoteny.stack(nets, SGD(0.1), loss=lambda output, target: (output - target).square().mean())
    named = neoteny.stack(nets, SGD(0.1), loss="mse")
    data, targets = torch.randn(10, 3, 2, 4), torch.randn(10, 3, 2, 2)
    torch.testing.assert_close(train(own, data, targets), train(named, data, targets), rtol=1e-13, atol=0)


# ------------------------------------------------------------------------------------------------------ checkpoints


def save_and_load(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("methods", FIVE, ids=["sgd", "adam"])
@pytest.mark.parametrize("make", [chain, norm_net, dropout_net], ids=lambda make: make.__name__)
def test_a_stack_resumed_from_a_file_continues_bit_identically(make: Make, methods: list[Method]) -> None:
    nets, shape = [make() for _ in range(5)], shape_of(make)
    data, targets = torch.randn(60, 5, 2, *shape), torch.randn(60, 5, 2, 2)
    stack = neoteny.stack(nets, *methods, example=data[0, 0], seeds=[9, 8, 7, 6, 5])
    train(stack, data[:30], targets[:30])
    saved = save_and_load(stack.state_dict())
    losses = train(stack, data[30:], targets[30:])

    fresh = neoteny.stack([make() for _ in range(5)], *methods, example=data[0, 0], seeds=[0] * 5)
    fresh.load_state_dict(saved)
    assert torch.equal(train(fresh, data[30:], targets[30:]), losses)
    for name, value in stack.state_dict()["tensors"].items():
        assert torch.equal(fresh.state_dict()["tensors"][name], value)
    for name, counts in stack.replaced.items():
        assert torch.equal(fresh.replaced[name], counts)


@pytest.mark.parametrize("methods", FIVE, ids=["sgd", "adam"])
@pytest.mark.parametrize("when", [0, 10], ids=["at-the-start", "after-some-steps"])
def test_a_running_stack_can_go_back_to_an_earlier_state(methods: list[Method], when: int) -> None:
    data, targets = torch.randn(30, 5, 2, 4), torch.randn(30, 5, 2, 2)
    stack = neoteny.stack([chain() for _ in range(5)], *methods, example=data[0, 0])
    for x, y in zip(data[:when], targets[:when], strict=True):
        stack.step(x, y)
    saved = save_and_load(stack.state_dict())
    losses = train(stack, data, targets)
    stack.load_state_dict(saved)
    assert torch.equal(train(stack, data, targets), losses)
