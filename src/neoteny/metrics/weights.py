"""The size of a network's weights, of their distance from initialisation, and of its gradients.

Each takes one tensor or all the tensors of a network, pooled. `run_dims` says how many leading axes are runs: 0 for one
network, 1 for tensors (R, ...) of a stack.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from neoteny.metrics.shapes import check_tensors, per_run, weights_only


def weight_magnitude(weights: Tensor | Iterable[Tensor], run_dims: int = 0) -> Tensor:
    r"""The average absolute weight: the sum of :math:`|w|` over all weights, divided by their number.

    Tensors with fewer than two axes behind the runs (biases, the scales and shifts of norms) are left out, so that
    `model.parameters()` can be passed as it is.

    Args:
        weights: one tensor, or those of a network, each (*R, out, in, ...).
        run_dims: how many leading axes are runs.

    Returns:
        float64 (*R); nan for a run with a weight that is not finite.

    Example:
        >>> weight_magnitude(torch.tensor([[1.0, -2.0], [0.0, 5.0]]))
        tensor(2., dtype=torch.float64)
        >>> weight_magnitude([torch.ones(2, 2), torch.full((1, 4), -3.0), torch.ones(7)])
        tensor(2., dtype=torch.float64)
    """
    tensors = weights_only(
        check_tensors(weights, "weight_magnitude", "weights", run_dims), "weight_magnitude", run_dims
    )
    sums = [per_run(tensor, run_dims).abs().sum(-1) for tensor in tensors]
    count = sum(tensor.shape[run_dims:].numel() for tensor in tensors)
    total = torch.stack(sums, dim=-1).sum(-1)
    return _nan_unless_finite(total / count)


def weight_drift(weights: Tensor | Iterable[Tensor], initial: Tensor | Iterable[Tensor], run_dims: int = 0) -> Tensor:
    r"""How far the weights are from where they started, relative to where they started.

    .. math::
        \|w - w_0\|_2 / \|w_0\|_2

    with all weights of the network in one vector. 0 is no change; a fresh, independent draw from the same centred
    distribution is near :math:`\sqrt 2`. As in `weight_magnitude`, tensors with fewer than two axes are left out.

    Args:
        weights: one tensor, or those of a network, each (*R, out, in, ...).
        initial: the same tensors as they were at initialisation, in the same order.
        run_dims: how many leading axes are runs.

    Returns:
        float64 (*R); nan for a run with a weight that is not finite, inf where only the initial weights are all zero.

    Example:
        >>> weight_drift(torch.tensor([[3.0, 0.0], [0.0, 8.0]]), torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
        tensor(0.8000, dtype=torch.float64)
    """
    name = "weight_drift"
    now = check_tensors(weights, name, "weights", run_dims)
    then = check_tensors(initial, name, "initial", run_dims)
    shapes, initial_shapes = [tuple(t.shape) for t in now], [tuple(t.shape) for t in then]
    if shapes != initial_shapes:
        raise ValueError(
            f"{name}: weights and initial must hold the same tensors in the same order, "
            f"got shapes {shapes} and {initial_shapes}."
        )
    now, then = weights_only(now, name, run_dims), weights_only(then, name, run_dims)
    way = _norm([a.to(torch.float64) - b for a, b in zip(now, then, strict=True)], run_dims)
    start = _norm(then, run_dims)
    drift = torch.where(way == 0, 0.0, way / start)
    return torch.where(torch.isfinite(way + start), drift, torch.nan)


def gradient_norm(grads: Tensor | Iterable[Tensor | None], run_dims: int = 0) -> Tensor:
    r"""The L2 norm of all gradients in one vector, biases included.

    Args:
        grads: one tensor, or the gradients of a network, each (*R, ...); None (no gradient) is skipped.
        run_dims: how many leading axes are runs.

    Returns:
        float64 (*R); nan for a run with a gradient that is not finite.

    Example:
        >>> gradient_norm([torch.tensor([[3.0, 0.0]]), None, torch.tensor([4.0])])
        tensor(5., dtype=torch.float64)
    """
    return _nan_unless_finite(_norm(check_tensors(grads, "gradient_norm", "grads", run_dims), run_dims))


def _norm(tensors: list[Tensor], run_dims: int) -> Tensor:
    """The L2 norm of all tensors in one vector, (*R)."""
    norms = [torch.linalg.vector_norm(per_run(tensor, run_dims), dim=-1) for tensor in tensors]
    return torch.linalg.vector_norm(torch.stack(norms, dim=-1), dim=-1)


def _nan_unless_finite(value: Tensor) -> Tensor:
    return torch.where(torch.isfinite(value), value, torch.nan)
