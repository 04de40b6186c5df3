"""The dense CUDA kernel: on a GPU as it is, elsewhere its text compiled for the host (`support.cuda_on_host`).

On the host, one thread per block is compared with the library in `test_dense_kernel`, for every learner; here are
several threads, little shared memory, and what must hold bit by bit. Tests marked `gpu` are the same on the device.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import neoteny
from neoteny.backends.backend import make_backend
from neoteny.backends.kernel.dense.backend import PackedBackend
from neoteny.backends.kernel.dense.terms import ADAM, DenseOptions
from neoteny.backends.kernel.dense_cuda.kernel import DenseCudaBackend, corrections_by_age
from neoteny.backends.kernel.dense_cuda.memory import Memory
from neoteny.backends.library import LibraryBackend
from neoteny.methods import L2, SGD, UPGD, AdamW, Method, ReDo, WeightClipping
from neoteny.problems import PermutedMNIST
from neoteny.problems.problem import Stream
from support.cuda_on_host import compiler, host_dense
from support.dense_cases import BLOCKS, SEEDS, Learner, advance, assert_same, build, difference, stream_of
from support.dense_learners import LEARNERS, NORMED, RESUMED
from support.kernel_cases import select
from support.kernel_comparison import flat_state

ON_HOST = pytest.mark.skipif(compiler() is None, reason="needs g++ or clang++")
GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))
DEVICES = [pytest.param("cpu", marks=ON_HOST, id="host"), pytest.param("cuda", marks=GPU)]
on_both = pytest.mark.parametrize("device", DEVICES)
on_gpu = pytest.mark.parametrize("device", DEVICES[1:])
WIDE = (300, 150)
SHAPES = {
    "AdamW, clipping, layer norm": {"batch": 32, "hidden": WIDE},  # memory outside in float64
    "CReLU, layer norm": {"batch": 16, "hidden": (100, 34)},
    "UPGD, local": {"batch": 5, "hidden": (40, 70)},
    "CBP and SNR": {"batch": 1, "hidden": WIDE},
    "SGD": {"batch": 16, "hidden": (2100,)},  # more columns than threads
}


def dense_cuda(learner: Learner, stack: neoteny.Stack, seeds: Sequence[int] = SEEDS) -> PackedBackend:
    """The dense CUDA kernel where the stack is."""
    if stack.view.parameters["out.weight"].device.type == "cpu":
        return host_dense(learner, stack, seeds, threads=2)
    return DenseCudaBackend(stack, stream_of(learner.problem), seeds, learner.problem.loss, learner.examples)


@on_gpu
@pytest.mark.parametrize("name", LEARNERS)
def test_it_equals_the_library(name: str, device: str) -> None:
    assert difference(LEARNERS[name], makes=(dense_cuda,), device=device)[0] == ""


@on_gpu
@pytest.mark.parametrize("name", SHAPES)
def test_it_equals_the_library_in_other_shapes(name: str, device: str) -> None:
    learner = replace(LEARNERS[name], **SHAPES[name])
    assert difference(learner, ((0, 0, 24), (1, 0, 10)), (dense_cuda,), device)[0] == ""


@ON_HOST
@pytest.mark.parametrize(
    ("name", "threads", "room"),
    [
        ("AdamW, clipping, layer norm", 4, 1 << 20),
        ("UPGD, local", 5, 1 << 20),
        ("CBP, CReLU, layer norm", 7, 1 << 12),
        ("CBP and SNR", 3, 1 << 12),
        ("SWR, AdamW, CReLU, averaged", 6, 0),
    ],
)
def test_neither_threads_nor_the_place_of_working_memory_matter(name: str, threads: int, room: int) -> None:
    make = functools.partial(host_dense, threads=threads, room=room)
    assert difference(LEARNERS[name], BLOCKS[:2], (make,))[0] == ""


@on_both
@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_is_bit_identical(name: str, device: str) -> None:
    learner = LEARNERS[name]
    whole, killed, resumed = (build(learner, device=device) for _ in range(3))
    sums = advance(dense_cuda(learner, whole))
    interrupted = dense_cuda(learner, killed)
    advance(interrupted, BLOCKS[:2])
    saved = killed.state_dict()
    advance(interrupted, BLOCKS[2:])  # what was saved must not move on
    resumed.load_state_dict(saved)
    assert torch.equal(advance(dense_cuda(learner, resumed), BLOCKS[2:]), sums[2:])
    assert_same(resumed, whole)


@on_both
@pytest.mark.parametrize("name", ["SWR, AdamW, CReLU, averaged", "CBP and SNR"])
def test_the_library_goes_on_from_what_it_has_written(name: str, device: str) -> None:
    learner = LEARNERS[name]
    first, second = build(learner, device=device), build(learner)
    advance(dense_cuda(learner, first), BLOCKS[:2])
    states = []
    for stack, blocks in ((first, BLOCKS[2:3]), (second, BLOCKS[:3])):
        library = LibraryBackend(stack, stream_of(learner.problem), SEEDS, learner.problem, torch.float64)
        for task, start, stop in blocks:
            library.plan(task)
            library.advance(start, stop)
        states.append(flat_state(stack))
    for key, mine in states[0].items():
        torch.testing.assert_close(mine, states[1][key], rtol=1e-8, atol=1e-9, msg=key)


@on_both
@pytest.mark.parametrize("name", ["UPGD, local", "CBP and SNR"])
def test_a_run_does_not_depend_on_its_neighbours(name: str, device: str) -> None:
    learner = LEARNERS[name]
    together = build(learner, device=device)
    sums = advance(dense_cuda(learner, together))
    for run in (0, 1):
        methods, seeds = select(learner.methods, [run]), SEEDS[run : run + 1]
        alone = build(learner, seeds, methods=methods, device=device)
        assert torch.equal(advance(dense_cuda(replace(learner, methods=tuple(methods)), alone, seeds)), sums[:, [run]])
        for key, value in alone.view.tensors.items():
            assert torch.equal(value[0], together.view.tensors[key][run]), key


@on_both
def test_a_diverging_run_is_told_and_does_not_disturb_its_neighbours(device: str) -> None:
    learner = replace(LEARNERS["SGD"], methods=(SGD((3e-3, 1e20, 5e-3)), L2((1e-2, 1e3, 1e-3))))
    wild, calm = build(learner, device=device), build(LEARNERS["SGD"], device=device)
    kernel = dense_cuda(learner, wild)
    kernel.plan(0)
    total, broken = kernel.advance(0, 40)
    kernel.write_back()
    assert broken[[0, 2]].tolist() == [-1, -1]
    assert 0 <= broken[1] < 40
    assert torch.equal(advance(dense_cuda(LEARNERS["SGD"], calm), BLOCKS[:1])[0][[0, 2]], total[[0, 2]])
    for key, value in calm.view.tensors.items():
        assert torch.equal(value[[0, 2]], wild.view.tensors[key][[0, 2]]), key


@on_gpu
@pytest.mark.parametrize(
    "methods", [(AdamW(1e-3), WeightClipping(1.0)), (UPGD(1e-2), ReDo(50, 0.1))], ids=["AdamW", "UPGD"]
)
def test_accuracy_in_float32_is_the_librarys(methods: tuple[Method, ...], device: str) -> None:
    problem, seeds, rows = PermutedMNIST(2, 1600, source="synthetic", batch_size=8), range(6), []
    learner = Learner(methods, NORMED, batch=8, hidden=(20, 20))
    stream = problem.open()
    assert isinstance(stream, Stream)
    for compiled in (True, False):
        stack = build(learner, seeds, torch.float32, device=device if compiled else "cpu")
        name = "cuda" if compiled else "reference"
        backend: Any = make_backend(name, stack, stream, seeds, problem, torch.float32)
        assert isinstance(backend, DenseCudaBackend) == compiled
        for task in range(2):
            backend.plan(task)
            total, broken = backend.advance(0, 200)
            assert (broken < 0).all()
            rows.append(total.cpu() / 2)
    fast, slow = torch.stack(rows[:2]), torch.stack(rows[2:])
    assert slow.mean() > 20.0  # percent; it learns: chance is 10
    torch.testing.assert_close(fast, slow, rtol=0, atol=1.0)


@on_both
def test_a_stack_or_a_plan_that_does_not_fit_is_refused(device: str) -> None:
    learner = LEARNERS["SGD"]
    stack = build(learner, device=device)
    with pytest.raises(ValueError, match="the seeds must be the stack's own"):
        dense_cuda(learner, stack, (1, 2, 3))
    kernel = dense_cuda(replace(learner, batch=2), stack)
    kernel._stream = stream_of(learner.problem)
    kernel.plan(0)
    with pytest.raises(ValueError, match="made for 2 examples per update; the plan has 4"):
        kernel.advance(0, 3)
    with pytest.raises(ValueError, match="must be on a CUDA device, not on cpu"):
        DenseCudaBackend(build(learner), stream_of(learner.problem), SEEDS, learner.problem.loss, 4)


def test_a_compiler_that_does_not_know_barriers_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "g++"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compiler.__wrapped__() is None


def test_what_does_not_fit_into_shared_memory_lies_outside() -> None:
    memory = Memory(64)
    for name, size in (("A", 20), ("B", 40), ("C", 30)):
        memory.add(name, size)
    memory.add_layers("D", [0, 8, 3])
    assert memory.places == {"A": 0, "B": -1, "C": 32, "D": [0, -49, -65]}
    assert (memory.inside, memory.outside) == (64, 80)


def test_corrections_of_old_weights_are_none() -> None:
    options = DenseOptions((3, 2), 0, 1, ADAM, beta1=0.5, beta2=0.9)
    table = corrections_by_age(options)
    assert table[:, 1].tolist() == pytest.approx([2.0, 1 / np.sqrt(0.1)])
    assert table[:, 2].tolist() == pytest.approx([4 / 3, 1 / np.sqrt(0.19)])
    assert table[:, -1].tolist() == [1.0, 1.0]
