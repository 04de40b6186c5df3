"""Sums of absolute weights along rows and columns: the one costly piece of a utility.

On the CPU, where numba is installed, one compiled pass takes both sums of a matrix together; elsewhere torch does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from neoteny.jit import compiler


class Sums(NamedTuple):
    """Sums of |w| over the last axis, (N, out), and over the one before it, (N, in); None where not wanted.

    They are valid until the next pass over the same weight. `arrays` holds the same memory as NumPy arrays where the
    compiled pass made it.
    """

    rows: Tensor | None
    columns: Tensor | None
    arrays: tuple[np.ndarray, np.ndarray] | None = None


class AbsoluteSums:
    """One pass over a weight, seen as (blocks, rows, columns).

    Args:
        blocks: runs times groups of a convolution.
        rows: output features of one block.
        want_rows, want_columns: which sums are wanted.
    """

    def __init__(self, blocks: int, rows: int, want_rows: bool, want_columns: bool) -> None:
        self._shape = (blocks, rows, -1)
        self._want_rows = want_rows
        self._want_columns = want_columns
        self._kept: Sums | None = None

    def __call__(self, weight: Tensor) -> Sums:
        """The sums of the weight as it is now."""
        weight = weight.detach()
        if is_plain(weight):
            kernel = compiled_sums()
            if kernel is not None:
                matrix = weight.numpy().reshape(self._shape)
                kept = self._kept
                if kept is None or kept.arrays is None or kept.arrays[0].dtype != matrix.dtype:
                    rows = weight.new_empty(matrix.shape[:2])
                    columns = weight.new_empty(matrix.shape[0], matrix.shape[2])
                    kept = self._kept = Sums(rows, columns, (rows.numpy(), columns.numpy()))
                assert kept.arrays is not None
                kernel(matrix, *kept.arrays, self._want_rows, self._want_columns)
                return kept
        if weight.dtype in (torch.float16, torch.bfloat16):
            weight = weight.float()
        magnitude = weight.reshape(self._shape).abs()
        rows = magnitude.sum(-1) if self._want_rows else None
        return Sums(rows, magnitude.sum(-2) if self._want_columns else None)


def is_plain(tensor: Tensor) -> bool:
    """Whether the compiled passes can read the tensor's memory as it lies."""
    return tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64) and tensor.is_contiguous()


@functools.cache
def compiled_sums() -> Callable[..., None] | None:
    """The compiled pass: (weight, row sums, column sums, want rows, want columns)."""
    compile_ = compiler()
    if compile_ is None:
        return None

    @compile_
    def sums(weight, rows, columns, want_rows, want_columns):  # pragma: no cover - compiled
        blocks, outputs, inputs = weight.shape
        for n in range(blocks):
            if want_columns:
                column = columns[n]
                column[:] = 0
                # Four rows at a time: the column sums are then read and written a quarter as often.
                whole = outputs - outputs % 4
                for i in range(0, whole, 4):
                    w0, w1, w2, w3 = weight[n, i], weight[n, i + 1], weight[n, i + 2], weight[n, i + 3]
                    t0 = t1 = t2 = t3 = column[0] * 0
                    for j in range(inputs):
                        a0, a1, a2, a3 = abs(w0[j]), abs(w1[j]), abs(w2[j]), abs(w3[j])
                        t0 += a0
                        t1 += a1
                        t2 += a2
                        t3 += a3
                        column[j] += (a0 + a1) + (a2 + a3)
                    rows[n, i], rows[n, i + 1], rows[n, i + 2], rows[n, i + 3] = t0, t1, t2, t3
                for i in range(whole, outputs):
                    w0 = weight[n, i]
                    total = column[0] * 0
                    for j in range(inputs):
                        a0 = abs(w0[j])
                        total += a0
                        column[j] += a0
                    rows[n, i] = total
            elif want_rows:
                for i in range(outputs):
                    w0 = weight[n, i]
                    rows[n, i] = 0
                    total = rows[n, i]
                    for j in range(inputs):
                        total += abs(w0[j])
                    rows[n, i] = total

    return sums
