"""The comparison of a kernel with the library: the same learner trained twice, looked at after every block of updates.

Before this: `kernel_cases`; after it: `test_kernels` and `kernel_grid`. Nothing here needs pytest.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import neoteny
from neoteny.backends.kernel.backend import KernelBackend, MakeKernel
from neoteny.problems.problem import Plan
from support.kernel_cases import PROBLEMS, SEEDS, TASK_STEPS, Case, build, stream_of

TOLERANCE = 1e-9
CUTS = ((80, 160), tuple(range(16, 161, 16)), (7, 32, 33, 53, 64, 96, 128, 160), (160,))
"""Where the blocks of task 0, 1, 2, 3, 4, ... end, again and again."""


@dataclass(frozen=True)
class Difference:
    """What came of one comparison.

    Attributes:
        failure: where kernel and library first differ by too much, "" if they agree.
        weights: largest difference of a parameter or buffer, up to there.
        replaced: units that the library replaced, all runs and layers together.
    """

    case: Case
    steps: int
    failure: str
    weights: float
    replaced: int


def compare(case: Case, steps: int, kernels: Mapping[str, MakeKernel], device: str = "cpu") -> Difference:
    """Train a case by the library, on the CPU, and by kernels, all in float64, and look after every block.

    All state must agree: whole numbers (steps of birth, counts) exactly, other numbers within `TOLERANCE`; so must the
    sums of the performance.
    """
    problem, stream = PROBLEMS[case.problem], stream_of(case.problem)
    library, plan, weights, done = build(case), stream.plan(SEEDS, 0), 0.0, 0
    stacks = {name: build(case, device=device) for name in kernels}
    paths = {name: KernelBackend(stacks[name], stream, SEEDS, problem.loss, kernels[name]) for name in kernels}
    for task, start, stop in blocks(steps):
        if start == 0:
            plan = stream.plan(SEEDS, task)
        wanted, _ = train_block(library, plan, start, stop, problem.performance)
        reference = flat_state(library)
        done += stop - start
        for name, path in paths.items():
            if start == 0:
                path.plan(task)
            found, broken = path.advance(start, stop)
            path.write_back()
            state = flat_state(stacks[name])
            weights = max(weights, largest(state, reference, "tensors."))
            failure = first_difference(state, reference)
            if not failure and bool((broken >= 0).any()):
                failure = f"the kernel says that a loss is not finite, at {broken.tolist()}"
            if not failure and not torch.allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE):
                failure = f"{problem.performance} summed up to {found.tolist()}, not {wanted.tolist()}"
            if failure:
                failure = f"{name}, updates {done - (stop - start)} to {done} (task {task}): {failure}"
                return Difference(case, steps, failure, weights, replaced_in(library))
    return Difference(case, steps, "", weights, replaced_in(library))


def sensitivity(case: Case, steps: int) -> float:
    """The largest difference of a weight between two runs of the library whose initial weights differ in the last bit.

    Where it is not far below `TOLERANCE`, a failed comparison says nothing about the kernel.
    """
    stacks, problem, stream = (build(case), build(case)), PROBLEMS[case.problem], stream_of(case.problem)
    with torch.no_grad():
        for parameter in stacks[1].view.parameters.values():
            parameter.mul_(1.0 + torch.finfo(parameter.dtype).eps)
    for task, start, stop in blocks(steps):
        for stack in stacks:
            train_block(stack, stream.plan(SEEDS, task), start, stop, problem.performance)
    return largest(flat_state(stacks[0]), flat_state(stacks[1]), "tensors.")


def replaced_in(stack: neoteny.Stack) -> int:
    """Units replaced so far, over all runs and layers."""
    return sum(int(counts.sum()) for counts in stack.replaced.values())


def flat_state(stack: neoteny.Stack) -> dict[str, Tensor]:
    """Every tensor and number of `state_dict()`, on the CPU, under its path in it."""
    found: dict[str, Tensor] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, Mapping):
            for key, each in value.items():
                walk(each, f"{path}.{key}" if path else str(key))
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for number, each in enumerate(value):
                walk(each, f"{path}.{number}")
        else:
            found[path] = torch.as_tensor(value).cpu()

    saved = stack.state_dict()
    walk({key: saved[key] for key in ("seeds", "tensors", "states")}, "")
    return found


def largest(state: dict[str, Tensor], reference: dict[str, Tensor], prefix: str) -> float:
    """The largest absolute difference of the tensors whose path begins like this."""
    names = [name for name in reference if name.startswith(prefix) and reference[name].is_floating_point()]
    return max(float((state[name] - reference[name]).abs().nan_to_num(nan=torch.inf).max()) for name in names)


def first_difference(state: dict[str, Tensor], reference: dict[str, Tensor]) -> str:
    """The first tensor that is not the same, in words; "" if all are.

    Parameters and buffers may differ by `TOLERANCE`, other tensors by that share of their largest element. A row or
    column that was never reset has no step of its reset in the library, which is the same as step 0.
    """
    for name in sorted(state.keys() | reference.keys(), key=lambda name: (".born" not in name, name)):
        if ".resets." in name:
            some = state.get(name, reference.get(name))
            assert some is not None
            state, reference = {name: torch.zeros_like(some), **state}, {name: torch.zeros_like(some), **reference}
        if name not in state or name not in reference:
            return f"{name} is missing in the {'library' if name in state else 'kernel'}'s state"
        mine, theirs = state[name], reference[name]
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return f"{name} is {mine.dtype} {tuple(mine.shape)}, not {theirs.dtype} {tuple(theirs.shape)}"
        if mine.numel() == 0:
            continue
        scale = 1.0 if name.startswith("tensors.") else max(float(theirs.abs().max()), 1e-6)
        most = TOLERANCE * scale if theirs.is_floating_point() else 0.0
        wrong = ~((mine.double() - theirs.double()).abs() <= most)
        if wrong.any():
            place = tuple(int(each) for each in wrong.nonzero()[0])
            return (
                f"{name}{list(place)} is {mine[place].item()!r}, not {theirs[place].item()!r}; "
                f"{int(wrong.sum())} of {wrong.numel()} elements differ"
            )
    return ""


def blocks(steps: int) -> Iterator[tuple[int, int, int]]:
    """Task, start and stop of each block of updates, `steps` updates in all."""
    for task in itertools.count():
        start = 0
        for cut in CUTS[task % len(CUTS)]:
            stop = min(cut, steps - task * TASK_STEPS)
            if stop <= start:
                return
            yield task, start, stop
            start = stop


def train_block(stack: neoteny.Stack, plan: Plan, start: int, stop: int, performance: str) -> tuple[Tensor, Tensor]:
    """What `Kernel.advance` returns, by the library: sums of the performance, and where a loss was not finite."""
    parameter = next(iter(stack.view.parameters.values()))
    inputs, targets = plan.batches(start, stop, parameter.device)
    inputs, each, losses = inputs.to(parameter.dtype), [], []
    targets = targets.to(parameter.dtype) if targets.is_floating_point() else targets
    for batch, target in zip(inputs, targets, strict=True):
        step = stack.step(batch, target)
        losses.append(step.losses)
        each.append((step.outputs.argmax(-1) == target)[:, 0] if performance == "accuracy" else step.losses)
    broken = ~torch.isfinite(torch.stack(losses))
    first = torch.where(broken.any(0), broken.int().argmax(0) + start, -1)
    return torch.stack(each).double().sum(0).cpu(), first.cpu()
