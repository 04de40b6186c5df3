"""Adam's update in one compiled pass, for parameters on the CPU: every element is read and written once.

The arithmetic is `optim.adam_update`'s, with its step counts of single elements; what does not fit (another device, a
grouped convolution whose columns were reset, single weights that were reset, no numba) takes the general path there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neoteny.jit import compiler

_KINDS: dict[torch.dtype, type] = {torch.float32: np.float32, torch.float64: np.float64}
_LONGEST_TABLE = 1_000_000
_NEVER = np.zeros((0, 1), dtype=np.int64)


def update_fused(
    parameter: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    step: int,
    resets: dict[str, dict[str, Tensor]] | None,
    run_axes: int,
    step_size: float | Tensor,
    betas: tuple[float, float],
    eps: float,
) -> bool:
    """One update in place; False, and nothing done, where this pass does not serve. Arguments as `adam_update`'s."""
    tensors, dtype, shape = (parameter, gradient, first, second), parameter.dtype, parameter.shape
    kernel, constants = _compiled(), _constants(dtype, tuple(betas), eps)
    if kernel is None or constants is None or len(shape) <= run_axes or not parameter.numel():
        return False
    if torch.compiler.is_compiling():
        return False
    for tensor in tensors:
        ordinary = type(tensor) is Tensor or type(tensor) is nn.Parameter
        if not ordinary or not tensor.is_cpu or tensor.dtype != dtype or not tensor.is_contiguous():
            return False
    rows, columns = _NEVER, _NEVER
    if resets:
        if "elements" in resets:
            return False
        if "rows" in resets:
            rows = resets["rows"]["step"].numpy().reshape(-1, shape[run_axes])
        if "columns" in resets:
            columns = resets["columns"]["step"].numpy()
            if columns.shape[-2] != 1:
                return False
            columns = columns.reshape(-1, columns.shape[-1])
    if len(shape) == run_axes + 1:  # a vector, taken as one row
        blocks, rows, columns = (math.prod(shape[:run_axes]), 1, shape[run_axes], -1), _NEVER, rows
    else:
        blocks = (math.prod(shape[:run_axes]), shape[run_axes], shape[run_axes + 1], -1)
    if isinstance(step_size, Tensor):
        sizes = step_size.detach().numpy().reshape(-1).astype(_KINDS[dtype])
    else:
        sizes = _size(step_size, dtype)
    arrays = [tensor.detach().numpy().reshape(blocks) for tensor in tensors]
    kernel(*arrays, step, rows, columns, sizes, *constants)
    torch.autograd.graph.increment_version(parameter)  # so that autograd notices a change after its forward pass
    return True


@functools.cache
def _constants(dtype: torch.dtype, betas: tuple[float, float], eps: float) -> tuple[Any, ...] | None:
    """Tables of powers, 1 - beta1, beta2, 1 - beta2 and eps; None where they cannot be had."""
    powers = [_powers(beta) for beta in betas]
    if dtype not in _KINDS or powers[0] is None or powers[1] is None:
        return None
    return *powers, *(_KINDS[dtype](number) for number in (1.0 - betas[0], betas[1], 1.0 - betas[1], eps))


@functools.lru_cache(maxsize=64)  # a schedule of step sizes has many
def _size(step_size: float, dtype: torch.dtype) -> np.ndarray:
    return np.full(1, step_size, dtype=_KINDS[dtype])


@functools.cache
def _powers(beta: float) -> np.ndarray | None:
    """beta^0, beta^1, ... until 1 - beta^t is 1; None if that takes too long."""
    if beta == 0.0:
        return np.array([1.0, 0.0])
    count = math.ceil(-60.0 * math.log(2.0) / math.log(beta)) + 1
    # Python's own power: NumPy's may be wrong in the last bit, which 1 - beta^t makes a thousand times larger.
    return np.array([beta**step for step in range(count)]) if count <= _LONGEST_TABLE else None


@functools.cache
def _compiled() -> Callable[..., Any] | None:
    compile_ = compiler()
    if compile_ is None:
        return None

    @compile_
    def update(
        parameter, gradient, first, second, step, rows, columns, step_size, power1, power2, keep1, beta2, keep2, eps
    ):  # pragma: no cover - compiled
        runs, outputs, inputs, taps = parameter.shape
        by_row, by_column = len(rows) > 0, len(columns) > 0
        kind = parameter.dtype.type
        # Factors 1 / (1 - beta^t): an element's is the larger of its row's and its column's.
        column1, column2 = np.empty(inputs, parameter.dtype), np.empty(inputs, parameter.dtype)
        longest1, longest2 = len(power1) - 1, len(power2) - 1
        for n in range(runs):
            size = step_size[n if len(step_size) > 1 else 0]
            if not by_row and not by_column:
                root = kind(math.sqrt(1.0 - power2[min(step, longest2)]))
                scale = kind(size / (1.0 - power1[min(step, longest1)]))
                p, g = parameter[n].reshape(-1), gradient[n].reshape(-1)
                m, v = first[n].reshape(-1), second[n].reshape(-1)
                for k in range(len(p)):
                    m[k] += keep1 * (g[k] - m[k])
                    v[k] = v[k] * beta2 + keep2 * g[k] * g[k]
                    p[k] -= scale * m[k] / (np.sqrt(v[k]) / root + eps)
                continue
            for j in range(inputs):
                since = step - columns[n, j] if by_column else step
                column1[j] = 1.0 / (1.0 - power1[min(since, longest1)])
                column2[j] = 1.0 / (1.0 - power2[min(since, longest2)])
            for i in range(outputs):
                since = step - rows[n, i] if by_row else step
                row1 = kind(1.0 / (1.0 - power1[min(since, longest1)]))
                row2 = kind(1.0 / (1.0 - power2[min(since, longest2)]))
                if taps == 1:  # a matrix: a loop over a whole row, which vector registers serve
                    p, g = parameter[n, i].reshape(-1), gradient[n, i].reshape(-1)
                    m, v = first[n, i].reshape(-1), second[n, i].reshape(-1)
                    for j in range(inputs):
                        m[j] += keep1 * (g[j] - m[j])
                        v[j] = v[j] * beta2 + keep2 * g[j] * g[j]
                        factor1 = column1[j] if column1[j] > row1 else row1
                        factor2 = column2[j] if column2[j] > row2 else row2
                        p[j] -= size * (m[j] * factor1) / (np.sqrt(v[j] * factor2) + eps)
                    continue
                for j in range(inputs):
                    factor1, factor2 = max(row1, column1[j]), max(row2, column2[j])
                    p, g = parameter[n, i, j], gradient[n, i, j]
                    m, v = first[n, i, j], second[n, i, j]
                    for k in range(taps):
                        m[k] += keep1 * (g[k] - m[k])
                        v[k] = v[k] * beta2 + keep2 * g[k] * g[k]
                        p[k] -= size * (m[k] * factor1) / (np.sqrt(v[k] * factor2) + eps)

    return update
