"""Published test vectors of the methods, as the library itself gives them, attached to a module or as an optimizer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import SGD, UPGD, HareAndTortoise, L2Init, Method, ReDo, Spectral

pytestmark = pytest.mark.usefixtures("double_precision")

ACTIVITIES = torch.tensor([[0, 0, 0.03, 0], [1, 0, 3, 0], [2, 2, 0, 4]], dtype=torch.float64)  # 3 units, 4 inputs
W = torch.tensor([[1, -2, 0.5, 0]], dtype=torch.float64)
G = torch.tensor([[0.1, 0.2, -0.4, 3]], dtype=torch.float64)


def linear(weight: Tensor) -> nn.Linear:
    """A layer without bias that holds this weight."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return layer


class Flat:
    """A method on one linear layer whose loss is flat, under SGD."""

    def __init__(self, weight: Tensor, step_size: float, method: Method) -> None:
        layer = linear(weight)
        self.weight = layer.weight
        self.model = nn.Sequential(layer)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=step_size)
        self.plastic = neoteny.attach(self.model, self.optimizer, method, seed=1)

    def update(self) -> None:
        self.optimizer.zero_grad()
        (self.model(torch.ones(1, self.weight.shape[1])).sum() * 0.0).backward()
        self.optimizer.step()
        self.plastic.step()


@pytest.mark.parametrize(("threshold", "expected"), [(0.1, [0]), (1.0, [0, 1])])
def test_redo_resets_the_units_below_its_threshold(threshold: float, expected: list[int]) -> None:
    first, second = linear(ACTIVITIES), linear(torch.ones(2, 3))
    model = nn.Sequential(first, nn.ReLU(), second)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    method = ReDo(period=1, threshold=threshold)
    plastic = neoteny.attach(model, optimizer, method, example=torch.zeros(1, 4), seed=1, trained=True)
    model(torch.eye(4)).sum().backward()  # input k makes the units' activations column k
    optimizer.step()
    plastic.step()
    silent = (second.weight.detach() == 0.0).all(0).nonzero().flatten().tolist()
    assert silent == expected
    assert plastic.replaced == {"0": len(expected)}
    kept = [unit for unit in range(3) if unit not in expected]
    assert torch.equal(first.weight.detach()[kept], ACTIVITIES[kept])


UPGD_VECTORS = {
    "raw": [0.990759, -2.000001, 0.500268, -0.15],
    "corrected": [0.994378, -2.005379, 0.515102, -0.15],
    "local": [0.994457, -2.005893, 0.515704, -0.15],
}


@pytest.mark.parametrize("scale", UPGD_VECTORS)
class TestUPGDsFirstUpdate:
    def test_as_a_torch_optimizer(self, scale: str) -> None:
        layer = linear(W)
        optimizer = neoteny.optim.from_method(UPGD(0.1, decay_rate=0.9, noise_std=0.0, scale=scale), layer.parameters())
        layer.weight.grad = G.clone()
        optimizer.step()
        np.testing.assert_allclose(layer.weight.detach()[0], UPGD_VECTORS[scale], atol=5e-7)

    def test_in_a_stack_where_each_run_has_a_scale_of_its_own(self, scale: str) -> None:
        method = UPGD(0.1, decay_rate=0.9, noise_std=0.0, scale=scale)
        runs = neoteny.stack([nn.Sequential(linear(W)), nn.Sequential(linear(100.0 * W))], method)
        runs.apply({"0.weight": torch.stack([G, G])}, {})
        np.testing.assert_allclose(runs.view.tensors["0.weight"][0, 0].detach(), UPGD_VECTORS[scale], atol=5e-7)


def test_upgd_protects_nothing_when_no_weight_is_useful() -> None:
    layer = linear(W.abs() + 1.0)
    optimizer = neoteny.optim.from_method(UPGD(0.1, decay_rate=0.9, noise_std=0.0), layer.parameters())
    start = layer.weight.detach().clone()
    layer.weight.grad = torch.ones(1, 4)  # against weights above zero: every utility is negative
    optimizer.step()
    torch.testing.assert_close(layer.weight.detach(), start - 0.1)


def test_l2_init_pulls_home_on_a_flat_loss() -> None:
    run = Flat(torch.eye(2), 0.1, L2Init(0.5))
    with torch.no_grad():
        run.weight.copy_(torch.tensor([[3.0, 1.0], [0.0, -2.0]]))
    run.update()
    torch.testing.assert_close(run.weight.grad, 0.5 * torch.tensor([[2.0, 1.0], [0.0, -3.0]]))
    for _ in range(400):
        run.update()
    torch.testing.assert_close(run.weight.detach(), torch.eye(2), rtol=0, atol=1e-8)


def test_spectral_penalty_and_gradient_of_a_diagonal_matrix() -> None:
    method = Spectral(1.0)
    run = Flat(torch.diag(torch.tensor([3.0, 1.0])), 0.0, method)
    for _ in range(40):  # the kept vector converges
        run.update()
    torch.testing.assert_close(run.weight.grad, torch.tensor([[96.0, 0.0], [0.0, 0.0]]), rtol=1e-9, atol=1e-9)
    (pair,) = run.plastic._chain.pairs
    penalty = method.penalty(run.plastic.view, pair[1])
    assert penalty is not None
    assert float(penalty.detach()) == pytest.approx(64.0, rel=1e-12)


def test_spectral_pulls_the_largest_singular_value_to_one_and_leaves_smaller_ones() -> None:
    run = Flat(torch.diag(torch.tensor([3.0, 0.4])), 0.0, Spectral(0.1))
    for _ in range(40):
        run.update()
    run.optimizer.param_groups[0]["lr"] = 0.01
    for _ in range(2000):
        run.update()
    torch.testing.assert_close(run.weight.detach(), torch.diag(torch.tensor([1.0, 0.4])), rtol=0, atol=1e-6)


def test_hare_and_tortoise_average_after_three_updates_and_the_copy() -> None:
    run = Flat(torch.zeros(1, 1), 0.0, HareAndTortoise(decay=0.999, period=4))
    with torch.no_grad():
        run.weight.fill_(1.0)
    for _ in range(3):
        run.update()
    assert slow_weight(run) == pytest.approx(0.002997001, rel=1e-12)
    assert run.weight.item() == 1.0
    run.update()  # the copy
    copied = run.weight.item()
    assert copied == slow_weight(run) == pytest.approx(1.0 - 0.999**4, rel=1e-12)
    with torch.no_grad():
        run.weight.add_(1.0)
    assert slow_weight(run) == copied  # no shared storage


def slow_weight(run: Flat) -> float:
    with run.plastic.evaluating():
        return run.weight.item()


# With one count per tensor the first move grows to (1 - beta1) / sqrt(1 - beta2) = 3.162 step sizes; at update 301:
SHARED_COUNT_MOVE = 0.1 / math.sqrt(0.001) * math.sqrt(1.0 - 0.999**301)


@pytest.mark.parametrize(("kind", "expected"), [("ours", 1.0), ("torch", SHARED_COUNT_MOVE)])
def test_adams_first_move_of_a_reset_weight(kind: str, expected: float) -> None:
    first, second = linear(ACTIVITIES), linear(torch.ones(2, 3))
    model = nn.Sequential(first, nn.ReLU(), second)
    settings: dict[str, Any] = {"lr": 1e-4}
    make = neoteny.optim.Adam if kind == "ours" else torch.optim.Adam
    optimizer = make(model.parameters(), **settings)
    method = ReDo(period=300, threshold=0.1)
    plastic = neoteny.attach(model, optimizer, method, example=torch.zeros(1, 4), seed=1, trained=True)
    gradient = torch.ones(2, 3)
    for _ in range(300):
        model(torch.eye(4)).sum().backward()
        first.weight.grad = torch.zeros_like(first.weight)
        second.weight.grad = gradient.clone()
        optimizer.step()
        plastic.step()
    before = second.weight.detach().clone()
    model(torch.eye(4)).sum().backward()
    second.weight.grad = gradient.clone()
    optimizer.step()
    moved = (before - second.weight.detach()) / 1e-4
    torch.testing.assert_close(moved[:, 0], torch.full((2,), expected), rtol=1e-3, atol=0)
    torch.testing.assert_close(moved[:, 1:], torch.ones(2, 2), rtol=1e-3, atol=0)  # the others as before


def test_redo_in_a_stack_counts_each_runs_own() -> None:
    def network() -> nn.Sequential:
        return nn.Sequential(linear(ACTIVITIES), nn.ReLU(), linear(torch.ones(2, 3)))

    method = ReDo(period=1, threshold=(0.1, 1.0))
    runs = neoteny.stack([network(), network()], SGD(0.0), method, example=torch.zeros(1, 4), trained=True)
    runs.step(torch.eye(4).expand(2, 4, 4), torch.zeros(2, 4, 2))
    assert runs.replaced["0"].tolist() == [1, 2]
