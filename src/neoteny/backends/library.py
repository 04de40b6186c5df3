"""LibraryBackend: the library itself, one update at a time; it trains every stack that can be made.

Before this: `stacking`, `problems`; after it: `backend`, which chooses by name.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from neoteny.methods.method import Method
from neoteny.problems.problem import Plan, Problem, Stream
from neoteny.stacking.stack import Stack, Step

BLOCK_BYTES = 32 * 2**20
BLOCK_UPDATES = 500


def check_schedule(problem: Problem, optimizer: Method) -> None:
    """Refuse an optimizer that does not follow the schedule of a problem's step size."""
    name = type(optimizer).__name__
    if problem.schedules_step_size and not vars(type(optimizer)).get("follows_schedule", False):
        raise ValueError(
            f"{type(problem).__name__} changes the step size during a task, and {name} does not follow a schedule: "
            "take SGD, Adam or AdamW, or a problem without a schedule."
        )


class StackBackend:
    """What backends share whose state is the stack's own tensors."""

    def __init__(
        self, stack: Stack, stream: Stream, seeds: Sequence[int], problem: Problem, dtype: torch.dtype
    ) -> None:
        self._stack, self._stream, self._seeds, self._problem, self._dtype = stack, stream, list(seeds), problem, dtype
        self._device = stack.view.seeds.device
        self._plan: Plan | None = None
        check_schedule(problem, stack.methods[0])
        self.reason = ""
        self.block_updates = 0

    def plan(self, task: int) -> Plan:
        """The plan of a task, which `advance` then follows."""
        self._plan = self._stream.plan(self._seeds, task)
        self._stack.count_outputs(self._plan.seen_classes, self._problem.outputs)
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
            bytes_per_step = inputs.numel() * inputs.element_size()
            self.block_updates = max(1, min(BLOCK_UPDATES, BLOCK_BYTES // bytes_per_step))
        return plan

    def advance(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        assert self._plan is not None, "plan a task first"
        inputs, targets = self._plan.batches(start, stop, self._device)
        inputs = self._problem.as_inputs(inputs, self._dtype)
        targets = targets.to(self._dtype) if targets.is_floating_point() else targets
        losses, performances = [], []
        for step, (batch, target) in enumerate(zip(inputs, targets, strict=True), start):
            if self._problem.schedules_step_size:
                self._stack.view.step_size_factor = self._plan.step_size_factor(step)
            evaluated = self._stack.predict(batch) if self._averages else None
            made = self._stack.step(batch, target)
            losses.append(made.losses)
            performances.append(self._performance(made, target, evaluated))
        broken = ~torch.isfinite(torch.stack(losses)).cpu()  # (updates, n)
        first = torch.where(broken.any(0), broken.int().argmax(0) + start, -1)
        return torch.stack(performances).sum(0).cpu(), first

    def _performance(self, step: Step, targets: Tensor, evaluated: Tensor | None) -> Tensor:
        """Loss or accuracy before an update, float64 (n,), with the weights that a method evaluates with."""
        outputs = self._stack.counted(step.outputs if evaluated is None else evaluated)
        if self._problem.performance == "accuracy":
            return (outputs.argmax(-1) == targets).flatten(1).double().mean(-1)
        return (step.losses if evaluated is None else self._stack.loss(outputs, targets)).double()
