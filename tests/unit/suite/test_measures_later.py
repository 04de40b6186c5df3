"""Measures whose decompositions are done while the next task is trained, and many runs in one pass."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from neoteny.methods import SGD
from neoteny.metrics.gram import effective_rank_by_gram, effective_rank_later
from neoteny.nets import MLP
from neoteny.stacking.stack import Stack, stack
from neoteny.suite import measures
from neoteny.suite.measures import MEASURES, begin_measure, measure


def make_stack(*modules: nn.Module) -> Stack:
    return stack(modules, SGD(0.05), loss="cross_entropy")


def test_decompositions_can_be_done_later_and_elsewhere() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(3, 40, 12)
    matrix[1, :, 5:] = 1e-7 * matrix[1, :, 5:] + matrix[1, :, :1]  # too close for its squares
    waiting: list[Callable[[], Tensor]] = []

    def submit(function: Callable[[], Tensor], held: int) -> Callable[[], Tensor]:
        waiting.append(function)
        assert held >= 12 * 12 * 8
        return function

    later = effective_rank_later(matrix, submit=submit)
    assert len(waiting) == 3
    assert torch.equal(later(), effective_rank_by_gram(matrix))


def test_many_runs_in_one_pass_are_read_as_each_by_itself() -> None:
    torch.manual_seed(0)
    runs = make_stack(*(MLP(6, [9, 7], 3, activation=each) for each in ("tanh",) * 37))
    inputs = torch.rand(37, 11, 6)
    groups = measures._hidden_units(runs, inputs)
    assert measures._reads_linear(runs.template, groups)
    runs.template.train()
    found = measures._read_together(runs.template, groups, runs.evaluation_tensors, inputs, 2, 37)
    assert runs.template.training
    for run in (2, 33, 34, 36):
        tensors = {name: tensor[run] for name, tensor in runs.evaluation_tensors.items()}
        alone = measures._read(runs.template, groups, tensors, inputs[run])
        for together, layer in zip(found, alone, strict=True):
            torch.testing.assert_close(together[run - 2], layer)
    normed = make_stack(nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.LayerNorm(9), nn.Linear(9, 3)))  # read at the norm
    assert not measures._reads_linear(normed.template, measures._hidden_units(normed, inputs))


def test_a_single_run_is_read_as_one_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "_read", None)  # not by itself
    torch.manual_seed(0)
    runs = make_stack(*(MLP(6, [90, 70], 3) for _ in range(33)))
    inputs = torch.rand(33, 11, 6)
    groups = measures._hidden_units(runs, inputs)
    together = measures._take(runs, groups, inputs, 0, 33, True, count_repeats=False)
    alone = measures._take(runs, groups, inputs, 32, 33, True, count_repeats=False)
    for many, one in zip(together.activations, alone.activations, strict=True):
        assert torch.equal(many[32:], one)
    on_gpu = [cast(Any, SimpleNamespace(is_cuda=True, shape=(count, 11, 6))) for count in (1, 33)]
    assert measures._together(runs, on_gpu[0]) == measures._together(runs, on_gpu[1]) > 1


def test_repeated_examples_are_counted_in_each_run_by_itself() -> None:
    examples = torch.tensor([[[1.0], [2.0], [1.0], [1.0]], [[3.0], [3.0], [0.0], [-0.0]]])
    assert measures._repeats(examples).tolist() == [[3.0, 1.0, 0.0, 0.0], [2.0, 0.0, 1.0, 1.0]]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("width", [30, 300])
def test_what_is_measured_later_is_of_the_networks_as_they_were(width: int, device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    torch.manual_seed(0)
    runs = make_stack(*(MLP(12, [width, width // 2], 3).to(device) for _ in range(3)))
    inputs = torch.rand(3, 500, 12, device=device)
    expected = measure(list(MEASURES), runs, inputs)
    later = begin_measure(list(MEASURES), runs, inputs)
    for _ in range(20):
        runs.step(inputs, torch.ones(3, 500, 3, device=device))
    assert not torch.equal(
        measure(["weight_magnitude"], runs, inputs)["weight_magnitude"], expected["weight_magnitude"]
    )
    for name, values in later().items():
        assert torch.equal(values, expected[name]), name
