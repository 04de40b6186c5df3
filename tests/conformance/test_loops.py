"""Every method in the loops that users write: by itself, accumulated gradients, closures, scalers, detached."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import SGD
from support.method_cases import (
    FOUND,
    INPUTS,
    OTHERS,
    Attached,
    make,
    needs_adam,
    network,
    plain_method,
    stream,
    torch_optimizer,
)

STEPS = 22


def assert_close(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 0.0) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", OTHERS)
class TestALoop:
    def test_that_ticks_by_itself(self, name: str) -> None:
        run = Attached(make(name))
        run.train(stream(STEPS))
        model = network()
        optimizer = torch_optimizer(None, model, adam=needs_adam(FOUND[name]))
        example = torch.zeros(2, INPUTS, dtype=torch.float64)
        neoteny.attach(model, optimizer, make(name), example=example, seed=7, auto=True)
        for x, y in stream(STEPS):
            optimizer.zero_grad()
            (model(x[0]) - y[0]).square().mean().backward()
            optimizer.step()
        assert_close(list(model.parameters()), run.weights())

    def test_that_accumulates_gradients(self, name: str) -> None:
        whole, parts = Attached(make(name)), Attached(make(name))
        for x, y in stream(STEPS):
            whole.step(x[0], y[0])
            parts.optimizer.zero_grad()
            for some, wanted in zip(x[0].chunk(2), y[0].chunk(2), strict=True):
                ((parts.model(some) - wanted).square().mean() / 2).backward()
            parts.optimizer.step()
            assert parts.plastic is not None
            parts.plastic.step()
        assert_close(parts.weights(), whole.weights(), 1e-9)

    def test_that_steps_with_a_closure(self, name: str) -> None:
        plain, run = Attached(make(name)), Attached(make(name))
        for x, y in stream(STEPS):
            plain.step(x[0], y[0])

            def closure(x: Tensor = x[0], y: Tensor = y[0]) -> Any:
                run.optimizer.zero_grad()
                loss = (run.model(x) - y).square().mean()
                loss.backward()
                return loss

            run.optimizer.step(closure)
            assert run.plastic is not None
            run.plastic.step()
        assert_close(run.weights(), plain.weights())

    def test_that_scales_its_loss(self, name: str) -> None:
        plain, run = Attached(make(name)), Attached(make(name))
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10**6)
        assert run.plastic is not None
        for number, (x, y) in enumerate(stream(STEPS)):
            overflows = number == 11
            if not overflows:
                plain.step(x[0], y[0])
            run.optimizer.zero_grad()
            loss = (run.model(x[0]) - y[0]).square().mean()
            scaler.scale(loss * float("inf") if overflows else loss).backward()
            scaler.step(run.optimizer)
            scaler.update(2.0**10)
            run.plastic.step()  # an update that was skipped does not count
        assert_close(run.weights(), plain.weights(), 1e-12)

    def test_that_detaches_goes_on_plainly(self, name: str) -> None:
        run = Attached(make(name))
        batches = stream(STEPS)
        run.train(batches[:13])
        assert run.plastic is not None
        run.plastic.detach()
        plain = Attached(model=network(5), adam=needs_adam(FOUND[name]))
        plain.model, plain.optimizer = copy.deepcopy((run.model, run.optimizer))
        for x, y in batches[13:]:
            assert run.update(x[0], y[0]) == plain.step(x[0], y[0])
        assert_close(run.weights(), plain.weights())
        with pytest.raises(RuntimeError, match="detach"):
            run.plastic.step()


class Images(nn.Module):
    """conv, batch norm, pool, conv, flatten, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 5, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(5, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def images(seed: int) -> Images:
    torch.manual_seed(seed)
    return Images().double()


@pytest.mark.parametrize("name", OTHERS)
def test_a_stack_of_convolutional_networks_equals_each_alone(name: str) -> None:
    example = torch.zeros(2, 1, 4, 4, dtype=torch.float64)

    def stack(seeds: list[int]) -> neoteny.Stack:
        optimizer = plain_method(adam=True) if needs_adam(FOUND[name]) else SGD(0.02)
        return neoteny.stack([images(seed) for seed in seeds], optimizer, make(name), example=example, seeds=seeds)

    together, alone = stack([3, 4]), [stack([3]), stack([4])]
    generator = torch.Generator().manual_seed(2)
    for _ in range(12):
        x = torch.randn(2, 6, 1, 4, 4, generator=generator, dtype=torch.float64)
        y = x.mean((-1, -2)).expand(2, 6, 2)
        losses = together.step(x, y).losses
        for run, one in enumerate(alone):
            assert float(one.step(x[run : run + 1], y[run : run + 1]).losses) == pytest.approx(
                float(losses[run]), rel=1e-10
            )
    for run, one in enumerate(alone):
        ours, theirs = together.module(run).state_dict(), one.module(0).state_dict()
        assert_close(list(ours.values()), list(theirs.values()), 1e-10)
        x = torch.ones(2, 3, 1, 4, 4, dtype=torch.float64)
        assert_close([together.predict(x)[run]], [one.predict(x[:1])[0]], 1e-10)
