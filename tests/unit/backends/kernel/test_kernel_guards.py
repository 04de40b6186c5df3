"""What a kernel must not get wrong quietly: stacks it cannot train, and L2 that is too small for float32."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import neoteny
from neoteny.backends.kernel.backend import KernelBackend
from neoteny.backends.kernel.cpu.kernel import CpuKernel
from neoteny.draws.initial import Initial
from neoteny.methods import L2, SGD, ContinualBackprop, Method
from neoteny.nets import MLP
from neoteny.problems import PermutedMNIST, SlowlyChangingRegression
from neoteny.problems.problem import Problem, Stream

REGRESSION = SlowlyChangingRegression(tasks=2, examples_per_task=5000)
DIGITS = PermutedMNIST(tasks=2, examples_per_task=2000, source="synthetic")


def make_stack(module: nn.Module, *methods: Method, **options: object) -> neoteny.Stack:
    example = torch.zeros(1, next(iter(module.parameters())).shape[1])
    return neoteny.stack([module], *methods, example=example, seeds=[7], **options)  # pyright: ignore


def path_of(stack: neoteny.Stack, problem: Problem, loss: str = "mse", seeds: tuple[int, ...] = (7,)) -> KernelBackend:
    stream = problem.open()
    assert isinstance(stream, Stream)
    return KernelBackend(stack, stream, seeds, loss, CpuKernel)


class Other(SGD):
    """An optimizer of somebody else's."""


def test_stacks_that_no_kernel_trains_are_refused_by_name() -> None:
    plain = make_stack(MLP(22, [5], 1), SGD(0.01))
    with pytest.raises(ValueError, match="Sequential is not an MLP"):
        path_of(make_stack(nn.Sequential(nn.Linear(22, 1)), SGD(0.01)), REGRESSION)
    with pytest.raises(ValueError, match="Other is not covered"):
        path_of(make_stack(MLP(22, [5], 1), Other(0.01)), REGRESSION)
    with pytest.raises(ValueError, match="one of mse, cross_entropy; got 'hinge'"):
        path_of(plain, REGRESSION, loss="hinge")
    with pytest.raises(ValueError, match=r"seeds must be the stack's own, \[7\]; got \[8\]"):
        path_of(plain, REGRESSION, seeds=(8,))
    frozen = MLP(22, [5], 1)
    frozen.get_parameter("fc1.weight").requires_grad_(False)
    with pytest.raises(ValueError, match="frozen"):
        path_of(make_stack(frozen, SGD(0.01)), REGRESSION)
    declared = make_stack(
        MLP(22, [5], 1), SGD(0.01), ContinualBackprop(), init=Initial("normal", scale=0.3), trained=True
    )
    with pytest.raises(ValueError, match="uniform"):
        path_of(declared, REGRESSION)


def test_examples_that_do_not_fit_the_network_are_refused() -> None:
    with pytest.raises(ValueError, match="22 features, the network takes 20"):
        path_of(make_stack(MLP(20, [5], 1), SGD(0.01)), REGRESSION).plan(0)
    few = path_of(make_stack(MLP(784, [5], 3), SGD(0.01)), DIGITS, "cross_entropy")
    with pytest.raises(ValueError, match="a class 9, but the network has 3 outputs"):
        few.plan(0)
    path = path_of(make_stack(MLP(22, [5], 1), SGD(0.01)), REGRESSION)
    with pytest.raises(RuntimeError, match="plan"):
        path.advance(0, 1)
    path.plan(0)
    with pytest.raises(ValueError, match="0 <= start <= stop <= 5000"):
        path.advance(4999, 5001)


@pytest.mark.parametrize("strength", [1e-5, 1e-4])
def test_l2_shrinks_float32_weights_by_what_it_says(strength: float) -> None:
    """3e-8 a step is less than float32 can take from 1: a factor that was kept in it would shrink by twice as much."""
    torch.manual_seed(0)
    module = MLP(784, [40], 10)
    with torch.no_grad():
        module.get_parameter("fc1.bias").fill_(-1000.0)  # no unit ever fires, so that no gradient reaches fc1
    step_size, steps = 0.003, 2000
    stack = make_stack(module, SGD(step_size), L2(strength), loss="cross_entropy")
    before = stack.view.tensors["fc1.weight"].double().clone()
    path = path_of(stack, DIGITS, "cross_entropy")
    path.plan(0)
    path.advance(0, steps)
    path.write_back()
    after = stack.view.tensors["fc1.weight"].double()
    assert -(after / before).log().mean().item() == pytest.approx(steps * step_size * strength, rel=0.05)
