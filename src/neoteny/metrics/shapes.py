"""Shape and type checks that every family of metrics shares."""

from __future__ import annotations

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
