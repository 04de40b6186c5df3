"""How far weight matrices are from isometries, which keep the length of every signal and every gradient."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from neoteny.metrics.shapes import check_tensors, weights_only


def distance_from_isometry(weights: Tensor | Iterable[Tensor], run_dims: int = 0, scaled: bool = True) -> Tensor:
    r"""How far the singular values of weight matrices are from 1, mean over the matrices.

    A weight of more than two axes is a matrix with one row per output. Of its singular values
    :math:`\sigma_1, \ldots, \sigma_k` (k is the smaller side) it is, with `scaled`,

    .. math::
        \frac1k \sum_i \Bigl(\frac{\sigma_i^2}{s} - 1\Bigr)^2
        = \frac{k \sum_i \sigma_i^4}{\bigl(\sum_i \sigma_i^2\bigr)^2} - 1,
        \qquad s = \frac1k \sum_i \sigma_i^2,

    which does not depend on the size of the weights: 0 for a multiple of an isometry, k - 1 for a matrix of rank 1.
    Without `scaled` it is the penalty that FIRE reports and AdamO makes smaller,

    .. math::
        \sum_i (\sigma_i^2 - 1)^2 = \|G - I\|_F^2, \qquad G = W^T W \text{ or } W W^T, \text{ the smaller one.}

    A matrix of zeros has no scale; its distance is 1, or k without `scaled`. As in `weight_magnitude`, tensors with
    fewer than two axes are left out.

    Args:
        weights: one tensor, or those of a network, each (*R, out, in, ...).
        run_dims: how many leading axes are runs.
        scaled: whether the mean squared singular value of each matrix is brought to 1 first.

    Returns:
        float64 (*R); nan for a run with a weight that is not finite.

    Example:
        >>> distance_from_isometry(torch.diag(torch.tensor([3.0, 3.0])))
        tensor(0., dtype=torch.float64)
        >>> distance_from_isometry(torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]), scaled=False)
        tensor(9., dtype=torch.float64)
    """
    name = "distance_from_isometry"
    tensors = weights_only(check_tensors(weights, name, "weights", run_dims), name, run_dims)
    return torch.stack([_distance(tensor.flatten(run_dims + 1), scaled) for tensor in tensors]).mean(0)


def _distance(matrix: Tensor, scaled: bool) -> Tensor:
    """Of each matrix (*R, out, in)."""
    matrix = matrix.to(torch.float64)
    finite = torch.isfinite(matrix).flatten(-2).all(-1)
    matrix = torch.where(finite[..., None, None], matrix, 0.0)
    matrix = matrix.mT if matrix.shape[-1] < matrix.shape[-2] else matrix
    count = matrix.shape[-2]
    if scaled:
        largest = matrix.abs().amax((-2, -1), keepdim=True)
        matrix = matrix / torch.where(largest > 0, largest, 1.0)  # squares stay in range
    gram = matrix @ matrix.mT
    if scaled:
        size = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
        gram = gram / torch.where(size > 0, size, 1.0)
    squares = (gram - torch.eye(count, dtype=gram.dtype, device=gram.device)).square().sum((-2, -1))
    return torch.where(finite, squares / (count if scaled else 1), torch.nan)
