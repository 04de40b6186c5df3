"""The ways in which a stack of runs can be trained, and the choice between them.

- "reference": the library, one update at a time; it trains everything that can be described.
- "cpu" and "cuda": compiled kernels for networks that learn from one example at a time (`neoteny.kernels`).
- "graphs": the library's own update, recorded once as a CUDA graph and replayed.

The engine's loop (`training`) knows a path by four verbs: plan a task, advance some updates, write back, read.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from neoteny.backends.kernel.backend import KernelBackend
from neoteny.problems.problem import Plan, Problem, Stream
from neoteny.stacking.stack import Stack, Step

BLOCK_BYTES = 32 * 2**20
BLOCK_UPDATES = 500


class Backend(Protocol):
    """How a stack is trained."""

    reason: str
    """Why it does less than it could (a CUDA graph that could not be recorded), or ""."""
    block_updates: int
    """Updates to ask for at once. Numbers may depend on it in their last bits, so it is the same whenever asked."""

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


class StackBackend:
    """What paths share whose state is the stack's own tensors."""

    def __init__(
        self, stack: Stack, stream: Stream, seeds: Sequence[int], problem: Problem, dtype: torch.dtype
    ) -> None:
        self._stack, self._stream, self._seeds, self._problem, self._dtype = stack, stream, list(seeds), problem, dtype
        self._device = stack.view.seeds.device
        self._plan: Plan | None = None
        self.reason = ""
        self.block_updates = 0

    def plan(self, task: int) -> Plan:
        """The plan of a task, which `advance` then follows."""
        self._plan = self._stream.plan(self._seeds, task)
        return self._plan

    def replaced(self) -> Tensor | None:
        """Units replaced so far in each run, int64 (n,); None if no method replaces any."""
        counts = self._stack.replaced
        return torch.stack(list(counts.values())).sum(0) if counts else None

    def write_back(self) -> None:
        """The stack's tensors are the state."""

    def read(self) -> None:
        """The stack's tensors are the state."""


class LibraryBackend(StackBackend):
    """The library itself."""

    def __init__(
        self, stack: Stack, stream: Stream, seeds: Sequence[int], problem: Problem, dtype: torch.dtype
    ) -> None:
        super().__init__(stack, stream, seeds, problem, dtype)
        self._averages = any(method.averages_weights for method in stack.methods)

    def plan(self, task: int) -> Plan:
        plan = super().plan(task)
        if not self.block_updates and plan.steps:
            inputs, _ = plan.batches(0, 1, self._device)
            bytes_a_step = inputs.numel() * inputs.element_size()
            self.block_updates = max(1, min(BLOCK_UPDATES, BLOCK_BYTES // bytes_a_step))
        return plan

    def advance(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        assert self._plan is not None, "plan a task first"
        inputs, targets = self._plan.batches(start, stop, self._device)
        inputs = inputs.to(self._dtype)
        targets = targets.to(self._dtype) if targets.is_floating_point() else targets
        losses, performances = [], []
        for batch, target in zip(inputs, targets, strict=True):
            evaluated = self._stack.predict(batch) if self._averages else None
            step = self._stack.step(batch, target)
            losses.append(step.losses)
            performances.append(self._performance(step, target, evaluated))
        broken = ~torch.isfinite(torch.stack(losses)).cpu()  # (updates, n)
        first = torch.where(broken.any(0), broken.int().argmax(0) + start, -1)
        return torch.stack(performances).sum(0).cpu(), first

    def _performance(self, step: Step, targets: Tensor, evaluated: Tensor | None) -> Tensor:
        """Loss or accuracy before an update, float64 (n,), with the weights that a method evaluates with."""
        outputs = step.outputs if evaluated is None else evaluated
        if self._problem.performance == "accuracy":
            return (outputs.argmax(-1) == targets).flatten(1).double().mean(-1)
        return (step.losses if evaluated is None else self._stack.loss(outputs, targets)).double()


def make_backend(
    name: str,
    stack: Stack,
    stream: Stream,
    seeds: Sequence[int],
    problem: Problem,
    dtype: torch.dtype,
    threads: int = 1,
) -> Backend:
    """The path of that name for a stack; `threads`: of the CPU kernel, whose numbers do not depend on it."""
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
