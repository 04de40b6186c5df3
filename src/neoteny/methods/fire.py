"""FIRE: at a task boundary, every weight matrix moves to (nearly) the nearest isometry."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from neoteny.layers.kinds import input_first
from neoteny.methods.card import Card
from neoteny.methods.chosen_layers import belongs, check_layers, chosen_modules, refuse_without
from neoteny.methods.method import State, check_flag, check_number
from neoteny.methods.occasional import OccasionalMethod
from neoteny.units.view import View


@dataclass(frozen=True)
class FIRE(OccasionalMethod):
    r"""Orthogonalises weight matrices at a task boundary by Newton-Schulz iteration (FIRE 2026).

    \(X = W / \lVert W \rVert_F\), k times \(X \leftarrow \tfrac32 X - \tfrac12 X X^\top X\) (of the transpose where W
    is wide), then \(W \leftarrow \sqrt{d_\text{out} / d_\text{in}}\,X\). A convolution: each tap (out, in) by itself,
    the result divided by the number of taps; with groups, each group by itself. The packed projection of
    `nn.MultiheadAttention` is three matrices; a linear layer that packs several is one. Biases, norms and embeddings
    are kept. The optimizer starts again for all parameters, as the authors rebuild it.

    Ten iterations leave small singular values below 1: a matrix is orthogonal only where it was well conditioned. Each
    iteration takes two products of matrices, so that one act takes as long as some tens of updates with small batches.

    Args:
        iterations: k, at least 1; the authors use 10 for vision and 5 for language models.
        layers: "all" linear layers and convolutions, or a tuple of names of modules. The authors take all of a language
            model and of convolutional networks, of vision transformers only the projections to queries and keys.
        period: also act every `period` updates; 0 for boundaries alone.
        at_boundaries: act at task boundaries.
        clear_optimizer: put the optimizer's state back to its start.

    Example:
        >>> FIRE().iterations
        10
    """

    iterations: int = 10
    layers: str | tuple[str, ...] = "all"
    period: int = 0
    at_boundaries: bool = True
    clear_optimizer: bool = True

    shared_by_runs: ClassVar[tuple[str, ...]] = ("layers",)
    card: ClassVar[Card] = Card(
        "resets and projections of weights",
        "weights of linear layers and convolutions",
        "at a task boundary",
        "nothing",
        "FIRE 2026, at ICLR: weights moved to the nearest isometry between tasks",
    )

    def __post_init__(self) -> None:
        check_number(self, "iterations", 1, whole=True, single=True)
        check_layers(self, "layers", ("all",))
        self.check_moments()
        check_flag(self, "clear_optimizer")

    def init(self, view: View) -> State:
        """The counters; an unknown layer, and a network without any, are told at once."""
        modules = chosen_modules(view, self, self.layers)
        matrices = [layer.module for layer in view.layers if layer.weight is not None]
        matrices += [name for name, each in view.structure.named_modules() if isinstance(each, nn.MultiheadAttention)]
        refuse_without(self, (belongs(name, modules) for name in matrices), "linear layers and convolutions")
        return super().init(view)

    def act(self, view: View, state: State) -> None:
        """Orthogonalise, and let the optimizer start again."""
        modules = chosen_modules(view, self, self.layers)
        structure = dict(view.structure.named_modules())
        parameters = view.parameters
        for layer in view.layers:
            if layer.weight in parameters and belongs(layer.module, modules):
                weight = parameters[str(layer.weight)]
                weight.copy_(isometry(weight, self.iterations, structure[layer.module], len(view.runs)))
        for name, module in structure.items():
            packed = f"{name}.in_proj_weight" if name else "in_proj_weight"
            if isinstance(module, nn.MultiheadAttention) and packed in parameters and belongs(name, modules):
                for part in parameters[packed].chunk(3, dim=-2):
                    part.copy_(_scaled(part, self.iterations))
        for name in parameters if self.clear_optimizer else ():
            view.restart_optimizer(name)


def isometry(weight: Tensor, iterations: int, module: nn.Module, run_axes: int = 0) -> Tensor:
    """The weight of a layer, or of n networks (*R, ...), moved towards the nearest isometry."""
    taps = math.prod(weight.shape[run_axes + 2 :])
    groups = int(getattr(module, "groups", 1))
    split = weight.detach().reshape(*weight.shape[: run_axes + 2], taps)
    split = split.unflatten(run_axes, (groups, -1)).movedim(-1, run_axes + 1)  # (*R, groups, taps, out, in)
    if input_first(module):
        split = split.transpose(-1, -2)
    new = _scaled(split, iterations) / taps
    if input_first(module):
        new = new.transpose(-1, -2)
    return new.movedim(run_axes + 1, -1).reshape(weight.shape)


def _scaled(matrix: Tensor, iterations: int) -> Tensor:
    return newton_schulz(matrix, iterations) * math.sqrt(matrix.shape[-2] / matrix.shape[-1])


def newton_schulz(matrix: Tensor, iterations: int) -> Tensor:
    """The iterate (..., out, in) that begins at the matrix over its Frobenius norm; zeros stay zeros."""
    wide = matrix.shape[-2] < matrix.shape[-1]
    x = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    x = x.mT if wide else x
    size = torch.linalg.matrix_norm(x, keepdim=True)
    x = x / torch.where(size > 0.0, size, torch.ones_like(size))
    for _ in range(iterations):
        x = 1.5 * x - 0.5 * (x @ (x.mT @ x))
    return (x.mT if wide else x).to(matrix.dtype)
