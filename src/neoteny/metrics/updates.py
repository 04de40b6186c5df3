"""What updates do to a network: how much of the loss they take away, and how far they move the outputs."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from neoteny.metrics.shapes import check_tensors, per_run

SMALLEST_LOSS = 1e-8
"""Losses below count as this much."""


def one_step_plasticity(
    losses: Tensor | Iterable[Tensor], losses_after: Tensor | Iterable[Tensor], run_dims: int = 0
) -> Tensor:
    r"""The share of its loss that an update takes away, mean over updates.

    .. math::
        \max\Bigl(1 - \frac{L^+}{\max(L, 10^{-8})},\; 0\Bigr)

    with :math:`L` and :math:`L^+` the loss before and after the update, both on the batch of the update. It lies
    between 0 (nothing was learned) and 1.

    Args:
        losses: before each update, (*R, ...).
        losses_after: after it, of the same shape.
        run_dims: how many leading axes are runs; the mean is over all others.

    Returns:
        float64 (*R); nan for a run with a loss that is not finite.

    Example:
        >>> one_step_plasticity(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 3.0]))
        tensor(0.2500, dtype=torch.float64)

    References:
        Elsayed and Mahmood 2024, Addressing loss of plasticity and catastrophic forgetting in continual learning.
    """
    before, after = _pairs(losses, losses_after, "one_step_plasticity", ("losses", "losses_after"), run_dims, 0)
    shares = [1.0 - b.double() / a.double().clamp_min(SMALLEST_LOSS) for a, b in zip(before, after, strict=True)]
    found = torch.cat([per_run(each, run_dims) for each in shares], -1)
    values = found.clamp_min(0.0).mean(-1)
    return torch.where(_finite(before, run_dims) & _finite(after, run_dims), values, torch.nan)


def churn(outputs: Tensor | Iterable[Tensor], previous: Tensor | Iterable[Tensor], run_dims: int = 0) -> Tensor:
    r"""How far the outputs on the same inputs have moved: the squared length of the change, mean over inputs.

    .. math::
        \frac1n \sum_i \|f(x_i) - f_{\text{previous}}(x_i)\|^2

    Args:
        outputs: of the network now, (*R, n, ...): one tensor, or several, whose changes add up.
        previous: its outputs on the same inputs before an update or a task, of the same shape.
        run_dims: how many leading axes are runs.

    Returns:
        float64 (*R); nan for a run with an output that is not finite.

    Example:
        >>> churn(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 2.0], [0.0, 0.0]]))
        tensor(12.5000, dtype=torch.float64)
    """
    now, before = _pairs(outputs, previous, "churn", ("outputs", "previous"), run_dims, 1)
    moved = [
        per_run((a.double() - b.double()).square(), run_dims).sum(-1) / a.shape[run_dims]
        for a, b in zip(now, before, strict=True)
    ]
    values = torch.stack(moved).sum(0)
    return torch.where(_finite(now, run_dims) & _finite(before, run_dims), values, torch.nan)


def _pairs(
    first: Tensor | Iterable[Tensor],
    second: Tensor | Iterable[Tensor],
    metric: str,
    names: tuple[str, str],
    run_dims: int,
    axes: int,
) -> tuple[list[Tensor], list[Tensor]]:
    """Both arguments as lists of tensors of equal shapes, none of them empty, each with `axes` axes behind the runs."""
    one, other = (
        check_tensors(each, metric, name, run_dims) for each, name in zip((first, second), names, strict=True)
    )
    shapes, others = ([tuple(tensor.shape) for tensor in each] for each in (one, other))
    if shapes != others:
        raise ValueError(f"{metric}: {names[0]} and {names[1]} must have the same shape, got {shapes} and {others}.")
    if any(tensor.dim() < run_dims + axes or not tensor.numel() for tensor in one):
        needed = "(*runs, inputs, ...)" if axes else "(*runs, ...)"
        raise ValueError(f"{metric}: {names[0]} must have shape {needed} and must not be empty, got shapes {shapes}.")
    return one, other


def _finite(tensors: list[Tensor], run_dims: int) -> Tensor:
    return torch.stack([torch.isfinite(per_run(tensor, run_dims)).all(-1) for tensor in tensors]).all(0)
