"""Stacks: a run inside a stack is the same run alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neoteny
from neoteny.methods import L2, SGD, Adam, ContinualBackprop, Method, ShrinkAndPerturb
from neoteny.nets import OnlineNorm
from support.stacked_models import (
    Make,
    OwnForward,
    chain,
    conv_net,
    dropout_net,
    norm_net,
    shape_of,
    statistics_of,
)

pytestmark = pytest.mark.usefixtures("double_precision")


class OnlineNet(nn.Module):
    """Online normalisation in front of an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 5)
        self.norm = OnlineNorm(5, forward_decay=0.99, backward_decay=0.9)
        self.out = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.norm(self.second(F.relu(self.first(x))))))


def pick(method: Method, run: int) -> Method:
    """The method of one run: every sequence of hyperparameters replaced by that run's number."""
    values = method.hyperparameters()
    chosen = {k: v[run] if isinstance(v, tuple) and k != "betas" else v for k, v in values.items()}
    return type(method)(**chosen)


def torch_optimizer(method: Method, net: nn.Module) -> torch.optim.Optimizer:
    if isinstance(method, Adam):
        return neoteny.optim.Adam(net.parameters(), lr=method.step_size, betas=method.betas, eps=method.eps)  # type: ignore[arg-type]
    assert isinstance(method, SGD)
    return torch.optim.SGD(net.parameters(), lr=method.step_size, momentum=method.momentum)  # type: ignore[arg-type]


def compare_with_runs_alone(
    make: Make,
    methods: Sequence[Method],
    steps: int,
    *,
    runs: int = 3,
    batch: int = 3,
    loss: str = "mse",
    seeds: Sequence[int] = (5, -6, 2**40),
    **options: Any,
) -> tuple[neoteny.Stack, list[nn.Module]]:
    """Train a stack, and each run alone through `attach`; losses and replacements must agree at every step."""
    nets = [make() for _ in range(runs)]
    shape = shape_of(make)
    example = torch.randn(3, *shape)
    stack = neoteny.stack(nets, *methods, loss=loss, example=example, seeds=seeds, **options)
    alone, optimizers, attachments = [copy.deepcopy(net) for net in nets], [], []
    for run, net in enumerate(alone):
        mine = [pick(method, run) for method in methods]
        optimizers.append(torch_optimizer(mine[0], net))
        attachments.append(neoteny.attach(net, optimizers[run], *mine[1:], example=example, seed=seeds[run], **options))
    data = torch.Generator().manual_seed(2)
    for step in range(steps):
        x = torch.randn(runs, batch, *shape, generator=data)
        if loss == "cross_entropy":
            y = torch.randint(2, (runs, batch), generator=data)
        else:
            y = torch.randn(runs, batch, 2, generator=data)
        losses = stack.step(x, y).losses
        for run, (net, optimizer, attachment) in enumerate(zip(alone, optimizers, attachments, strict=True)):
            output = net(x[run])
            value = F.cross_entropy(output, y[run]) if loss == "cross_entropy" else F.mse_loss(output, y[run])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            attachment.step()
            assert abs(value.item() - losses[run].item()) <= 1e-12, (step, run)
            assert {name: counts[run].item() for name, counts in stack.replaced.items()} == attachment.replaced
    ours = statistics_of(stack)
    for run, (net, attachment) in enumerate(zip(alone, attachments, strict=True)):
        for name, values in statistics_of(attachment).items():
            assert torch.equal(ours[name]["born"][run], values["born"])
        for name, value in stack.module(run).state_dict().items():
            torch.testing.assert_close(value, net.state_dict()[name], rtol=0, atol=1e-11)
    assert sum(int(counts.sum()) for counts in stack.replaced.values()) >= 20
    return stack, alone


@pytest.mark.parametrize(
    ("methods", "loss"),
    [
        ((SGD((0.01, 0.02)), L2((1e-4, 0.0)), ContinualBackprop((2e-2, 4e-2), (20, 30), (0.99, 0.9))), "mse"),
        ((Adam((1e-3, 2e-3)), ContinualBackprop((4e-2, 8e-2), (20, 10), (0.9, 0.99))), "cross_entropy"),
    ],
    ids=["sgd", "adam"],
)
def test_runs_in_a_stack_of_mlps_equal_runs_alone_over_500_steps(methods: tuple[Method, ...], loss: str) -> None:
    compare_with_runs_alone(chain, methods, 500, runs=2, seeds=(5, -6), loss=loss, batch=2)


@pytest.mark.parametrize("optimizer", [SGD((0.01, 0.02), (0.9, 0.5)), Adam((1e-3, 2e-3))], ids=["sgd", "adam"])
def test_shrink_and_perturb_in_a_stack_draws_the_noise_of_each_run_alone(optimizer: Method) -> None:
    methods = (optimizer, ShrinkAndPerturb((1e-3, 1e-4), (1e-4, 1e-3)), ContinualBackprop((0.05, 0.1), (5, 7)))
    compare_with_runs_alone(chain, methods, 60, runs=2, seeds=(5, -6))


@pytest.mark.parametrize(
    "utility", ["mean_corrected_contribution", "contribution", "adaptation", "weight_magnitude", "random", "gxd"]
)
def test_every_utility_is_the_same_inside_a_stack(utility: str) -> None:
    cbp = ContinualBackprop((0.02, 0.05, 0.1), (10, 5, 0), 0.9, utility, count="layer")
    compare_with_runs_alone(chain, (SGD((0.01, 0.02, 0.03), (0.9, 0.0, 0.5)), L2((0.0, 1e-3, 1e-2)), cbp), 60)


@pytest.mark.parametrize("make", [conv_net, norm_net, OwnForward, dropout_net], ids=lambda make: make.__name__)
@pytest.mark.parametrize("optimizer", [SGD((0.01, 0.02, 0.03), 0.9), Adam((1e-3, 2e-3, 3e-3))], ids=["sgd", "adam"])
def test_runs_of_any_module_in_a_stack_equal_runs_alone(make: Make, optimizer: Method) -> None:
    compare_with_runs_alone(make, (optimizer, ContinualBackprop((0.02, 0.05, 0.1), (10, 5, 20))), 100)


def test_online_norm_in_a_stack_equals_online_norm_alone() -> None:
    # The units behind the norm are left out of the groups; those in front of it are still replaced.
    stack, _ = compare_with_runs_alone(
        OnlineNet, (SGD(0.005), ContinualBackprop((0.1, 0.05, 0.1), 5)), 80, leave_out=["second"]
    )
    assert stack.view.tensors["norm.e1"].abs().min() > 0  # the backward pass really kept each run's own errors


def test_a_deeper_tuple_of_axes_reaches_the_linear_layers_as_it_does_alone() -> None:
    nets = [chain() for _ in range(2)]
    stack = neoteny.stack(nets, SGD(0.01))
    x = torch.randn(2, 3, 5, 4)
    torch.testing.assert_close(stack.predict(x), torch.stack([net(one) for net, one in zip(nets, x, strict=True)]))


def test_an_activation_module_used_twice_acts_twice_in_a_stack() -> None:
    activation = nn.Tanh()
    nets = [nn.Sequential(nn.Linear(4, 5), activation, nn.Linear(5, 5), activation, nn.Linear(5, 2)) for _ in range(2)]
    stack = neoteny.stack(nets, SGD(0.01))
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(stack.predict(x), torch.stack([net(one) for net, one in zip(nets, x, strict=True)]))
