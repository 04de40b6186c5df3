"""Published and hand-computed numbers of the optimizers, as the library gives them; one row each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.layers.regions import Region
from neoteny.methods import TRAC, UPGD, AdamRel, AdaUPGD, Method
from neoteny.methods.adam_o import isometry_gradient, isometry_penalty
from neoteny.methods.muon import orthogonalise
from neoteny.methods.trac import erfi
from support.vectors import Vector

W = (1.0, -2.0, 0.5, 0.0)
G = (0.1, 0.2, -0.4, 3.0)
ROOT_HALF = torch.tensor(math.sqrt(0.5), dtype=torch.float64)
TALL = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]], dtype=torch.float64)


def parameter(values: Sequence[float]) -> nn.Parameter:
    return nn.Parameter(torch.tensor([list(values)], dtype=torch.float64))


def first_update(method: Method) -> Callable[[], list[float]]:
    """The weights W after one update with the gradients G."""

    def compute() -> list[float]:
        weight = parameter(W)
        weight.grad = torch.tensor([G], dtype=torch.float64)
        neoteny.optim.from_method(method, [weight], seed=0).step()
        return weight.detach()[0].tolist()

    return compute


def scaled_utility(scale: str) -> Callable[[], list[float]]:
    """u-bar, which an update of 0.1 g (1 - u-bar) shows."""

    def compute() -> list[float]:
        after = first_update(UPGD(0.1, decay_rate=0.9, noise_std=0.0, scale=scale))()
        return [1.0 - (w - new) / (0.1 * g) for w, g, new in zip(W, G, after, strict=True)]

    return compute


def trac_path(what: str) -> Callable[[], list[float]]:
    """S, or theta - theta_0, of one weight under SGD with gradient 1, after each of three updates."""

    def compute() -> list[float]:
        model = nn.Linear(1, 1, bias=False).double()
        with torch.no_grad():
            model.weight.zero_()  # so that the smallest displacements are exact
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plastic = neoteny.attach(model, optimizer, TRAC())
        found: dict[str, list[float]] = {"S": [], "theta": []}
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 1, dtype=torch.float64)).sum().backward()
            optimizer.step()
            plastic.step()
            found["S"].append(float(plastic.state_dict()["states"][0]["total"]))
            found["theta"].append(float(model.weight.detach()))
        return [1e8 * value for value in found[what]]

    return compute


def adam_after(act: Callable[[Any, nn.Linear, Any], None], make: Callable[..., Any]) -> Callable[[], float]:
    """The next move of a weight with gradient 1, in step sizes, after 20,000 updates and then `act`."""

    def compute() -> float:
        model = nn.Linear(1, 1, bias=False).double()
        optimizer = make(model.parameters(), lr=1e-3)
        plastic = neoteny.attach(model, optimizer, AdamRel())
        model.weight.grad = torch.ones(1, 1, dtype=torch.float64)
        optimizer.step()
        state = optimizer.state[model.weight]
        state["exp_avg"].fill_(1.0)
        state["exp_avg_sq"].fill_(1.0)
        state["step"].fill_(20_000)
        act(plastic, model, optimizer)
        before = float(model.weight.detach())
        optimizer.step()
        return abs(float(model.weight.detach()) - before) / 1e-3

    return compute


def boundary(plastic: Any, model: nn.Linear, optimizer: Any) -> None:
    plastic.task_boundary()


def reset(plastic: Any, model: nn.Linear, optimizer: Any) -> None:
    plastic.view.was_reset(Region.whole("weight", model.weight, 0))


def flat(values: Tensor) -> list[float]:
    return values.flatten().tolist()


def singular_values_after_muon() -> list[float]:
    return torch.diagonal(orthogonalise(torch.diag(torch.tensor([3.0, 4.0], dtype=torch.float64)))).tolist()


VECTORS: list[Vector] = [
    Vector("UPGD", "scaled utilities, the code's scale", [0.075858, 0.999955, 0.993307, 0.5], scaled_utility("raw")),
    Vector(
        "UPGD", "scaled utilities, the paper's scale", [0.437823, 0.731059, 0.622459, 0.5], scaled_utility("corrected")
    ),
    Vector(
        "UPGD",
        "weights after one update, the code's scale",
        [0.990759, -2.000001, 0.500268, -0.15],
        first_update(UPGD(0.1, decay_rate=0.9, noise_std=0.0, scale="raw")),
    ),
    Vector(
        "UPGD",
        "weights after one update, the paper's scale",
        [0.994378, -2.005379, 0.515102, -0.15],
        first_update(UPGD(0.1, decay_rate=0.9, noise_std=0.0)),
    ),
    Vector(
        "UPGD",
        "weights after one update, local scale",
        [0.994457, -2.005893, 0.515704, -0.15],
        first_update(UPGD(0.1, decay_rate=0.9, noise_std=0.0, scale="local")),
    ),
    Vector(
        "AdaUPGD",
        "weights after one update",
        [0.887576, -2.053786, 0.575506, -0.1],
        first_update(AdaUPGD(0.1, decay_rate=0.9, noise_std=0.0)),
    ),
    Vector(
        "TRAC", "erfi of the root of one half", 0.953438, lambda: float(erfi(torch.tensor(math.sqrt(0.5)).double()))
    ),
    Vector("TRAC", "sum of scales, in 1e-8, three updates", [10.0582, 6.0, 9.62983], trac_path("S"), 5e-5),
    Vector("TRAC", "displacement, in 1e-8, three updates", [-1.00582, -1.14574, -2.53917], trac_path("theta"), 5e-6),
    Vector("AdamO", "penalty of a 3 x 2 matrix", 9.0, lambda: float(isometry_penalty(TALL))),
    Vector("AdamO", "its gradient", [0, 0, 0, 24, 0, 0], lambda: flat(isometry_gradient(TALL))),
    Vector("AdamO", "penalty of its transpose", 9.0, lambda: float(isometry_penalty(TALL.mT))),
    Vector("AdamO", "gradient of its transpose", [0, 0, 0, 0, 24, 0], lambda: flat(isometry_gradient(TALL.mT))),
    Vector("Muon", "singular values 0.6 and 0.8 after five steps", [0.722876, 1.119204], singular_values_after_muon),
    Vector(
        "AdamRel",
        "next update of a settled weight, torch.optim.Adam, in step sizes",
        0.316228,
        adam_after(boundary, torch.optim.Adam),
    ),
    Vector(
        "AdamRel",
        "next update of a settled weight, neoteny.optim.Adam, in step sizes",
        0.316228,
        adam_after(boundary, neoteny.optim.Adam),
    ),
    Vector(
        "Adam",
        "first update of a reset weight, a count of its own, in step sizes",
        1.0,
        adam_after(reset, neoteny.optim.Adam),
    ),
    Vector(
        "Adam",
        "first update of a reset weight, a count that all share (torch), in step sizes",
        3.162,
        adam_after(reset, torch.optim.Adam),
        5e-4,
    ),
]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector.method}: {vector.what}")
def test_vector(vector: Vector) -> None:
    vector.check()
