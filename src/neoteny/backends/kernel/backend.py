"""KernelBackend: a stack of runs trained by a kernel, as the suite's loop sees it.

The suite asks for a plan, advances block by block, and calls `write_back` before anything reads the stack: measures,
tests, checkpoints.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from neoteny.backends.kernel.examples import Examples, SharedPlan, examples_of
from neoteny.backends.kernel.options import LOSSES, Numbers, numbers_of, options_of, weight_count
from neoteny.backends.kernel.pack import Packed, pack, unit_scales, unpack
from neoteny.problems.problem import Plan, Stream, check_range
from neoteny.stacking.stack import Stack

_BLOCK_WEIGHTS = 2_500_000_000
_BLOCK_UPDATES = (250, 10_000)


class Kernel(Protocol):
    """Advances packed runs."""

    def advance(self, examples: Examples, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Updates start to stop - 1 of a task, for every run.

        A run whose loss is not finite is abandoned there; the other runs go on.

        Returns:
            float64 (n,): the sum over updates of the performance before each (loss, or 1 where the class was right);
            int64 (n,): the first update of the task at which the loss was not finite, or -1.
        """
        ...


MakeKernel = Callable[[Packed, Numbers, Sequence[float]], Kernel]
"""A kernel's class. The last argument: for each hidden layer the bound that new units' weights are drawn within."""


class BlockBackend(ABC):
    """What backends share that train blocks of updates in a layout of their own.

    Args:
        stack, stream, seeds: what is trained on what.
        widths: inputs, ..., outputs of its networks.
        loss: its name.
    """

    def __init__(self, stack: Stack, stream: Stream, seeds: Sequence[int], widths: Sequence[int], loss: str) -> None:
        self._stack, self._stream, self._seeds = stack, stream, list(seeds)
        self._widths, self._loss = widths, loss
        self._plan: Plan | None = None
        self._examples: Examples | None = None
        # Sums are taken again when a block begins, so its length follows from the network alone: the numbers of a run
        # must not depend on its neighbours.
        low, high = _BLOCK_UPDATES
        self.reason = ""
        self.block_updates = int(np.clip(_BLOCK_WEIGHTS // weight_count(widths), low, high))
        self._written = True

    @abstractmethod
    def train(self, examples: Examples, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Kernel.advance`."""

    @abstractmethod
    def replaced(self) -> Tensor | None:
        """Units replaced so far in each run, int64 (n,); None if no method replaces any."""

    @abstractmethod
    def unpack(self) -> None:
        """Copy the state into the stack."""

    @abstractmethod
    def pack(self) -> None:
        """Copy the state from the stack."""

    def plan(self, task: int) -> Plan:
        """The plan of a task; runs of one seed share it."""
        plan = SharedPlan.of(self._stream, self._seeds, task)
        examples = examples_of(plan)
        if examples.place.shape[1] != self._widths[0]:
            raise ValueError(
                f"KernelBackend: inputs have {examples.place.shape[1]} features, the network takes {self._widths[0]}."
            )
        most = examples.table.target.max(initial=0.0)
        if self._loss == "cross_entropy" and most >= self._widths[-1]:
            raise ValueError(
                f"KernelBackend: there is a class {most:g}, but the network has {self._widths[-1]} outputs."
            )
        self._plan, self._examples = plan, examples
        return plan

    def advance(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Updates start to stop - 1 of the task that was planned last; see `Kernel.advance`."""
        if self._plan is None or self._examples is None:
            raise RuntimeError("KernelBackend: plan(task) comes before advance.")
        check_range(self._plan, start, stop)
        self._written = False
        total, broken = self.train(self._examples, start, stop)
        return torch.from_numpy(total), torch.from_numpy(broken)

    def write_back(self) -> None:
        """Make the stack's tensors what the kernel has made of them."""
        if not self._written:
            self.unpack()
            self._written = True

    def read(self) -> None:
        """Start from the stack's tensors."""
        self.pack()
        self._written = True


class KernelBackend(BlockBackend):
    """A stack trained by a kernel that learns from one example at a time."""

    def __init__(self, stack: Stack, stream: Stream, seeds: Sequence[int], loss: str, kernel: MakeKernel) -> None:
        options = check_stack(stack, seeds, options_of(stack.module(0), stack.methods, loss))
        super().__init__(stack, stream, seeds, options.widths, LOSSES[options.loss])
        parameter = next(iter(stack.view.parameters.values()))
        self._packed = Packed.empty(options, len(self._seeds), parameter.dtype, parameter.device)
        scales = unit_scales(stack) if options.replaces else [0.0] * options.hidden
        self._kernel = kernel(self._packed, numbers_of(stack.methods, len(self._seeds)), scales)
        self.read()

    def train(self, examples: Examples, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Kernel.advance`."""
        if examples.batch != 1:
            raise ValueError(f"KernelBackend: this kernel takes one example per update; the plan has {examples.batch}.")
        return self._kernel.advance(examples, start, stop)

    def replaced(self) -> Tensor | None:
        """Units replaced so far in each run, int64 (n,); None if no method replaces any."""
        replaces = self._packed.options.replaces
        return torch.from_numpy(self._packed.replaced.sum(1)) if replaces else None

    def unpack(self) -> None:
        """Copy the state into the stack."""
        unpack(self._packed, self._stack)

    def pack(self) -> None:
        """Copy the state from the stack."""
        pack(self._stack, self._packed)


Found = TypeVar("Found")


def check_stack(stack: Stack, seeds: Sequence[int], options: Found | str) -> Found:
    """The options of a stack that a kernel can train; ValueError if none can."""
    why = options if isinstance(options, str) else ""
    if not why and stack.view.seeds.tolist() != list(seeds):
        why = f"the seeds must be the stack's own, {stack.view.seeds.tolist()}; got {list(seeds)}"
    if not why and not all(parameter.requires_grad for parameter in stack.module(0).parameters()):
        why = "some of its parameters are frozen"
    if not why and any(getattr(group.initial[0], "family", "") != "uniform" for group in stack.view.groups):
        why = "new units must come from a uniform distribution"
    if why or isinstance(options, str):
        raise ValueError(f"KernelBackend: no kernel trains this stack: {why}. Train it with Stack.step.")
    return options
