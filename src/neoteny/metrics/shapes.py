"""Shape and type checks that every family of metrics shares."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def check_tensor(tensor: object, metric: str, argument: str) -> Tensor:
    """The tensor without its gradient history; TypeError for anything that is not a real tensor."""
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"{metric}: {argument} must be a torch.Tensor, got {type(tensor).__name__}; "
            f"convert it first, for example with torch.as_tensor."
        )
    if tensor.is_complex():
        raise TypeError(f"{metric}: {argument} must be real, got {tensor.dtype}.")
    return tensor.detach()


def check_matrices(tensor: object, metric: str, argument: str, axes: str) -> Tensor:
    """A tensor (*R, n, m) with at least one row and one column.

    Args:
        tensor: what the user passed.
        metric: the metric's name, for the error.
        argument: the argument's name, for the error.
        axes: the names of the last two axes, for example "inputs, units".
    """
    matrix = check_tensor(tensor, metric, argument)
    shape = tuple(matrix.shape)
    if len(shape) < 2:
        raise ValueError(
            f"{metric}: {argument} must have shape (*runs, {axes}), got {shape}; "
            f"add the missing axis, for example with .unsqueeze(0)."
        )
    if 0 in shape[-2:]:
        raise ValueError(f"{metric}: {argument} (*runs, {axes}) must not be empty, got shape {shape}.")
    return matrix


def check_tensors(tensors: Tensor | Iterable[Tensor | None], metric: str, argument: str, run_dims: int) -> list[Tensor]:
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


def weights_only(tensors: list[Tensor], metric: str, run_dims: int) -> list[Tensor]:
    """The tensors that are weights: with at least two axes behind the runs."""
    weights = [tensor for tensor in tensors if tensor.dim() >= run_dims + 2]
    if not weights:
        raise ValueError(
            f"{metric}: a weight has at least two axes behind its {run_dims} run axes and biases do not count, "
            f"got only shapes {[tuple(t.shape) for t in tensors]}."
        )
    return weights


def per_run(tensor: Tensor, run_dims: int) -> Tensor:
    """float64 (*R, n)."""
    return tensor.reshape(*tensor.shape[:run_dims], -1).to(torch.float64)
