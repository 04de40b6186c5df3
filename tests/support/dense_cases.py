"""Learners of the dense kernels, and the comparison of those kernels with the library after every block of updates.

Before this: `kernel_comparison`, whose `flat_state` and `first_difference` look at all state; after it:
`unit/backends/kernel/test_dense_kernel.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import neoteny
from neoteny.backends.kernel.dense.backend import PackedBackend
from neoteny.backends.kernel.dense.kernel import DenseBackend
from neoteny.backends.library import LibraryBackend
from neoteny.methods import Method
from neoteny.nets import MLP
from neoteny.problems import PermutedMNIST, SlowlyChangingRegression
from neoteny.problems.problem import Problem, Stream
from support.kernel_comparison import first_difference, flat_state

SEEDS = (11, -(2**40) - 3, 11)
BLOCKS = ((0, 0, 40), (0, 40, 47), (1, 0, 48), (2, 0, 30), (2, 30, 48), (3, 0, 48))
"""Task, first and last update of the blocks that are trained."""


@dataclass(frozen=True)
class Learner:
    """A network and methods on digits, or on slowly-changing regression with `batch` 0.

    Attributes:
        methods: an optimizer first.
        network: options of `MLP` beside the hidden units.
        batch: images per update.
    """

    methods: tuple[Method, ...]
    network: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 4
    hidden: tuple[int, ...] = (9, 7)

    @property
    def problem(self) -> Problem:
        if self.batch == 0:
            return SlowlyChangingRegression(tasks=10, examples_per_task=48)
        return PermutedMNIST(tasks=10, examples_per_task=48 * self.batch, source="synthetic", batch_size=self.batch)

    @property
    def examples(self) -> int:
        """Per update."""
        return max(self.batch, 1)


@functools.cache
def stream_of(problem: Problem) -> Stream:
    """The opened problem, one copy for all learners."""
    stream = problem.open()
    assert isinstance(stream, Stream)
    return stream


def build(
    learner: Learner,
    seeds: Sequence[int] = SEEDS,
    dtype: torch.dtype = torch.float64,
    methods: Sequence[Method] | None = None,
    device: str = "cpu",
) -> neoteny.Stack:
    """A stack at its start; initial weights follow from the seeds."""
    problem, modules = learner.problem, []
    for seed in seeds:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed % (2**63 - 1))
            net = MLP(problem.input_shape[0], learner.hidden, problem.outputs, **learner.network)
            modules.append(net.to(device, dtype))
    example = torch.zeros(1, *problem.input_shape, dtype=dtype, device=device)
    chosen = learner.methods if methods is None else methods
    return neoteny.stack(modules, *chosen, loss=problem.loss, example=example, seeds=seeds)


def dense(learner: Learner, stack: neoteny.Stack, seeds: Sequence[int] = SEEDS, threads: int = 1) -> DenseBackend:
    """The dense kernel on a stack."""
    return DenseBackend(stack, stream_of(learner.problem), seeds, learner.problem.loss, learner.examples, threads)


def advance(kernel: PackedBackend, blocks: Sequence[tuple[int, int, int]] = BLOCKS) -> torch.Tensor:
    """The sums of the performance in some blocks, (blocks, n); the stack is written back at the end."""
    sums = []
    for task, first, last in blocks:
        kernel.plan(task)
        sums.append(kernel.advance(first, last)[0])
    kernel.write_back()
    return torch.stack(sums)


def assert_same(ours: neoteny.Stack, theirs: neoteny.Stack) -> None:
    """All state is the same, bit by bit."""
    mine, other = flat_state(ours), flat_state(theirs)
    assert mine.keys() == other.keys()
    for name, expected in other.items():
        assert torch.equal(mine[name], expected), name


Make = Callable[[Learner, neoteny.Stack], PackedBackend]
"""What puts a dense kernel on a stack."""


def difference(
    learner: Learner,
    blocks: Sequence[tuple[int, int, int]] = BLOCKS,
    makes: Sequence[Make] = (dense,),
    device: str = "cpu",
) -> tuple[str, int]:
    """Where a kernel and the library first differ, "" if nowhere; and how many units the library replaced.

    Args:
        learner: what is trained.
        blocks: of updates; state is compared after each.
        makes: of the kernels.
        device: where the kernels' stacks are; the library trains on the CPU.
    """
    stacks, theirs = [build(learner, device=device) for _ in makes], build(learner)
    kernels = [make(learner, stack) for make, stack in zip(makes, stacks, strict=True)]
    library = LibraryBackend(theirs, stream_of(learner.problem), SEEDS, learner.problem, torch.float64)
    for task, start, stop in blocks:
        library.plan(task)
        wanted, _ = library.advance(start, stop)
        reference, counts = flat_state(theirs), library.replaced()
        for kernel, stack in zip(kernels, stacks, strict=True):
            kernel.plan(task)
            found, broken = kernel.advance(start, stop)
            kernel.write_back()
            where = f"{type(kernel).__name__}, task {task}, updates {start} to {stop}: "
            if failure := first_difference(flat_state(stack), reference):
                return where + failure, -1
            if bool((broken >= 0).any()) or not torch.allclose(found, wanted, rtol=1e-9, atol=1e-9):
                return f"{where}the performance is {found.tolist()}, not {wanted.tolist()}", -1
            many, expected = (None if each is None else each.tolist() for each in (kernel.replaced(), counts))
            if many != expected:
                return f"{where}replaced are {many}, not {expected}", -1
    return "", 0 if (counts := library.replaced()) is None else int(counts.sum())
