"""Numbers computed by hand for resets and projections of weights, found through the methods themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import (
    DASH,
    FIRE,
    HardReset,
    HareAndTortoise,
    Method,
    NormalizeAndProject,
    PlasticityInjection,
    WarmStartShrinkAndPerturb,
    WeightClipping,
)
from support.vectors import Vector

ANY = torch.tensor([[0.3, -1.2, 0.7]], dtype=torch.float64)


def attached(model: nn.Module, method: Method, lr: float = 0.0) -> tuple[torch.optim.Optimizer, neoteny.Attachment]:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return optimizer, neoteny.attach(model, optimizer, method, seed=3)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, plastic: neoteny.Attachment, x: Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().sum().backward()
    optimizer.step()
    plastic.step()


def layer_with(weight: Sequence[Sequence[float]]) -> Any:
    """One linear layer without bias, in float64."""
    values = torch.tensor(weight, dtype=torch.float64)
    model: Any = nn.Sequential(nn.Linear(values.shape[1], values.shape[0], bias=False)).double()
    with torch.no_grad():
        model[0].weight.copy_(values)
    return model


def after_fire(weight: Sequence[Sequence[float]], iterations: int) -> list[float]:
    model = layer_with(weight)
    attached(model, FIRE(iterations))[1].task_boundary()
    return torch.linalg.svdvals(model[0].weight.detach()).tolist()


def gaussian_singular_values(iterations: int) -> list[float]:
    weight = np.random.default_rng(0).normal(size=(64, 64))
    return after_fire(weight.tolist(), iterations)


def after_dash(average: Sequence[float], floor: float) -> float:
    """The factor of the weights (3, 4) when the negative gradient of the only batch points along `average`."""
    model = layer_with([[3.0, 4.0]])
    _, plastic = attached(model, DASH(0.3, floor))
    x = torch.tensor([list(average)], dtype=torch.float64)
    plastic.task_boundary([(x, None)], loss=lambda outputs, targets: -outputs.sum())
    factors = model[0].weight.detach() / torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    assert float(factors[0, 0] - factors[0, 1]) == pytest.approx(0.0, abs=1e-15)
    return float(factors[0, 0])


def clipped_extremes(part: str) -> list[float]:
    """The smallest and the largest weight or bias of a layer with 784 inputs after one update."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(784, 5)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(100.0)
    optimizer, plastic = attached(model, WeightClipping(1.0))
    update(model, optimizer, plastic, torch.ones(1, 784, dtype=torch.float64))
    once = model.get_parameter(f"0.{part}").detach().clone()
    update(model, optimizer, plastic, torch.ones(1, 784, dtype=torch.float64))
    assert torch.equal(once, model.get_parameter(f"0.{part}"))  # a second time nothing changes
    return [float(once.min()), float(once.max())]


def normed(dtype: torch.dtype = torch.float64) -> Any:
    torch.manual_seed(1)
    layers = [nn.Linear(3, 8, bias=False), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8, bias=False), nn.RMSNorm(8)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(8, 2)).to(dtype)


def slow_and_fast(updates: int, move: float = 0.0) -> list[float]:
    """The slow weight, which begins at 0, after some updates of a fast weight 1; then the fast one moves."""
    model = layer_with([[0.0]])
    optimizer, plastic = attached(model, HareAndTortoise(0.999, period=4))
    weight = model[0].weight
    with torch.no_grad():
        weight.fill_(1.0)
    for _ in range(updates):
        update(model, optimizer, plastic, torch.zeros(1, 1, dtype=torch.float64))
    with torch.no_grad():
        weight.add_(move)
    fast = weight.item()
    with plastic.evaluating():
        return [weight.item(), fast]


def norms_after_training() -> list[float]:
    """Frobenius norms of the two hidden layers after 200 updates over those before them."""
    model = normed(torch.float32)
    first = [float(model[place].weight.detach().norm()) for place in (0, 3)]
    optimizer, plastic = attached(model, NormalizeAndProject(), lr=0.05)
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        update(model, optimizer, plastic, torch.randn(4, 3, generator=generator))
    return [float(model[place].weight.detach().norm()) / before for place, before in zip((0, 3), first, strict=True)]


def change_by_projection() -> float:
    """How much the output moves when weights of three times the norm are projected behind norms (eps of norms: 0)."""
    model = normed()
    for place in (1, 4):
        model[place].eps = 0.0
    optimizer, plastic = attached(model, NormalizeAndProject(norms="leave"))
    with torch.no_grad():
        model[0].weight.mul_(3.0)
        model[3].weight.mul_(0.2)
        before = model(ANY)
    update(model, optimizer, plastic, ANY)
    return float((model(ANY) - before).detach().abs().max())


def head_and_body() -> Any:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def change_by_injection() -> float:
    model = head_and_body()
    _, plastic = attached(model, PlasticityInjection())
    before = model(ANY)
    plastic.task_boundary()
    assert model.get_submodule("2.trained") is not None
    return float((model(ANY) - before).detach().abs().max())


def trained_by_injection() -> list[float]:
    """Trainable parameters before and after, and how many parameters of the head moved in 5 updates."""
    model = head_and_body()
    optimizer, plastic = attached(model, PlasticityInjection(), lr=0.1)
    before = sum(each.numel() for each in model.parameters() if each.requires_grad)
    plastic.task_boundary()
    after = sum(each.numel() for each in model.parameters() if each.requires_grad)
    start = {name: value.detach().clone() for name, value in model[2].named_parameters()}
    for _ in range(5):
        update(model, optimizer, plastic, ANY)
    moved = [name for name, value in model[2].named_parameters() if not torch.equal(value, start[name])]
    assert moved == ["trained.weight", "trained.bias"]
    return [before, after]


def distance(shrink: float, perturb: float) -> list[float]:
    """How far the network is from itself, and from a second one that is drawn from scratch, after a boundary."""
    model, other = head_and_body(), head_and_body()
    before = torch.cat([each.detach().flatten() for each in model.parameters()])
    attached(model, WarmStartShrinkAndPerturb(shrink, perturb))[1].task_boundary()
    attached(other, WarmStartShrinkAndPerturb(0.0, 1.0))[1].task_boundary()
    mine = torch.cat([each.detach().flatten() for each in model.parameters()])
    theirs = torch.cat([each.detach().flatten() for each in other.parameters()])
    return [float((mine - before).norm()), float((mine - theirs).norm())]


def first_step_after_a_reset(make: Callable[..., torch.optim.Optimizer]) -> float:
    """The size of Adam's first update of a head that was reset after 300 updates, over the step size."""
    model = head_and_body()
    optimizer = make(model.parameters(), lr=1e-3)
    plastic = neoteny.attach(model, optimizer, HardReset.head(), seed=3)
    for _ in range(300):
        update(model, optimizer, plastic, ANY)
    plastic.task_boundary()
    before = model[2].weight.detach().clone()
    update(model, optimizer, plastic, ANY)
    return float((model[2].weight.detach() - before).abs().mean()) / 1e-3


FACTORS = after_dash
BOUNDS = (-0.0357143, 0.0357143)
VECTORS: list[Vector] = [
    Vector("FIRE", "diag(3, 1), one iteration", [0.996117, 0.458530], lambda: after_fire([[3, 0], [0, 1]], 1), 5e-7),
    Vector("FIRE", "diag(3, 1), five iterations", [1.0, 0.997444], lambda: after_fire([[3, 0], [0, 1]], 5), 5e-7),
    Vector("FIRE", "diag(1, 0.01), ten iterations", [1, 0.529428], lambda: after_fire([[1, 0], [0, 0.01]], 10), 5e-7),
    Vector("FIRE", "an orthogonal matrix stays", [1, 1], lambda: after_fire([[0.6, 0.8], [-0.8, 0.6]], 10), 1e-12),
    Vector("FIRE", "64 x 64 Gaussian, 10 iterations: smallest", 0.07, lambda: gaussian_singular_values(10)[-1], 0.005),
    Vector("FIRE", "64 x 64 Gaussian, 20 iterations: smallest", 0.999999, lambda: gaussian_singular_values(20)[-1]),
    Vector("DASH", "weights (3, 4), average (4, 3)", 0.96, lambda: FACTORS([4, 3], 0.05), 1e-12),
    Vector("DASH", "weights (3, 4), average (-3, -4)", 0.05, lambda: FACTORS([-3, -4], 0.05), 1e-12),
    Vector("DASH", "weights (3, 4), average (4, -3)", 0.3, lambda: FACTORS([4, -3], 0.3), 1e-12),
    Vector("DASH", "weights (3, 4), average along them", 1.0, lambda: FACTORS([6, 8], 0.3), 1e-12),
    Vector(
        "WeightClipping", "784 inputs, bound 1: weights", [-0.0357143, 0.0357143], lambda: clipped_extremes("weight")
    ),
    Vector("WeightClipping", "784 inputs, bound 1: bias", [-0.0357143, 0.0357143], lambda: clipped_extremes("bias")),
    Vector("HareAndTortoise", "slow weight after 3 updates", 0.002997001, lambda: slow_and_fast(3)[0], 5e-10),
    Vector(
        "HareAndTortoise",
        "slow and fast weight when the fast one moves by 1 after a copy",
        [1.0 - 0.999**4, 2.0 - 0.999**4],
        lambda: slow_and_fast(4, 1.0),
        1e-12,
    ),
    Vector("NormalizeAndProject", "norms after 200 updates over the first", [1, 1], norms_after_training),
    Vector("NormalizeAndProject", "change of the output by a projection", 0.0, change_by_projection, 1e-12),
    Vector("PlasticityInjection", "change of the output", 0.0, change_by_injection, 1e-15),
    Vector("PlasticityInjection", "trained parameters before and after", [38, 38], trained_by_injection),
    Vector("WarmStartShrinkAndPerturb", "s=1, p=0: distance to before", 0.0, lambda: distance(1.0, 0.0)[0], 0.0),
    Vector("WarmStartShrinkAndPerturb", "s=0, p=1: distance to a new network", 0.0, lambda: distance(0.0, 1.0)[1], 0.0),
    Vector("HardReset", "torch's Adam: first step", 1.0, lambda: first_step_after_a_reset(torch.optim.Adam), 1e-4),
    Vector("HardReset", "optim.Adam: first step", 1.0, lambda: first_step_after_a_reset(neoteny.optim.Adam), 1e-4),
]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector.method}: {vector.what}")
def test_vector(vector: Vector) -> None:
    vector.check()
