"""Sums of absolute weights along rows and columns: the one costly piece of a utility.

On the CPU, where numba is installed, one compiled pass takes both sums of a matrix together; elsewhere torch does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor


def abs_sums(weight: Tensor, rows: bool, columns: bool) -> tuple[Tensor | None, Tensor | None]:
    """Sums of |w| over the last axis ("rows") and over the one before it ("columns").

    Args:
        weight: (N, out, in).
        rows: whether the sums over the last axis are wanted.
        columns: whether the sums over the axis before it are wanted.

    Returns:
        Sums (N, out) and (N, in), None where not wanted.
    """
    weight = weight.detach()
    if weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.float64) and weight.is_contiguous():
        compiled = _compiled_abs_sums()
        if compiled is not None:
            row_sums = weight.new_zeros(weight.shape[:2]) if rows else None
            column_sums = weight.new_zeros(weight.shape[0], weight.shape[2]) if columns else None
            compiled(weight, row_sums, column_sums)
            return row_sums, column_sums
    if weight.dtype in (torch.float16, torch.bfloat16):
        weight = weight.float()
    magnitude = weight.abs()
    return magnitude.sum(-1) if rows else None, magnitude.sum(-2) if columns else None


@functools.cache
def _compiled_abs_sums() -> Callable[[Tensor, Tensor | None, Tensor | None], None] | None:
    try:
        import numba  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None

    # "reassoc" lets the row sum use vector registers; NaN and infinity keep their meaning.
    compile_ = numba.njit(fastmath={"reassoc", "contract"}, cache=True, nogil=True)

    @compile_
    def both(weight, row_sums, column_sums):  # pragma: no cover - compiled
        for n in range(weight.shape[0]):
            for i in range(weight.shape[1]):
                row = weight[n, i]
                total = row_sums[n, i]
                for j in range(row.shape[0]):
                    magnitude = abs(row[j])
                    total += magnitude
                    column_sums[n, j] += magnitude
                row_sums[n, i] = total

    @compile_
    def only_rows(weight, row_sums):  # pragma: no cover - compiled
        for n in range(weight.shape[0]):
            for i in range(weight.shape[1]):
                row = weight[n, i]
                total = row_sums[n, i]
                for j in range(row.shape[0]):
                    total += abs(row[j])
                row_sums[n, i] = total

    @compile_
    def only_columns(weight, column_sums):  # pragma: no cover - compiled
        for n in range(weight.shape[0]):
            for i in range(weight.shape[1]):
                row = weight[n, i]
                for j in range(row.shape[0]):
                    column_sums[n, j] += abs(row[j])

    def run(weight: Tensor, row_sums: Tensor | None, column_sums: Tensor | None) -> None:
        if row_sums is None and column_sums is not None:
            only_columns(weight.numpy(), column_sums.numpy())
        elif column_sums is None and row_sums is not None:
            only_rows(weight.numpy(), row_sums.numpy())
        elif row_sums is not None and column_sums is not None:
            both(weight.numpy(), row_sums.numpy(), column_sums.numpy())

    return run
