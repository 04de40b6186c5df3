"""Gradients of single examples: how strong they are, and whether they ask for the same change.

Their product is large where a network is ready to learn: a common direction, and enough signal to follow it. The idea
is known as optimization readiness; the formulas here are our own reading of it.

Gradients are (*R, n, ...): n examples, then the axes of a parameter. `run_dims` says how many leading axes are runs.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from neoteny.metrics.shapes import check_tensors, per_run


def gradient_agreement(gradients: Tensor | Iterable[Tensor], run_dims: int = 0) -> Tensor:
    r"""The mean cosine between the gradients of two different examples.

    .. math::
        \frac{1}{n (n - 1)} \sum_{i \ne j} \frac{g_i \cdot g_j}{\|g_i\| \|g_j\|}
        = \frac{\bigl\|\sum_i u_i\bigr\|^2 - \sum_i \|u_i\|^2}{n (n - 1)}, \qquad u_i = \frac{g_i}{\|g_i\|}

    with all parameters in one vector. 1: all examples ask for the same change; 0: for unrelated ones. The cosine with a
    gradient of zero is 0.

    Args:
        gradients: one tensor, or those of all parameters of a network, each (*R, n, ...) with n of at least 2.
        run_dims: how many leading axes are runs.

    Returns:
        float64 (*R), from -1 / (n - 1) to 1; nan for a run with a gradient that is not finite.

    Example:
        >>> gradient_agreement(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]]))
        tensor(0.3333, dtype=torch.float64)
    """
    vectors, finite = _vectors(gradients, "gradient_agreement", run_dims, 2)
    lengths = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    units = torch.where(lengths > 0, vectors / torch.where(lengths > 0, lengths, 1.0), 0.0)
    return torch.where(finite, agreement_of_sum(units.sum(-2), lengths[..., 0]), torch.nan)


def agreement_of_sum(total: Tensor, lengths: Tensor) -> Tensor:
    """`gradient_agreement` from the sum of the unit vectors, (*R, P), and the lengths of the gradients, (*R, n)."""
    count = lengths.shape[-1]
    return (total.square().sum(-1) - (lengths > 0).sum(-1)) / (count * (count - 1))


def gradient_strength(gradients: Tensor | Iterable[Tensor], run_dims: int = 0) -> Tensor:
    r"""The mean length of the gradients of single examples, :math:`\frac1n \sum_i \|g_i\|`.

    Args:
        gradients: one tensor, or those of all parameters of a network, each (*R, n, ...).
        run_dims: how many leading axes are runs.

    Returns:
        float64 (*R); nan for a run with a gradient that is not finite.

    Example:
        >>> gradient_strength(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor(2.5000, dtype=torch.float64)
    """
    vectors, finite = _vectors(gradients, "gradient_strength", run_dims, 1)
    return torch.where(finite, torch.linalg.vector_norm(vectors, dim=-1).mean(-1), torch.nan)


def _vectors(gradients: Tensor | Iterable[Tensor], metric: str, run_dims: int, fewest: int) -> tuple[Tensor, Tensor]:
    """The gradients (*R, n, P) in float64, and which runs are finite, (*R)."""
    tensors = check_tensors(gradients, metric, "gradients", run_dims)
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if any(tensor.dim() <= run_dims or tensor.shape[run_dims] != tensors[0].shape[run_dims] for tensor in tensors):
        raise ValueError(
            f"{metric}: gradients must have shape (*runs, examples, ...) with equally many examples, "
            f"got shapes {shapes}."
        )
    if tensors[0].shape[run_dims] < fewest:
        raise ValueError(f"{metric}: gradients of at least {fewest} examples are needed, got shapes {shapes}.")
    vectors = torch.cat([per_run(tensor, run_dims + 1) for tensor in tensors], -1)
    finite = torch.isfinite(vectors).flatten(-2).all(-1)
    return torch.where(finite[..., None, None], vectors, 0.0), finite
