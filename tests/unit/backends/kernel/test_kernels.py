"""Kernels equal the library: the same replacements at the same steps, the same weights but for the order of sums."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import neoteny
from neoteny.backends.kernel.backend import KernelBackend, MakeKernel
from neoteny.backends.kernel.examples import Examples
from neoteny.backends.kernel.options import Numbers
from neoteny.backends.kernel.pack import Packed
from neoteny.methods import SGD, ContinualBackprop, Method, ShrinkAndPerturb
from neoteny.problems import PermutedMNIST
from neoteny.problems.problem import Stream
from support.kernel_cases import (
    OPTIONS,
    PATHS,
    TASK_STEPS,
    Case,
    all_cases,
    build,
    covering_cases,
    kernel_of,
    paths_of,
)
from support.kernel_comparison import compare, train_block

GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]
NARROW = Case("regression", (5,), "relu", "momentum", utility="contribution")


def cases_of(device: str) -> tuple[Case, ...]:
    """The covering set of a device; one case that is skipped where there is no such device."""
    return covering_cases(2, device) if device == "cpu" or torch.cuda.is_available() else (NARROW,)


# ----------------------------------------------------------------------------------------------------------- equality


@pytest.mark.parametrize("device", PATHS)
def test_the_covering_set_holds_every_pair_of_values_that_can_occur(device: str) -> None:
    def pairs(cases: Sequence[Case]) -> set[tuple[tuple[str, object], tuple[str, object]]]:
        rows = ([(name, getattr(case, name)) for name in OPTIONS] for case in cases)
        return {pair for row in rows for pair in itertools.combinations(row, 2)}

    grid, chosen = all_cases(), covering_cases(2, device)
    assert set(chosen) <= set(grid)
    assert len(chosen) < 100
    for path in PATHS[device]:
        mine, all_of_it = ([case for case in cases if path in paths_of(case, device)] for cases in (chosen, grid))
        assert pairs(mine) == pairs(all_of_it)
    assert {name: {getattr(case, name) for case in grid} for name in OPTIONS} == {
        name: set(values) for name, values in OPTIONS.items()
    }


def test_what_the_grid_leaves_out_is_refused_by_the_library() -> None:
    for case in (Case(norm="online", utility="overall"), Case(hidden=(), utility="overall")):
        assert case not in all_cases()
        with pytest.raises(ValueError, match="at least one group of hidden units"):
            build(case)


@pytest.mark.parametrize(
    ("device", "case"),
    [
        pytest.param(device, case, id=f"{device}: {case.name}", marks=GPU if device == "cuda" else ())
        for device in PATHS
        for case in cases_of(device)
    ],
)
def test_a_kernel_equals_the_library_over_two_tasks(device: str, case: Case) -> None:
    kernels = {path: kernel_of(device, path) for path in paths_of(case, device)}
    difference = compare(case, 2 * TASK_STEPS, kernels, device)
    assert difference.failure == ""
    assert difference.replaced >= (45 if case.utility else 0)


@pytest.mark.parametrize("device", DEVICES)
def test_new_units_come_from_torchs_own_distribution_where_the_network_does(device: str) -> None:
    case = replace(NARROW, init="default")
    assert compare(case, 320, {"as chosen": kernel_of(device)}, device).failure == ""


@pytest.mark.parametrize("device", DEVICES)
def test_utilities_stay_exact_when_nearly_all_inputs_of_a_unit_are_replaced(device: str) -> None:
    # What a sum of |w| was before, and its rounding errors, are then millions of times what is left of it.
    case = Case("digits", (34, 17, 20), "sigmoid", utility="overall")
    assert compare(case, 480, {"as chosen": kernel_of(device)}, device).failure == ""


SABOTAGE = {
    "a weight": "tensors.fc1.weight",
    "a birth": "born",
    "a count": "replaced",
    "a velocity": "states.0.fc1",
    "the sum": "error summed up",
}


@pytest.mark.parametrize("what", SABOTAGE)
def test_the_comparison_notices_a_kernel_that_is_a_little_wrong(what: str) -> None:
    sound = kernel_of("cpu")

    class Wrong:
        def __init__(self, packed: Packed, numbers: Numbers, scales: Sequence[float]) -> None:
            self.packed, self.sound = packed, sound(packed, numbers, scales)

        def advance(self, examples: Examples, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
            total, broken = self.sound.advance(examples, start, stop)
            if self.packed.step > 200:
                packed = self.packed
                packed.parameters[1, 0] += 1e-8 if what == "a weight" else 0.0
                packed.born[1, 0] += 1 if what == "a birth" else 0
                packed.replaced[1, 0] += 1 if what == "a count" else 0
                packed.first[1, 0] += 1e-8 if what == "a velocity" else 0.0
                total[1] *= 1.0 + (1e-8 if what == "the sum" else 0.0)
            return total, broken

    difference = compare(NARROW, 240, {"sound": sound, "wrong": Wrong})  # the sound one is compared first
    assert difference.failure.startswith("wrong, updates 192 to 208")
    assert SABOTAGE[what] in difference.failure


def train_float32(stack: neoteny.Stack, seeds: Sequence[int], tasks: int, kernel: MakeKernel | None) -> Tensor:
    """Online accuracy in percent, (tasks, n)."""
    steps, path, rows = 500, None, []
    stream = PermutedMNIST(tasks, steps, source="synthetic").open()
    assert isinstance(stream, Stream)
    if kernel is not None:
        path = KernelBackend(stack, stream, seeds, "cross_entropy", kernel)
    for task in range(tasks):
        plan = stream.plan(seeds, task) if path is None else path.plan(task)
        trained = train_block(stack, plan, 0, steps, "accuracy") if path is None else path.advance(0, steps)
        rows.append(trained[0] * (100 / steps))
    return torch.stack(rows)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["BP", "CBP"])
def test_online_accuracy_in_float32_is_the_librarys_within_three_tenths_of_a_point(method: str, device: str) -> None:
    case, seeds, tasks = Case("digits", (20, 20)), range(20), 4
    methods: list[Method] = [SGD(0.01)] if method == "BP" else [SGD(0.01), ContinualBackprop(2e-3, 50)]
    ours, theirs = (build(case, methods, seeds, torch.float32, where) for where in (device, "cpu"))
    fast = train_float32(ours, seeds, tasks, kernel_of(device)).mean(0)
    slow = train_float32(theirs, seeds, tasks, None).mean(0)
    difference = fast - slow
    half = 2.093 * difference.std() / math.sqrt(len(seeds))  # Student's t with 19 degrees of freedom
    assert slow.mean() > 30.0  # it learns: chance is 10
    assert slow.std() > 0.1
    assert difference.mean() - half > -0.3
    assert difference.mean() + half < 0.3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("hidden", [(34, 17, 20), (100, 100, 100), (500, 500)], ids=str)
def test_noise_in_float32_is_the_librarys(hidden: tuple[int, ...], device: str) -> None:
    # An error of 4e-7 in the logarithm is one of 6e-4 at most in a normal number, where that is next to 0.
    case, noise, updates = Case("digits", hidden), 0.01, 3
    methods: list[Method] = [SGD(1e-4), ShrinkAndPerturb(1e-6, noise)]
    ours, theirs, before = (build(case, methods, [1, 2], torch.float32, where) for where in (device, "cpu", "cpu"))
    stream = PermutedMNIST(1, updates, source="synthetic").open()
    assert isinstance(stream, Stream)
    kernel = KernelBackend(ours, stream, [1, 2], "cross_entropy", kernel_of(device))
    kernel.plan(0)
    kernel.advance(0, updates)
    kernel.write_back()
    train_block(theirs, stream.plan([1, 2], 0), 0, updates, "accuracy")
    for name, weights in theirs.view.parameters.items():
        difference = (ours.view.parameters[name].cpu() - weights).abs() / noise
        assert difference.max() < 2e-3, name
        assert difference.mean() < 1e-5, name
        if weights.numel() > 1000:
            change = (weights - before.view.parameters[name]) / noise
            torch.testing.assert_close(change.std(), torch.tensor(math.sqrt(updates)), rtol=0.05, atol=0)
