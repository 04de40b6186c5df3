"""CheckedStream: the stream of a user's own problem, looked at where it gives something.

What a problem gives that it must not give (other shapes, numbers that are not finite, labels that no output stands
for) would otherwise show as divergence, or not at all.

Before this: the user's problem; after it: `training`, which learns from the batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from neoteny.foreign_code import called, generator_states, refuse_draws
from neoteny.problems.problem import Plan, Problem, Stream


class CheckedStream(Stream):
    """A user's stream; its plans are the same for the same seeds and task, and draw from no global generator.

    Args:
        problem: what the stream was opened from.
        stream: the user's.
    """

    def __init__(self, problem: Problem, stream: Stream) -> None:
        self._problem, self._stream = problem, stream
        self.fingerprint = stream.fingerprint
        self._compared = False

    def plan(self, seeds: Sequence[int], task: int) -> CheckedPlan:
        plan = self._make(seeds, task)
        if not self._compared:
            self._compared = True
            once, again = (each.batches(0, 1, torch.device("cpu")) for each in (plan, self._make(seeds, task)))
            if not all(torch.equal(one, other) for one, other in zip(once, again, strict=True)):
                raise ValueError(
                    f"{type(self._problem).__name__}: two plans of task {task} for the same seeds differ; a plan must "
                    "depend on the seeds and the task number alone. Draw with neoteny.draws.rng."
                )
        return plan

    def unseen(self, seeds: Sequence[int]) -> CheckedPlan:
        return self._check("unseen", lambda: self._stream.unseen(seeds), len(seeds))

    def _make(self, seeds: Sequence[int], task: int) -> CheckedPlan:
        return self._check("plan", lambda: self._stream.plan(seeds, task), len(seeds))

    def _check(self, hook: str, act: Callable[[], Any], runs: int) -> CheckedPlan:
        name = f"{type(self._stream).__name__}.{hook}"
        plan = watch(name, act)
        steps = getattr(plan, "steps", None)
        if not isinstance(plan, Plan) or isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            came = f"steps={steps!r}" if isinstance(plan, Plan) else type(plan).__name__
            raise ValueError(f"{name} must return a Plan whose steps are a whole number of at least 1; got {came}.")
        if type(plan).step_size_factor is not Plan.step_size_factor and not self._problem.schedules_step_size:
            raise ValueError(
                f"{type(plan).__name__}.step_size_factor would not be asked: let "
                f"{type(self._problem).__name__}.schedules_step_size return True."
            )
        return CheckedPlan(self._problem, plan, runs)


class CheckedPlan(Plan):
    """One task of n runs of a user's problem."""

    def __init__(self, problem: Problem, plan: Plan, runs: int) -> None:
        self._problem, self._plan, self._runs = problem, plan, runs
        self._name = type(plan).__name__
        self.steps = plan.steps
        self.steps_of_a_pass = plan.steps_of_a_pass
        self.seen_classes = plan.seen_classes
        whole = isinstance(plan.seen_classes, int) and not isinstance(plan.seen_classes, bool)
        if not whole or not 0 <= plan.seen_classes <= problem.outputs:
            raise ValueError(
                f"{self._name}.seen_classes must be a whole number from 0 (all) to {problem.outputs}, the outputs; got "
                f"{plan.seen_classes!r}."
            )

    def batches(self, start: int, stop: int, device: torch.device) -> tuple[Tensor, Tensor]:
        hook = f"{self._name}.batches"
        found = watch(hook, lambda: self._plan.batches(start, stop, device))
        inputs, targets = self._pair(hook, found)
        shape = (stop - start, self._runs, "batch", *self._problem.input_shape)
        self._check(hook, "inputs", inputs, shape, device)
        if targets.shape[:3] != inputs.shape[:3] or targets.device.type != device.type:
            raise ValueError(
                f"{hook}({start}, {stop}) must give targets of shape {_shown((*inputs.shape[:3], '...'))} on "
                f"{device.type}; got {tuple(targets.shape)} on {targets.device.type}."
            )
        self._check_targets(hook, targets)
        return inputs, targets

    def probe(self, count: int, device: torch.device) -> Tensor:
        hook = f"{self._name}.probe"
        found = watch(hook, lambda: self._plan.probe(count, device))
        if not isinstance(found, Tensor):
            raise TypeError(f"{hook} must return a tensor; got {type(found).__name__}.")
        self._check(hook, "inputs", found, (self._runs, count, *self._problem.input_shape), device)
        return found

    def test(self, device: torch.device) -> tuple[Tensor, Tensor] | None:
        hook = f"{self._name}.test"
        found = watch(hook, lambda: self._plan.test(device))
        if found is None:
            return None
        inputs, targets = self._pair(hook, found)
        self._check(hook, "inputs", inputs, (self._runs, "examples", *self._problem.input_shape), device)
        places = 3 if self._problem.loss == "token_cross_entropy" else 2
        self._check(hook, "targets", targets, tuple(inputs.shape[:places]), device)
        self._check_targets(hook, targets)
        return inputs, targets

    def step_size_factor(self, step: int) -> float:
        hook = f"{self._name}.step_size_factor"
        found = watch(hook, lambda: self._plan.step_size_factor(step))
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0.0 <= found < math.inf:
            raise ValueError(f"{hook}({step}) must return a number of at least 0; got {found!r}.")
        return float(found)

    def _pair(self, hook: str, found: Any) -> tuple[Tensor, Tensor]:
        if not isinstance(found, tuple) or len(found) != 2 or not all(isinstance(each, Tensor) for each in found):
            raise TypeError(f"{hook} must return two tensors, inputs and targets; got {type(found).__name__}.")
        return found

    def _check(self, hook: str, what: str, value: Tensor, shape: Sequence[int | str], device: torch.device) -> None:
        fits = value.dim() == len(shape) and all(
            isinstance(side, str) or side == size for side, size in zip(shape, value.shape, strict=True)
        )
        if not fits or value.device.type != device.type:
            raise ValueError(
                f"{hook} must give {what} of shape {_shown(shape)} on {device.type}; got {tuple(value.shape)} on "
                f"{value.device.type}."
            )
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise ValueError(f"{hook} gave {what} that are not finite (nan or inf).")
        if what == "inputs" and self._problem.tokens and value.dtype != torch.int64:
            raise ValueError(f"{hook} must give inputs of int64, because they are tokens; got {value.dtype}.")

    def _check_targets(self, hook: str, targets: Tensor) -> None:
        classes = self.seen_classes or self._problem.outputs
        if self._problem.loss in ("cross_entropy", "token_cross_entropy"):
            whole = targets.dtype in (torch.int64, torch.int32, torch.uint8)
            if not whole or bool(((targets < 0) | (targets >= classes)).any()):
                low, high = targets.min().item(), targets.max().item()
                raise ValueError(
                    f"{hook} must give whole targets from 0 to {classes - 1}, one per output; got {targets.dtype} from "
                    f"{low} to {high}."
                )
        elif not targets.is_floating_point() or not bool(targets.isfinite().all()):
            raise ValueError(f"{hook} must give finite targets of a floating type; got {targets.dtype}, or nan or inf.")


def watch(hook: str, act: Callable[[], Any]) -> Any:
    """What a user's code returns; refused if it drew from a global generator."""
    before = generator_states()
    with called(f"in {hook}"):
        found = act()
    refuse_draws(hook, before, generator_states())
    return found


def _shown(shape: Sequence[int | str]) -> str:
    return f"({', '.join(map(str, shape))})"
