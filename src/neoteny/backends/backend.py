"""Backend: a way to train a stack of runs; `make_backend` makes one by its name.

- "reference": the library, one update at a time, for every stack (`library`).
- "cpu" and "cuda": compiled kernels for networks that learn from one example at a time (`kernel`), and others for
  batches and for methods that act on all weights (`kernel.dense`, `kernel.dense_cuda`).
- "graphs": the library's own update, recorded once as a CUDA graph and replayed (`graphs`).

The suite's loop (`suite.training`) uses four verbs: plan a task, advance some updates, write back, read.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from neoteny.backends.kernel.backend import KernelBackend
from neoteny.backends.kernel.coverage import batch_of, why_not_sparse
from neoteny.backends.library import LibraryBackend
from neoteny.problems.problem import Plan, Problem, Stream
from neoteny.stacking.stack import Stack


class Backend(Protocol):
    """How a stack is trained."""

    reason: str
    """Why it does less than it could (a CUDA graph that could not be recorded), or ""."""
    block_updates: int
    """Updates to ask for at once. Numbers may depend on it in their last bits, so it never changes."""

    def plan(self, task: int) -> Plan:
        """The plan of a task, which `advance` then follows."""
        ...

    def advance(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Updates start to stop - 1 of the planned task.

        Returns:
            float64 (n,): the sum over updates of the performance before each;
            int64 (n,): the first update of the task whose loss was not finite, or -1.
        """
        ...

    def replaced(self) -> Tensor | None:
        """Units replaced so far in each run, int64 (n,); None if no method replaces any."""
        ...

    def write_back(self) -> None:
        """Bring the stack's own tensors up to date."""
        ...

    def read(self) -> None:
        """Go on from the stack's own tensors."""
        ...


def make_backend(
    name: str,
    stack: Stack,
    stream: Stream,
    seeds: Sequence[int],
    problem: Problem,
    dtype: torch.dtype,
    threads: int = 1,
) -> Backend:
    """The backend of that name for a stack; `threads`: of the CPU kernel, whose numbers do not depend on it."""
    batch = batch_of(problem)
    dense = name in ("cpu", "cuda") and bool(why_not_sparse(stack.module(0), stack.methods, problem.loss, batch))
    if name == "cpu" and dense:
        from neoteny.backends.kernel.dense.kernel import DenseBackend

        return DenseBackend(stack, stream, seeds, problem.loss, batch, threads)
    if name == "cuda" and dense:
        from neoteny.backends.kernel.dense_cuda.kernel import DenseCudaBackend

        return DenseCudaBackend(stack, stream, seeds, problem.loss, batch)
    if name == "cpu":
        from neoteny.backends.kernel.cpu.kernel import CpuKernel

        return KernelBackend(stack, stream, seeds, problem.loss, functools.partial(CpuKernel, threads=threads))
    if name == "cuda":
        from neoteny.backends.kernel.cuda.kernel import CudaKernel

        return KernelBackend(stack, stream, seeds, problem.loss, CudaKernel)
    if name == "graphs":
        from neoteny.backends.graphs.backend import GraphBackend

        return GraphBackend(stack, stream, seeds, problem, dtype)
    return LibraryBackend(stack, stream, seeds, problem, dtype)
