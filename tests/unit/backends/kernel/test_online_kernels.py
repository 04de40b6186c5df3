"""Kernels on online problems: the same numbers as the library, and chosen wherever the network is an MLP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import neoteny
from neoteny.backends.backend import make_backend
from neoteny.backends.kernel import examples
from neoteny.backends.kernel.coverage import why_not_covered
from neoteny.backends.kernel.examples import SharedPlan, examples_of
from neoteny.backends.library import LibraryBackend
from neoteny.methods import SGD, UPGD, AdamW, ContinualBackprop, Method
from neoteny.nets import MLP
from neoteny.problems import (
    LabelPermutedImages,
    LabelPermutedMNIST,
    PermutedMNIST,
    RandomLabelImages,
    RandomLabelMNIST,
)
from neoteny.problems.problem import Problem
from neoteny.suite.configuration import canonical, choose_backend
from neoteny.suite.sweep import Setting, network
from support.kernel_comparison import first_difference, flat_state
from support.problem_streams import CPU, opened

pytest.importorskip("numba")

SEEDS = (11, -(2**40) - 3, 11)
PROBLEMS: dict[str, Problem] = {
    "passes of centred digits": PermutedMNIST(9, 40, source="synthetic", pixels="centred", continue_passes=True),
    "a sample of digits": PermutedMNIST(9, 160, source="synthetic", batch_size=4, images_per_run=200),
    "label-permuted digits": LabelPermutedMNIST(9, 40, "synthetic"),
    "label-permuted digits on black": LabelPermutedMNIST(9, 40, "synthetic", pixels="unit"),
    "label-permuted colours": LabelPermutedImages(9, 40, "synthetic", classes=6),
    "random-label digits": RandomLabelMNIST(9, 32, 5, 4, "synthetic"),
    "random-label colours": RandomLabelImages(9, 8, 10, 2, "synthetic", new_images=True),
}
each_problem = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
NETWORK: dict[str, Any] = {"hidden": (9, 7), "init": "default", "flatten": True}


def build(problem: Problem, methods: Sequence[Method]) -> neoteny.Stack:
    """A stack at its start; initial weights follow from the seeds."""
    modules = []
    for seed in SEEDS:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed % (2**63 - 1))
            net = MLP(int(np.prod(problem.input_shape)), outputs=problem.outputs, **NETWORK)
            modules.append(net.double())
    example = torch.zeros(1, *problem.input_shape, dtype=torch.float64)
    return neoteny.stack(modules, *methods, loss=problem.loss, example=example, seeds=SEEDS)


@each_problem
@pytest.mark.parametrize("small", [True, False], ids=["one table", "a table per task"])
def test_examples_hold_the_numbers_of_the_plans_batches(
    problem: Problem, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not small:
        monkeypatch.setattr(examples, "_MOST_TABLE_BYTES", 0)
    stream = opened(problem)
    for task in (0, 2, 0):  # the last comes from what is kept
        inputs, targets = stream.plan(SEEDS, task).batches(0, problem.steps_per_task, CPU)
        shared = SharedPlan.of(stream, SEEDS, task)
        found = examples_of(shared)
        table, batch = found.table, inputs.shape[2]
        assert (found.steps, found.batch, len(found.order)) == (problem.steps_per_task, batch, 2)
        for run, k, b in np.ndindex(len(SEEDS), min(found.steps, 12), batch):
            own = found.stream[run]
            number = found.order[own, k * batch + b]
            entries = slice(table.start[number], table.start[number + 1])
            dense = np.zeros(found.place.shape[1], dtype=np.float32)
            rows = found.place[own, table.feature[entries]]
            dense[rows] = table.values[table.level[entries]]
            assert np.array_equal(dense, inputs[k, run, b].flatten().numpy())
            assert (dense[rows] != 0).all()
            assert table.target[number] == targets[k, run, b].item()


METHODS: dict[str, tuple[Method, ...]] = {
    "SGD": (SGD(0.01),),
    "AdamW": (AdamW(1e-3, betas=(0.0, 0.99), weight_decay=0.01),),
    "UPGD": (UPGD(0.01, decay_rate=0.9, noise_std=0.001, weight_decay=0.01),),
    "CBP": (SGD(0.01), ContinualBackprop(replacement_rate=0.01, maturity_threshold=10)),
}


PAIRS = [
    ("passes of centred digits", "SGD"),
    ("passes of centred digits", "AdamW"),
    ("passes of centred digits", "UPGD"),
    ("a sample of digits", "CBP"),
    ("label-permuted digits", "CBP"),
    ("label-permuted digits", "UPGD"),
    ("label-permuted digits on black", "SGD"),
    ("label-permuted colours", "SGD"),
    ("random-label digits", "AdamW"),
    ("random-label colours", "SGD"),
]


@pytest.mark.parametrize(("name", "learner"), PAIRS)
def test_a_kernel_trains_as_the_library_does(name: str, learner: str) -> None:
    problem, methods = PROBLEMS[name], METHODS[learner]
    mine, theirs, stream = build(problem, methods), build(problem, methods), opened(problem)
    kernel = make_backend("cpu", mine, stream, SEEDS, problem, torch.float64)
    batched = getattr(problem, "batch_size", 1) > 1
    alone = isinstance(methods[0], SGD)
    assert type(kernel).__name__ == ("DenseBackend" if batched or not alone else "KernelBackend")
    library = LibraryBackend(theirs, stream, SEEDS, problem, torch.float64)
    steps = problem.steps_per_task
    for task, start, stop in ((0, 0, 25), (1, 0, 13), (1, 13, steps), (2, 0, 20)):
        for backend in (kernel, library):
            backend.plan(task)
        found, broken = kernel.advance(start, stop)
        wanted, _ = library.advance(start, stop)
        kernel.write_back()
        assert not bool((broken >= 0).any())
        assert first_difference(flat_state(mine), flat_state(theirs)) == ""
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@each_problem
def test_the_kernels_are_chosen_where_the_network_is_an_mlp(problem: Problem) -> None:
    for methods in METHODS.values():
        setting = Setting("one", network(MLP, **NETWORK), methods)
        assert why_not_covered(problem, MLP, NETWORK, methods) == ""
        assert choose_backend("cpu", problem, setting) == ("cpu", "")
    assert why_not_covered(problem, nn.Linear, {}, (SGD(0.1),)) == "Linear is not an MLP"
    unflattened = why_not_covered(problem, MLP, {**NETWORK, "flatten": False}, (SGD(0.1),))
    assert ("flatten=True" in unflattened) == (len(problem.input_shape) > 1)  # the library could not train it either


def test_new_fields_leave_the_identity_of_earlier_runs_as_it_was() -> None:
    plain = PermutedMNIST(tasks=2, examples_per_task=64, source="synthetic")
    assert set(canonical(plain)) == {"type", "tasks", "examples_per_task", "replacement", "source"}
    assert canonical(replace(plain, pixels="centred"))["pixels"] == "centred"
    assert canonical(replace(plain, continue_passes=True))["continue_passes"] is True
    assert canonical(replace(plain, images_per_run=64))["images_per_run"] == 64
