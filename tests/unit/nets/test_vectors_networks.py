"""Numbers of activation functions that were computed by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from neoteny.nets import AID, CReLU, DeepFourier, SmoothLeaky
from support.vectors import Vector

POINTS = (-5.0, -1.0, 1.0, 5.0)
AT_POINTS = (-0.501081, -0.242982, 0.857018, 4.998919)


def of(layer: nn.Module, x: Sequence[float]) -> list[float]:
    return layer(torch.tensor([x], dtype=torch.float64))[0].tolist()


def in_evaluation(layer: nn.Module, x: Sequence[float]) -> Callable[[], list[float]]:
    return lambda: of(layer.eval(), x)


def slopes(layer: nn.Module, x: Tensor) -> Tensor:
    x = x.to(torch.float64).requires_grad_()
    return torch.autograd.grad(layer(x).sum(), x)[0]


def mean_square(p: float, symmetric: bool = True) -> float:
    """E[y^2] over E[x^2] of AID in training, of 400,000 normal numbers."""
    torch.manual_seed(0)
    x = torch.randn(400, 1000, dtype=torch.float64)
    x = x if symmetric else x.abs()
    return float(AID(p)(x).square().mean() / x.square().mean())


def largest_error_of_pairs() -> float:
    y = DeepFourier()(torch.linspace(-9, 9, 1001, dtype=torch.float64).view(1, -1))
    return float((y[:, :1001].square() + y[:, 1001:].square() - 1.0).abs().max())


def smallest_slope() -> float:
    return float(slopes(SmoothLeaky(), torch.linspace(-6, 6, 120001)).min())


VECTORS: list[Vector] = [
    Vector("CReLU", "both signs apart", (2, 0, 0.5, 0, 3, 0), lambda: of(CReLU(), (2.0, -3.0, 0.5)), 0.0),
    Vector("DeepFourier", "squares of every pair sum to 1", 0.0, largest_error_of_pairs, 1e-15),
    Vector("AID", "p=0.9 in evaluation", (-0.2, -0.05, 0.9, 2.7), in_evaluation(AID(0.9), (-2, -0.5, 1, 3)), 1e-12),
    Vector("AID", "p=1 is ReLU", (0, 0, 1, 3), lambda: of(AID(1.0), (-2, -0.5, 1, 3)), 0.0),
    Vector("AID", "p=0.5 is linear", (-1, -0.25, 0.5, 1.5), in_evaluation(AID(0.5), (-2, -0.5, 1, 3)), 0.0),
    Vector("AID", "E[y^2] / E[x^2], symmetric, p=0.9", 0.5, lambda: mean_square(0.9), 0.01),
    Vector("AID", "E[y^2] / E[x^2], symmetric, p=0.3", 0.5, lambda: mean_square(0.3), 0.01),
    Vector("AID", "E[y^2] / E[x^2], positive x, p=0.3", 0.3, lambda: mean_square(0.3, symmetric=False), 0.01),
    Vector("SmoothLeaky", "f(-5), f(-1), f(1), f(5)", AT_POINTS, lambda: of(SmoothLeaky(), POINTS), 5e-7),
    Vector("SmoothLeaky", "f'(0)", 0.55, lambda: float(slopes(SmoothLeaky(), torch.zeros(1))), 1e-12),
    Vector("SmoothLeaky", "smallest slope on [-6, 6]", 0.0101, smallest_slope, 5e-5),
]  # fmt: skip


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector.method}: {vector.what}")
def test_vector(vector: Vector) -> None:
    vector.check()
