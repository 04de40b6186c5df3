"""Methods that act when a task begins: in a stack as alone, saved around it, with frozen layers and with norms."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import SGD, Method
from support.method_cases import FOUND, OTHERS, Attached, make, network, stacked, stream

AT_BOUNDARIES = [name for name in OTHERS if FOUND[name].task_boundary is not Method.task_boundary]
WHEN_ASKED = {"CChain", "SelfNormalizedResets"}  # their defaults do nothing there; tests of their own ask for it
Batches = list[tuple[Tensor, Tensor]]


def new_data() -> Batches:
    """Batches of the task that begins, (runs, B, ...)."""
    return stream(3, seed=21)


def mean_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean()


def begin_attached(run: Attached) -> None:
    """Tell an attachment that a task begins; what needs its data gets run 0's."""
    assert run.plastic is not None
    if any(method.needs_boundary_data for method in run.plastic.methods):
        run.plastic.task_boundary([(x[0], y[0]) for x, y in new_data()], mean_square)
    else:
        run.plastic.task_boundary()


def begin_stacked(runs: Any, members: slice = slice(None)) -> None:
    """Tell a stack of some of three runs that a task begins."""
    data = [(x[members], y[members]) for x, y in new_data()]
    runs.task_boundary(data if any(method.needs_boundary_data for method in runs.methods) else None)


def train(runs: Any, batches: Batches, members: slice = slice(None)) -> list[Tensor]:
    return [runs.step(x[members], y[members]).losses for x, y in batches]


@pytest.mark.parametrize("name", AT_BOUNDARIES)
class TestAMethodThatActsAtBoundaries:
    def test_changes_what_follows(self, name: str) -> None:
        told, untold = Attached(make(name)), Attached(make(name))
        batches = stream(12)
        assert told.train(batches[:6]) == untold.train(batches[:6])
        begin_attached(told)
        assert (told.train(batches[6:]) == untold.train(batches[6:])) == (name in WHEN_ASKED)

    def test_is_the_same_attached_and_stacked(self, name: str) -> None:
        run, runs = Attached(make(name)), stacked(make(name), members=[network()], seeds=[7])
        batches = stream(24)
        for part in (batches[:8], batches[8:16], batches[16:]):
            for losses, x, y in zip(train(runs, part, slice(0, 1)), *zip(*part, strict=True), strict=True):
                assert run.step(x[0], y[0]) == pytest.approx(float(losses), rel=1e-11, abs=1e-12)
            begin_attached(run)
            begin_stacked(runs, slice(0, 1))
        for ours, theirs in zip(run.weights(), runs.module(0).parameters(), strict=True):
            torch.testing.assert_close(ours, theirs.detach(), rtol=1e-10, atol=1e-12)

    def test_treats_three_runs_as_the_three_alone(self, name: str) -> None:
        whole = stacked(make(name))
        single = [stacked(make(name), members=[network(run)], seeds=[7 + run]) for run in range(3)]
        for part in (stream(8), stream(8, seed=5)):
            losses = torch.stack(train(whole, part))
            for run, one in enumerate(single):
                alone = torch.cat(train(one, part, slice(run, run + 1)))
                torch.testing.assert_close(alone, losses[:, run], rtol=1e-11, atol=1e-12)
                begin_stacked(one, slice(run, run + 1))
            begin_stacked(whole)
        for run, one in enumerate(single):
            for ours, theirs in zip(whole.module(run).parameters(), one.module(0).parameters(), strict=True):
                torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-10, atol=1e-12)

    def test_can_be_saved_after_one_boundary_and_goes_on_bit_for_bit_through_the_next(self, name: str) -> None:
        run, other = Attached(make(name)), Attached(make(name), model=network(5), seed=99)
        batches = stream(30)
        run.train(batches[:7])
        begin_attached(run)
        run.train(batches[7:12])
        other.load(run.save())
        for part in (batches[12:20], batches[20:]):
            assert other.train(part) == run.train(part)
            begin_attached(run)
            begin_attached(other)
        for ours, theirs in zip(other.weights(), run.weights(), strict=True):
            assert torch.equal(ours, theirs)

    def test_can_be_saved_in_a_stack(self, name: str) -> None:
        runs, other = stacked(make(name)), stacked(make(name), seeds=[40, 50, 60])
        batches = stream(30)
        train(runs, batches[:7])
        begin_stacked(runs)
        train(runs, batches[7:12])
        file = io.BytesIO()
        torch.save(runs.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file, weights_only=True))
        for part in (batches[12:20], batches[20:]):
            for ours, theirs in zip(train(other, part), train(runs, part), strict=True):
                assert torch.equal(ours, theirs)
            begin_stacked(runs)
            begin_stacked(other)

    @pytest.mark.parametrize("layer", [0, 2, 4], ids=["first", "middle", "output"])
    def test_leaves_frozen_layers_alone(self, name: str, layer: int) -> None:
        run = Attached(make(name))
        run.train(stream(4))
        for parameter in run.model[layer].parameters():
            parameter.requires_grad_(False)
            parameter.grad = None
        before = [parameter.detach().clone() for parameter in run.model[layer].parameters()]
        begin_attached(run)
        for now, then in zip(run.model[layer].parameters(), before, strict=True):
            assert torch.equal(now, then)
        assert all(loss == loss for loss in run.train(stream(4)))

    def test_that_looks_at_data_leaves_the_statistics_of_norms_alone(self, name: str) -> None:
        if not FOUND[name].needs_boundary_data:
            return  # without data there is no pass that could change them

        def normed() -> nn.Sequential:
            torch.manual_seed(0)
            layers = [nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)]
            return nn.Sequential(*layers).double()

        model = normed()
        plastic = neoteny.attach(model, torch.optim.SGD(model.parameters(), 0.02), make(name))
        before = {key: value.clone() for key, value in model.named_buffers()}
        weights = {key: value.detach().clone() for key, value in model.named_parameters()}
        plastic.task_boundary([(x[0], y[0]) for x, y in new_data()], mean_square)
        assert any(not torch.equal(value, weights[key]) for key, value in model.named_parameters())
        assert model[1].training
        for key, value in model.named_buffers():
            assert torch.equal(value, before[key]), key

        runs = neoteny.stack([normed(), normed()], SGD(0.02), make(name))
        before = {key: value.clone() for key, value in runs.view.buffers.items()}
        runs.task_boundary([(x[:2], y[:2]) for x, y in new_data()])
        for key, value in runs.view.buffers.items():
            assert torch.equal(value, before[key]), key
        for ours, theirs in zip(model.parameters(), runs.module(0).parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
