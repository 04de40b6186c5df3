"""Stacks for the recorded update: problems, methods, two tasks of training, and a comparison of states."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from neoteny.methods import SGD, ContinualBackprop
from neoteny.methods.method import Method
from neoteny.nets import ConvNet
from neoteny.problems import ContinualImageNet, PermutedMNIST
from neoteny.problems.problem import Problem, Stream
from neoteny.stacking.stack import Stack, stack

IMAGES = ContinualImageNet(tasks=2, source="synthetic", train_images=20, test_images=10, batch_size=5, epochs=5)
DIGITS = PermutedMNIST(tasks=2, examples_per_task=60, source="synthetic")
SEEDS = [3, 4, 9]
MOMENTUM = SGD((0.01, 0.02, 0.005), momentum=0.9)
OFTEN = ContinualBackprop((0.05, 0.02, 0.0), maturity_threshold=(3, 5, 2), decay_rate=0.9)


@functools.cache
def opened(problem: Problem) -> Stream:
    stream = problem.open()
    assert isinstance(stream, Stream)
    return stream


def conv_net() -> nn.Module:
    return ConvNet(filters=(4, 5, 6), units=7)


def make(
    kind: type,
    device: str,
    methods: tuple[Method, ...],
    build: Any = conv_net,
    problem: Any = IMAGES,
    dtype: torch.dtype = torch.float64,
) -> tuple[Stack, Any]:
    modules = []
    for seed in SEEDS:
        torch.manual_seed(seed)
        modules.append(build().to(device, dtype))
    example = torch.zeros(2, *problem.input_shape, dtype=dtype, device=device)
    made = stack(modules, *methods, loss=problem.loss, example=example, seeds=SEEDS)
    return made, kind(made, opened(problem), SEEDS, problem, dtype)


def train(path: Any, made: Stack, cuts: tuple[int, ...] = (0, 11, 30)) -> list[Tensor]:
    """Two tasks in blocks, with what the engine does between them."""
    given: list[Tensor] = []
    for task in (0, 1):
        steps = path.plan(task).steps
        if hasattr(made.template, "out"):
            made.zero_layer("out")
        for start, stop in zip(cuts, (*cuts[1:], steps), strict=True):
            given += path.advance(start, stop)
    return given


def assert_same_state(one: Any, other: Any, exact: bool, tolerance: float = 1e-9) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same_state(one[key], other[key], exact, tolerance)
    elif isinstance(one, list):
        for mine, theirs in zip(one, other, strict=True):
            assert_same_state(mine, theirs, exact, tolerance)
    elif isinstance(one, Tensor) and not exact and one.is_floating_point():
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    elif isinstance(one, Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other
