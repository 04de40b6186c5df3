"""The costly pieces of a utility: sums of absolute weights, and means over the examples of a batch.

On the CPU, where numba is installed, one compiled pass takes both sums of a matrix together, and a mean deviation needs
no temporary tensor; elsewhere torch does the work.
"""

from __future__ import annotations

import functools
import math
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


def example_mean(batch: Tensor) -> Tensor:
    """Mean over examples: (*R, B, U, positions) -> (*R, U, positions)."""
    if batch.shape[-3] == 1:
        return batch[..., 0, :, :]
    kernels = compiled_means() if is_plain(batch) else None
    if kernels is None:
        return batch.mean(-3)
    mean = batch.new_zeros(*batch.shape[:-3], *batch.shape[-2:])
    examples, features = batch.shape[-3], batch.shape[-2] * batch.shape[-1]
    kernels[0](batch.numpy().reshape(-1, examples, features), mean.numpy().reshape(-1, features))
    return mean


def average(values: list[Tensor], batches: list[Tensor]) -> Tensor:
    """Mean over all examples of several passes, or calls in one: each counts by its size."""
    if len(values) == 1:
        return values[0]
    sizes = [batch.numel() for batch in batches]
    whole = math.fsum(sizes)
    total = values[0] * (sizes[0] / whole)
    for value, size in zip(values[1:], sizes[1:], strict=True):
        total = total + value * (size / whole)
    return total


def mean_deviation(batch: Tensor, centre: Tensor | None, start: int = 0, units: int | None = None) -> Tensor:
    """Mean over examples of |h - centre|: (*R, B, features, positions), (*R, U) -> (*R, U, positions).

    Args:
        batch: h.
        centre: None is 0.
        start: the feature of the first unit.
        units: how many features to take from there; all that are left by default.
    """
    units = batch.shape[-2] - start if units is None else units
    kernels = compiled_means() if is_plain(batch) else None
    if kernels is None or centre is None:
        batch = batch.narrow(-2, start, units)
        distance = batch.abs() if centre is None else (batch - centre.unsqueeze(-1).unsqueeze(-3)).abs_()
        return distance[..., 0, :, :] if distance.shape[-3] == 1 else distance.mean(-3)
    deviation = batch.new_zeros(*batch.shape[:-3], units, batch.shape[-1])
    block = batch.numpy().reshape(-1, *batch.shape[-3:])
    centres, sums = centre.contiguous().numpy().reshape(-1, units), deviation.numpy()
    kernels[1](block, start, centres, sums.reshape(-1, units, batch.shape[-1]))
    return deviation


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
                zero = column[0]
                # Four rows at a time: the column sums are then read and written a quarter as often.
                whole = outputs - outputs % 4
                for i in range(0, whole, 4):
                    w0, w1, w2, w3 = weight[n, i], weight[n, i + 1], weight[n, i + 2], weight[n, i + 3]
                    t0 = t1 = t2 = t3 = zero
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
                    total = zero
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


@functools.cache
def compiled_means() -> tuple[Callable[..., None], Callable[..., None]] | None:
    """Compiled `example_mean` (h (N, B, F), mean) and `mean_deviation` (h (N, B, F, P), start, centre, deviation)."""
    compile_ = compiler()
    if compile_ is None:
        return None

    @compile_
    def means(h, mean):  # pragma: no cover - compiled
        runs, examples, features = h.shape
        for n in range(runs):
            total = mean[n]
            for b in range(examples):
                row = h[n, b]
                for i in range(features):
                    total[i] += row[i]
            for i in range(features):
                total[i] /= examples

    @compile_
    def deviations(h, start, centre, deviation):  # pragma: no cover - compiled
        runs, examples, _, positions = h.shape
        units = deviation.shape[1]
        for n in range(runs):
            for b in range(examples):
                for i in range(units):
                    middle = centre[n, i]
                    row = h[n, b, start + i]
                    total = deviation[n, i]
                    for p in range(positions):
                        total[p] += abs(row[p] - middle)
            for i in range(units):
                for p in range(positions):
                    deviation[n, i, p] /= examples

    return means, deviations
