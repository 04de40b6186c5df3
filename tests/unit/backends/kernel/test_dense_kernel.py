"""The dense kernel equals the library in all state; runs are resumed, alone and on threads to the same bits.

The comparison with the library has the text of the CUDA kernel beside it, compiled for the host: see `cuda_on_host`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("numba")

import neoteny
from neoteny.backends.library import LibraryBackend
from neoteny.methods import L2, SGD, UPGD, AdamW, Method, ReDo, WeightClipping
from neoteny.nets import MLP
from neoteny.problems import PermutedMNIST
from neoteny.problems.problem import Stream
from support.cuda_on_host import compiler, host_dense
from support.dense_cases import BLOCKS, SEEDS, Learner, advance, assert_same, build, dense, difference, stream_of
from support.dense_learners import LEARNERS, NORMED, RESUMED, REWRITES
from support.kernel_cases import select
from support.kernel_comparison import flat_state

SOME_BATCHES = (("AdamW, clipping, layer norm", 32), ("L2-init", 16), ("UPGD", 16), ("ReGraMa", 16), ("SWR, Adam", 1))
"""Learners at other batches in the default suite; `-m slow` has all of them at 1, 16 and 32."""
KERNELS = (dense, host_dense) if compiler() else (dense,)
"""The second is skipped where there is no C++ compiler; `test_dense_cuda` says so."""


@pytest.mark.parametrize("name", LEARNERS)
def test_the_dense_kernels_equal_the_library(name: str) -> None:
    learner = LEARNERS[name]
    failure, replaced = difference(learner, makes=KERNELS)
    assert failure == ""
    assert (replaced >= 30) == any(isinstance(method, REWRITES) for method in learner.methods)


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        pytest.param(name, batch, marks=() if (name, batch) in SOME_BATCHES else pytest.mark.slow)
        for name, learner in LEARNERS.items()
        for batch in (1, 16, 32)
        if learner.batch not in (0, batch)
    ],
)
def test_the_dense_kernels_equal_the_library_at_every_batch_of_the_field(name: str, batch: int) -> None:
    assert difference(replace(LEARNERS[name], batch=batch), BLOCKS[:3], KERNELS)[0] == ""


@pytest.mark.parametrize("what", ["parameters", "first", "anchor", "slow", "since", "reset"])
def test_the_comparison_notices_a_kernel_that_is_a_little_wrong(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from neoteny.backends.kernel.dense.kernel import DenseBackend

    sound = DenseBackend.train

    def wrong(self: DenseBackend, *arguments: Any) -> Any:
        found = sound(self, *arguments)
        getattr(self._packed.state, what)[1, 0] += 1e-8 if what not in ("since", "reset") else 1
        return found

    monkeypatch.setattr(DenseBackend, "train", wrong)
    assert "task 0" in difference(LEARNERS["ReDo, everything hears of it"], BLOCKS[:1])[0]


def train(
    learner: Learner,
    stack: neoteny.Stack,
    seeds: Sequence[int] = SEEDS,
    blocks: slice = slice(None),
    threads: int = 1,
) -> torch.Tensor:
    """The sums of the performance in some blocks, (blocks, n)."""
    return advance(dense(learner, stack, seeds, threads), BLOCKS[blocks])


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_is_bit_identical(name: str) -> None:
    learner = LEARNERS[name]
    whole, killed, resumed = (build(learner) for _ in range(3))
    sums = train(learner, whole)
    train(learner, killed, blocks=slice(2))
    saved = killed.state_dict()
    train(learner, killed, blocks=slice(2, None))  # what was saved must not move on
    resumed.load_state_dict(saved)
    assert torch.equal(train(learner, resumed, blocks=slice(2, None)), sums[2:])
    assert_same(resumed, whole)


@pytest.mark.parametrize("name", RESUMED)
def test_the_library_goes_on_from_what_the_kernel_has_written_and_the_other_way_round(name: str) -> None:
    learner = LEARNERS[name]
    first, second = build(learner), build(learner)
    train(learner, first, blocks=slice(2))
    library = LibraryBackend(second, stream_of(learner.problem), SEEDS, learner.problem, torch.float64)
    for task, start, stop in BLOCKS[:2]:
        library.plan(task)
        library.advance(start, stop)
    for stack in (first, second):
        going_on = LibraryBackend(stack, stream_of(learner.problem), SEEDS, learner.problem, torch.float64)
        going_on.plan(2)
        going_on.advance(0, 10)
        kernel = dense(learner, stack)
        kernel.plan(2)
        kernel.advance(10, 20)
        kernel.write_back()
    for name, mine in flat_state(first).items():
        torch.testing.assert_close(mine, flat_state(second)[name], rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.parametrize("name", ["UPGD, local", "CBP and SNR"])
def test_a_run_depends_neither_on_its_neighbours_nor_on_threads(name: str) -> None:
    learner = LEARNERS[name]
    together, threaded = build(learner), build(learner)
    sums = train(learner, together)
    assert torch.equal(train(learner, threaded, threads=2), sums)
    assert_same(threaded, together)
    for run in (0, 1):
        methods = select(learner.methods, [run])
        alone = build(learner, SEEDS[run : run + 1], methods=methods)
        assert torch.equal(train(replace(learner, methods=tuple(methods)), alone, SEEDS[run : run + 1]), sums[:, [run]])
        for key, value in alone.view.tensors.items():
            assert torch.equal(value[0], together.view.tensors[key][run]), key


def test_a_diverging_run_is_told_and_does_not_disturb_its_neighbours() -> None:
    learner = replace(LEARNERS["SGD"], methods=(SGD((3e-3, 1e20, 5e-3)), L2((1e-2, 1e3, 1e-3))))
    wild, calm = build(learner), build(LEARNERS["SGD"])
    kernel = dense(learner, wild)
    kernel.plan(0)
    total, broken = kernel.advance(0, 40)
    kernel.write_back()
    assert broken[[0, 2]].tolist() == [-1, -1]
    assert 0 <= broken[1] < 40
    assert torch.equal(train(LEARNERS["SGD"], calm, blocks=slice(1))[0][[0, 2]], total[[0, 2]])
    for key, value in calm.view.tensors.items():
        assert torch.equal(value[[0, 2]], wild.view.tensors[key][[0, 2]]), key


@pytest.mark.parametrize(
    "methods", [(AdamW(1e-3), WeightClipping(1.0)), (UPGD(1e-2), ReDo(50, 0.1))], ids=["AdamW", "UPGD"]
)
def test_accuracy_in_float32_is_the_librarys(methods: tuple[Method, ...]) -> None:
    problem, seeds, rows = PermutedMNIST(2, 1600, source="synthetic", batch_size=8), range(6), []
    learner = Learner(methods, NORMED, batch=8, hidden=(20, 20))
    stream = problem.open()
    assert isinstance(stream, Stream)
    for compiled in (True, False):
        stack = build(learner, seeds, torch.float32)
        backend: Any = LibraryBackend(stack, stream, seeds, problem, torch.float32)
        if compiled:
            backend = type(dense(learner, stack, seeds))(stack, stream, seeds, problem.loss, 8)
        for task in range(2):
            backend.plan(task)
            total, broken = backend.advance(0, 200)
            assert (broken < 0).all()
            rows.append(total / 2)
    fast, slow = torch.stack(rows[:2]), torch.stack(rows[2:])
    assert slow.mean() > 20.0  # percent; it learns: chance is 10
    torch.testing.assert_close(fast, slow, rtol=0, atol=1.0)


def test_a_stack_or_a_plan_that_does_not_fit_is_refused() -> None:
    learner = LEARNERS["SGD"]
    stack = build(learner)
    with pytest.raises(ValueError, match="the seeds must be the stack's own"):
        dense(learner, stack, (1, 2, 3))
    kernel = dense(replace(learner, batch=2), stack)
    kernel._stream = stream_of(learner.problem)
    kernel.plan(0)
    with pytest.raises(ValueError, match="made for 2 examples per update; the plan has 4"):
        kernel.advance(0, 3)
    with pytest.raises(ValueError, match="dropout is not covered"):
        dense(learner, build(replace(learner, network={"dropout": 0.1})))
    modules = [MLP(784, (5,), 10, init="default") for _ in range(2)]
    options: Any = {"loss": "cross_entropy", "example": torch.zeros(1, 784), "init": "kaiming_normal", "trained": True}
    normal = neoteny.stack(modules, SGD(0.1), ReDo(), seeds=[0, 1], **options)
    with pytest.raises(ValueError, match="uniform distribution"):
        dense(learner, normal, (0, 1))
