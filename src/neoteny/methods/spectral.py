"""Spectral regularisation: keep the largest singular value of every layer near one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from neoteny.draws import rng
from neoteny.layers.parameters import LayerParameters
from neoteny.methods.card import Card
from neoteny.methods.chosen_layers import refuse_without
from neoteny.methods.method import Method, State, check_number, slot
from neoteny.units.view import View


@dataclass(frozen=True)
class Spectral(Method):
    r"""Spectral regularisation: keeps the largest singular value of every layer near one (Lewandowski et al. 2025).

    Adds \(\lambda (\sum_l (\sigma_1(W_l)^k - t)^2 + \sum_l \lVert b_l \rVert^{2k} + \sum (g - 1)^2)\) to the loss, over
    the weights and biases of linear layers and convolutions and the scales \(g\) of norms. The largest singular value
    is \(\sigma_1 = u^\top W v\) with \(u, v\) from one step of power iteration per update, kept from update to update
    and held constant in the gradient. The target \(t\) is 1. A convolution is the matrix (out, in * taps).

    The bias term has two readings, \(\lVert b \rVert^{2k}\) and \(\lVert b \rVert^2\); this is the first (the second
    is `bias_power=1`). The authors of L2-ER run it as a baseline with `Spectral(..., bias_power=1, target=2.0,
    iterations=10)`.

    Args:
        strength: \(\lambda\), at least 0. Baselines of others use 1e-3 (MNIST) and 1e-2 (CIFAR, ImageNet).
        power: \(k\), at least 1; the authors use 2.
        bias_power: the \(k\) of the bias term, at least 1.
        target: \(t\), what \(\sigma_1^k\) is pulled to, at least 0.
        iterations: steps of power iteration per update, at least 1.

    Example:
        >>> Spectral(1e-3).power
        2
    """

    strength: float | tuple[float, ...]
    power: int = 2
    bias_power: int = 2
    target: float | tuple[float, ...] = 1.0
    iterations: int = 1

    card: ClassVar[Card] = Card(
        "regularisers",
        "weights, biases and scales of norms",
        "at every update",
        "one vector per weight matrix",
        "Lewandowski et al. 2025, Learning continually by spectral regularization",
    )

    def __post_init__(self) -> None:
        check_number(self, "strength")
        check_number(self, "power", 1, whole=True, single=True)
        check_number(self, "bias_power", 1, whole=True, single=True)
        check_number(self, "target")
        check_number(self, "iterations", 1, whole=True, single=True)

    def init(self, view: View) -> State:
        """The right singular vector of every weight, drawn at random."""
        refuse_without(self, (True for _ in view.layers), "linear layers, convolutions and norms")
        state: State = {"parameters": {}}
        parameters = view.parameters
        for layer in view.layers:
            if layer.weight is not None and layer.weight in parameters:
                _vector(view, state, layer.weight, _matrix(view, layer, parameters[layer.weight]))
        return state

    def penalty(self, view: View, state: State) -> Tensor | None:
        """The three sums, times the strength."""
        terms: list[Tensor] = []
        parameters = view.parameters
        run_axes = len(view.runs)
        for layer in view.layers:
            if layer.weight is not None and layer.weight in parameters:
                matrix = _matrix(view, layer, parameters[layer.weight])
                vector = _vector(view, state, layer.weight, matrix)
                sigma = _largest_singular_value(matrix, vector, self.iterations)
                terms.append((sigma**self.power - view.per_run(self.target, sigma, axes=0)) ** 2)
            if layer.scale is not None and layer.scale in parameters:
                terms.append((parameters[layer.scale] - 1.0).square().flatten(run_axes).sum(-1))
            elif layer.scale is None and layer.bias is not None and layer.bias in parameters:
                square = parameters[layer.bias].square().flatten(run_axes).sum(-1)
                terms.append(square**self.bias_power)
        if not terms:
            return None
        total = torch.stack(terms).sum(0)  # (*R,)
        return total * view.per_run(self.strength, total, axes=0)


def _matrix(view: View, layer: LayerParameters, weight: Tensor) -> Tensor:
    """The weight of a layer as (*R, out, in * taps), whichever axis of it counts outputs."""
    run_axes = len(view.runs)
    return layer.matrix(weight, run_axes).flatten(run_axes, run_axes + 1)


def _vector(view: View, state: State, name: str, matrix: Tensor) -> Tensor:
    """The kept right singular vector of a weight, (*R, in), of length one."""

    def draw() -> Tensor:
        row = torch.zeros(view.runs, dtype=torch.int64, device=matrix.device)
        vector = rng.normal(view.seeds, 0, f"{name}/spectral", row, matrix.shape[-1])
        vector = vector.reshape(*view.runs, matrix.shape[-1]).to(matrix)
        return vector / vector.norm(dim=-1, keepdim=True)

    return slot(state, name, draw)


def _largest_singular_value(matrix: Tensor, right: Tensor, iterations: int) -> Tensor:
    """u^T W v (*R,), after some steps of power iteration that change `right` in place."""
    smallest = torch.finfo(matrix.dtype).tiny
    left = right
    with torch.no_grad():
        for _ in range(iterations):
            left = (matrix @ right.unsqueeze(-1)).squeeze(-1)
            left = left / left.norm(dim=-1, keepdim=True).clamp_min(smallest)
            moved = (left.unsqueeze(-2) @ matrix).squeeze(-2)
            length = moved.norm(dim=-1, keepdim=True)
            # A matrix of zeros gives no direction: the vector stays.
            right.copy_(torch.where(length > 0.0, moved / length.clamp_min(smallest), right))
    return (left.unsqueeze(-2) @ matrix @ right.unsqueeze(-1).clone()).squeeze(-1).squeeze(-1)
