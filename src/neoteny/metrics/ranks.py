"""The number of directions a matrix really uses: effective rank (the paper's equation 1), stable rank, rank_99.

The matrix is a layer's activations on a sample of inputs (n inputs, m units), not centred, or a weight matrix. All
three follow from the singular values, which are computed in float64 for every input: single precision turns every
zero singular value into rounding noise, and a layer of 2,000 units has enough of them to be counted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from neoteny.metrics.shapes import check_matrices


def effective_rank(matrix: Tensor) -> Tensor:
    r"""Effective rank of each matrix: the exponential of the entropy of its normalised singular values.

    .. math::
        p_k = \sigma_k / \sum_j \sigma_j, \qquad
        \operatorname{erank} = \exp\Bigl(-\sum_k p_k \log p_k\Bigr), \qquad 0 \log 0 = 0

    It lies between 1 and the rank. A matrix of zeros uses no direction at all and gives 0.

    Args:
        matrix: (*R, n, m), any real type.

    Returns:
        float64 (*R); nan for a run with a value that is not finite.

    Example:
        >>> round(effective_rank(torch.eye(3)).item(), 6)
        3.0
        >>> effective_rank(torch.ones(2, 5, 3)).shape  # two runs
        torch.Size([2])

    References:
        Roy and Vetterli, "The effective rank: a measure of effective dimensionality", 2007; equation 1 of the
        paper.
    """
    share, finite = _normalised_singular_values(matrix, "effective_rank")
    share = share / share.sum(-1, keepdim=True).clamp_min(1.0)  # the sum is at least 1, or 0 for a matrix of zeros
    rank = torch.exp(-torch.xlogy(share, share).sum(-1))
    rank = torch.where(share.amax(-1) > 0, rank, 0.0)
    return torch.where(finite, rank, torch.nan)


def stable_rank(matrix: Tensor) -> Tensor:
    r"""Stable rank of each matrix: the squared Frobenius norm over the squared largest singular value.

    .. math::
        \|A\|_F^2 / \sigma_1^2 = \sum_k \sigma_k^2 / \sigma_1^2

    It lies between 1 and the rank, and small singular values hardly count. A matrix of zeros gives 0.

    Args:
        matrix: (*R, n, m), any real type.

    Returns:
        float64 (*R); nan for a run with a value that is not finite.

    Example:
        >>> stable_rank(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
        tensor(1.2500, dtype=torch.float64)
    """
    relative, finite = _normalised_singular_values(matrix, "stable_rank")
    return torch.where(finite, relative.square().sum(-1), torch.nan)


def rank_99(matrix: Tensor) -> Tensor:
    r"""The smallest number of singular values, largest first, that hold 99% of the sum of all.

    .. math::
        \min \Bigl\{ k : \sum_{j \le k} \sigma_j \ge 0.99 \sum_j \sigma_j \Bigr\}

    A tie is decided with a tolerance of 1e-9, so that rounding does not add a direction. A matrix of zeros gives 0.

    Args:
        matrix: (*R, n, m), any real type.

    Returns:
        Whole numbers in float64 (*R); nan for a run with a value that is not finite.

    Example:
        >>> rank_99(torch.diag(torch.tensor([98.0, 1.0, 1.0])))
        tensor(2., dtype=torch.float64)
    """
    relative, finite = _normalised_singular_values(matrix, "rank_99")
    held = relative.cumsum(-1)
    missing = held < (0.99 - 1e-9) * held[..., -1:]
    count = missing.sum(-1, dtype=torch.float64) + (relative[..., 0] > 0)
    return torch.where(finite, count, torch.nan)


def _normalised_singular_values(matrix: Tensor, metric: str) -> tuple[Tensor, Tensor]:
    """Singular values over the largest one, descending, (*R, min(n, m)), and which runs are finite, (*R)."""
    matrix = check_matrices(matrix, metric, "matrix", "n, m")
    matrix = matrix.to(torch.float64)
    finite = torch.isfinite(matrix).flatten(-2).all(-1)
    # One matrix that is not finite would raise for the whole stack.
    matrix = torch.where(finite[..., None, None], matrix, 0.0)
    # Entries of at most 1 keep squares and sums in range, so that the measures do not depend on scale.
    largest_entry = matrix.abs().amax((-2, -1), keepdim=True)
    values = torch.linalg.svdvals(matrix / torch.where(largest_entry > 0, largest_entry, 1.0))
    top = values[..., :1]
    # What lies below is rounding error of the decomposition itself, as in torch.linalg.matrix_rank.
    noise = max(matrix.shape[-2:]) * torch.finfo(torch.float64).eps
    values = torch.where(values > noise * top, values, 0.0)
    return values / torch.where(top > 0, top, 1.0), finite
