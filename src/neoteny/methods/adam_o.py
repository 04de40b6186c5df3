"""AdamO: Adam that also pulls weight matrices towards isometries, outside the moments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from neoteny.methods.adam import Adam
from neoteny.methods.card import Card
from neoteny.methods.method import check_number
from neoteny.units.view import View


@dataclass(frozen=True)
class AdamO(Adam):
    r"""Adam with a decoupled penalty on dynamical isometry (AdamO, ICML 2026).

    The penalty of a matrix is \(P(W) = \lVert W^\top W - I \rVert_F^2\) if it has at least as many rows as columns,
    else \(\lVert W W^\top - I \rVert_F^2\). The moments see the gradient of the loss alone, and
    \(W \leftarrow W - \alpha\,\hat m / (\sqrt{\hat v} + \epsilon) - \alpha\lambda\,\nabla P(W)\), with
    \(\nabla P = 4 (W W^\top W - W)\) in both cases. The pull rotates the rows of units that are silent, too.

    It acts on every parameter of two or more axes that has a gradient; a convolution is the matrix (out, in * taps). A
    weight whose first axis counts inputs (a transposed convolution) is taken as it lies. To leave some alone, an
    embedding for example, give them a parameter group with `strength` 0. Known to us from descriptions and third-party
    code; the authors' own code is not verified.

    The pull takes two products of matrices per layer; with a batch smaller than the layer they are dearer than the
    update.

    Args:
        step_size: \(\alpha\), at least 0.
        betas: decay rates of both moments, each in [0, 1).
        eps: added to the root of the second moment.
        strength: \(\lambda\), at least 0. Values above \(1 / (4 \alpha \sigma^2)\), with \(\sigma\) the largest
            singular value of a weight, overshoot. The authors' value is not known to us.

    Example:
        >>> AdamO(1e-3, strength=0.1).strength
        0.1
    """

    strength: float | tuple[float, ...] = field(kw_only=True)

    card: ClassVar[Card] = Card(
        "optimizers",
        "all weights and biases; the pull acts on matrices",
        "at every update",
        "two numbers per weight",
        "AdamO, ICML 2026, on dynamical isometry",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "strength")

    def _decay(self, view: View, parameter: Tensor) -> None:
        if view.axes(parameter) < 2 or self.strength == 0.0:
            return
        matrix = parameter.detach().flatten(len(view.runs) + 1)
        pull = isometry_gradient(matrix).reshape(parameter.shape)
        size = view.per_run(self.step_size, parameter, view.axes(parameter))
        parameter.sub_(pull * (size * view.per_run(self.strength, parameter, view.axes(parameter))))


def isometry_penalty(matrix: Tensor) -> Tensor:
    """The squared distance of W^T W, or of W W^T if it is smaller, from the identity; (*R, out, in) -> (*R,)."""
    rows, columns = matrix.shape[-2:]
    gram = matrix.mT @ matrix if rows >= columns else matrix @ matrix.mT
    return (gram - _identity(gram)).square().sum((-2, -1))


def isometry_gradient(matrix: Tensor) -> Tensor:
    """The gradient of `isometry_penalty`, (*R, out, in), by way of the smaller of the two products."""
    rows, columns = matrix.shape[-2:]
    if rows >= columns:
        gram = matrix.mT @ matrix
        return 4.0 * (matrix @ (gram - _identity(gram)))
    gram = matrix @ matrix.mT
    return 4.0 * ((gram - _identity(gram)) @ matrix)


def _identity(gram: Tensor) -> Tensor:
    return torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
