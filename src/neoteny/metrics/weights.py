"""The size of a network's weights, of their distance from initialisation, and of its gradients.

Each takes one tensor or all the tensors of a network, pooled. `run_dims` says how many leading axes are runs: 0 for one
network, 1 for tensors (R, ...) of a stack.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from neoteny.metrics.shapes import check_tensor


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
    tensors = _weights_only(_tensors(weights, "weight_magnitude", "weights", run_dims), "weight_magnitude", run_dims)
    sums = [_per_run(tensor, run_dims).abs().sum(-1) for tensor in tensors]
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
    now = _tensors(weights, name, "weights", run_dims)
    then = _tensors(initial, name, "initial", run_dims)
    shapes, initial_shapes = [tuple(t.shape) for t in now], [tuple(t.shape) for t in then]
    if shapes != initial_shapes:
        raise ValueError(
            f"{name}: weights and initial must hold the same tensors in the same order, "
            f"got shapes {shapes} and {initial_shapes}."
        )
    now, then = _weights_only(now, name, run_dims), _weights_only(then, name, run_dims)
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
    return _nan_unless_finite(_norm(_tensors(grads, "gradient_norm", "grads", run_dims), run_dims))


def _tensors(tensors: Tensor | Iterable[Tensor | None], metric: str, argument: str, run_dims: int) -> list[Tensor]:
    """A list of checked tensors that agree in their run axes."""
    if run_dims < 0:
        raise ValueError(f"{metric}: run_dims must be at least 0, got {run_dims}.")
    items = [tensors] if isinstance(tensors, Tensor) else list(_iterate(tensors, metric, argument))
    checked = [check_tensor(item, metric, argument) for item in items if item is not None]
    if not checked:
        raise ValueError(f"{metric}: {argument} holds no tensor, so there is nothing to measure.")
    for tensor in checked:
        if tensor.dim() < run_dims or tensor.shape[:run_dims] != checked[0].shape[:run_dims]:
            raise ValueError(
                f"{metric}: with run_dims={run_dims} the first {run_dims} axes of all tensors must agree, "
                f"got shapes {[tuple(t.shape) for t in checked]}."
            )
    return checked


def _iterate(tensors: Iterable[Tensor | None], metric: str, argument: str) -> Iterable[Tensor | None]:
    if isinstance(tensors, (dict, str)) or not isinstance(tensors, Iterable):
        hint = "pass its .values()" if isinstance(tensors, dict) else "for example model.parameters()"
        raise TypeError(
            f"{metric}: {argument} must be a tensor or an iterable of tensors, got {type(tensors).__name__}; {hint}."
        )
    return tensors


def _weights_only(tensors: list[Tensor], metric: str, run_dims: int) -> list[Tensor]:
    weights = [tensor for tensor in tensors if tensor.dim() >= run_dims + 2]
    if not weights:
        raise ValueError(
            f"{metric}: a weight has at least two axes behind its {run_dims} run axes and biases do not count, "
            f"got only shapes {[tuple(t.shape) for t in tensors]}."
        )
    return weights


def _per_run(tensor: Tensor, run_dims: int) -> Tensor:
    """float64 (*R, n)."""
    return tensor.reshape(*tensor.shape[:run_dims], -1).to(torch.float64)


def _norm(tensors: list[Tensor], run_dims: int) -> Tensor:
    """The L2 norm of all tensors in one vector, (*R)."""
    norms = [torch.linalg.vector_norm(_per_run(tensor, run_dims), dim=-1) for tensor in tensors]
    return torch.linalg.vector_norm(torch.stack(norms, dim=-1), dim=-1)


def _nan_unless_finite(value: Tensor) -> Tensor:
    return torch.where(torch.isfinite(value), value, torch.nan)
