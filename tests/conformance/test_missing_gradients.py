"""A parameter that is without a gradient at some updates is as if these updates had not been."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import neoteny
from neoteny.methods import UPGD, Adam, Method
from support.method_cases import INPUTS, OPTIMIZERS, make, stacked, stream

BUSY = [True] + [False] * 40 + [True] * 12  # the updates at which the second layer has a gradient


def layers() -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    return nn.Linear(3, 4).double(), nn.Linear(4, 2).double()


def train(optimizer: Optimizer, first: nn.Linear, second: nn.Linear, busy: list[bool]) -> Tensor:
    """Give the layers fixed gradients, the second only where it is busy; returns the second's weights after each."""
    generator = torch.Generator().manual_seed(1)
    seen: list[Tensor] = []
    for working in busy:
        optimizer.zero_grad()
        for parameter in first.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        own = torch.Generator().manual_seed(len(seen))
        for parameter in second.parameters() if working else ():
            parameter.grad = torch.randn(parameter.shape, generator=own, dtype=torch.float64)
        optimizer.step()
        if working:
            seen.append(second.weight.detach().clone())
    return torch.stack(seen)


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda parameters: neoteny.optim.from_method(Adam(0.01), parameters),
        lambda parameters: neoteny.optim.Adam(parameters, lr=0.01),
    ],
    ids=["from_method", "optim.Adam"],
)
def test_adam_is_torchs_where_gradients_are_missing(make_optimizer: Callable[[Any], Optimizer]) -> None:
    first, second = layers()
    ours = train(make_optimizer([*first.parameters(), *second.parameters()]), first, second, BUSY)
    first, second = layers()
    theirs = train(torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01), first, second, BUSY)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_without_gradient_leave_the_rest_as_it_is(name: str) -> None:
    method: Method = make(name)
    if isinstance(method, UPGD):  # its noise and its largest utility are the whole network's
        method = make(name, noise_std=0.0, scale="local")
    ends: list[Tensor] = []
    for busy in (BUSY, [True] * sum(BUSY)):
        first, second = layers()
        optimizer = neoteny.optim.from_method(method, [*first.parameters(), *second.parameters()])
        ends.append(train(optimizer, first, second, busy))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-12, atol=1e-14)


def test_a_head_that_starts_late_takes_a_first_step_as_long_as_any() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(INPUTS, 6)
            self.heads = nn.ModuleList([nn.Linear(6, 2), nn.Linear(6, 2)])
            self.task = 0

        def forward(self, x: Tensor) -> Tensor:
            return self.heads[self.task](self.body(x).tanh())

    moves: list[float] = []
    for late in (0, 300):
        torch.manual_seed(3)
        model = Heads().double()
        optimizer = neoteny.optim.from_method(Adam(0.01), model.parameters())
        (x, y), *_ = stream(1)
        for update in range(late + 1):
            model.task = 0 if update < late else 1
            optimizer.zero_grad()
            head = model.get_parameter("heads.1.weight")
            before = head.detach().clone()
            (model(x[0]) - y[0]).square().mean().backward()
            optimizer.step()
            moves.append(float((head.detach() - before).abs().mean()))
    assert set(moves[1:-1]) == {0.0}
    assert moves[-1] == pytest.approx(moves[0], rel=1e-3)  # one step size each


def test_a_stack_counts_as_one_network_does() -> None:
    runs, twin = stacked(make("Adam")), stacked(make("Adam"))
    generator = torch.Generator().manual_seed(1)

    def gradients(names: list[str]) -> dict[str, Tensor | None]:
        shapes = {name: value.shape for name, value in runs.view.parameters.items()}
        return {
            name: torch.randn(shape, generator=generator, dtype=torch.float64) if name in names else None
            for name, shape in shapes.items()
        }

    names = list(runs.view.parameters)
    for _ in range(50):
        runs.apply(gradients(names[:2]), {})
    given = gradients(names[2:])
    runs.apply({name: None if value is None else value.clone() for name, value in given.items()}, {})
    twin.apply({name: None if value is None else value.clone() for name, value in given.items()}, {})
    for name in names[2:]:
        torch.testing.assert_close(runs.view.tensors[name], twin.view.tensors[name], rtol=1e-12, atol=1e-14)
