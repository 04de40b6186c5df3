"""Permuted Shakespeare on every backend: trained alike, or refused by name; and tokens of a user's own problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.backends.graphs.backend import GraphBackend
from neoteny.backends.kernel.coverage import why_not_covered
from neoteny.backends.kernel.options import options_of
from neoteny.backends.library import LibraryBackend
from neoteny.methods import SGD, ContinualBackprop
from neoteny.nets import GPT, MLP
from neoteny.problems import PermutedShakespeare
from neoteny.problems.shakespeare.permuted import PermutedTextPlan, PermutedTextStream
from neoteny.stacking.stack import Stack
from neoteny.suite.checked_stream import CheckedStream
from neoteny.suite.stacks import runs_of, stacks_of
from neoteny.suite.sweep import Setting, Sweep, network
from neoteny.suite.training import Training
from support.problem_streams import CPU

PROBLEM = PermutedShakespeare(tasks=2, sequences_per_task=8, epochs=2, batch_size=4, context=5, source="synthetic")
NET: dict[str, Any] = {"width": 8, "heads": 2, "hidden": 6, "blocks": 1}


def begun() -> Stack:
    nets = []
    for seed in range(2):
        torch.manual_seed(seed)
        nets.append(GPT(PROBLEM.context, PROBLEM.outputs, **NET).double())
    methods = (SGD(0.1), ContinualBackprop(0.1, maturity_threshold=1))
    example = torch.zeros(1, PROBLEM.context, dtype=torch.int64)
    return neoteny.stack(nets, *methods, loss=PROBLEM.loss, example=example)


def test_the_recorded_update_is_the_librarys() -> None:
    backends = [
        kind(begun(), PROBLEM.open(), [0, 1], PROBLEM, torch.float64) for kind in (LibraryBackend, GraphBackend)
    ]
    for task in range(2):
        totals = []
        for backend in backends:
            plan = backend.plan(task)
            total, broken = backend.advance(0, plan.steps)
            assert broken.tolist() == [-1, -1]
            totals.append(total)
        torch.testing.assert_close(totals[0], totals[1])
    counts = [backend.replaced() for backend in backends]
    assert counts[0] is not None
    assert counts[1] is not None
    assert torch.equal(counts[0], counts[1])
    assert counts[0].min() > 0


def test_kernels_refuse_it_by_name() -> None:
    why = why_not_covered(PROBLEM, GPT, NET, (SGD(0.1),))
    assert why == "the plans of PermutedShakespeare are not covered"
    assert "got 'token_cross_entropy'" in str(options_of(MLP(4, [3], 2), (SGD(0.1),), "token_cross_entropy"))


class Averages(nn.Module):
    """A user's network that forgets the positions."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.table = nn.Embedding(outputs, 4)
        self.out = nn.Linear(4, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.table(tokens).mean(1))


class FloatingPlan(PermutedTextPlan):
    """A user's plan whose tokens are no whole numbers."""

    def batches(self, start: int, stop: int, device: torch.device) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batches(start, stop, device)
        return inputs.float(), targets


class FloatingStream(PermutedTextStream):
    """Its stream."""

    def plan(self, seeds: Sequence[int], task: int) -> FloatingPlan:
        plan = super().plan(seeds, task)
        return FloatingPlan(plan.seeds, plan.task, plan.sequences, plan.problem)


def test_a_users_network_must_give_logits_for_every_position() -> None:
    sweep = Sweep(PROBLEM, (Setting("own", network(Averages), (SGD(0.1),)),), runs=1)
    (one,) = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    with pytest.raises(ValueError, match=r"Averages must give one tensor of shape \(batch, positions, 76\) as outputs"):
        Training(one, PROBLEM.open(), CPU).run(lambda: None)


def test_a_users_tokens_must_be_whole_numbers() -> None:
    stream = CheckedStream(PROBLEM, FloatingStream(PROBLEM, PROBLEM.open().data))
    with pytest.raises(ValueError, match=r"inputs of int64, because they are tokens; got torch\.float32"):
        stream.plan([0], 0).batches(0, 1, CPU)
