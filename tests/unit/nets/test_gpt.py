"""GPT: against a naive transcription, in stacks, with methods that replace units, and stopped and continued."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import neoteny
from neoteny import trace
from neoteny.methods import SGD, Adam, ContinualBackprop, ReDo
from neoteny.nets import GPT
from neoteny.nets.gpt import Block
from neoteny.problems import PermutedShakespeare
from neoteny.suite.stacks import runs_of, stacks_of
from neoteny.suite.sweep import Setting, Sweep, network
from neoteny.suite.training import Training
from reference import gpt as naive
from support.small_sweeps import CPU

TOKENS, CONTEXT = 11, 6
SMALL: dict[str, Any] = {"width": 8, "heads": 2, "hidden": 12, "blocks": 2}
PROBLEM = PermutedShakespeare(
    tasks=3, sequences_per_task=8, epochs=3, batch_size=4, context=CONTEXT, source="synthetic"
)


def make(seed: int, **options: Any) -> GPT:
    """A small network, with weights far enough from zero to matter."""
    torch.manual_seed(seed)
    net = GPT(CONTEXT, TOKENS, **{**SMALL, **options}).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(10).add_(torch.randn_like(parameter) * 0.1)
    return net


def sequences(steps: int, runs: int) -> tuple[Tensor, Tensor]:
    drawn = torch.randint(TOKENS, (steps, runs, 3, CONTEXT + 1), generator=torch.Generator().manual_seed(5))
    return drawn[..., :-1], drawn[..., 1:]


@pytest.mark.parametrize("options", [{}, {"activation": "relu", "tied": True}, {"heads": 1, "blocks": 1}], ids=str)
def test_logits_and_loss_are_the_naive_ones(options: dict[str, Any]) -> None:
    net = make(0, **options)
    weights = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    tokens, targets = (each[0, 0] for each in sequences(1, 1))
    settings = {**SMALL, "activation": "gelu", **options}
    rest = (weights, settings["heads"], settings["blocks"], settings["activation"])
    for sequence, found in zip(tokens, net(tokens), strict=True):
        np.testing.assert_allclose(found.detach().numpy(), naive.logits(sequence.numpy(), *rest), rtol=1e-9, atol=1e-12)
    runs = neoteny.stack([net], SGD(0.0), loss="token_cross_entropy")
    losses = runs.step(tokens[None], targets[None]).losses
    np.testing.assert_allclose(losses.numpy(), [naive.loss(tokens.numpy(), targets.numpy(), *rest)], rtol=1e-9)


def test_no_position_sees_what_follows() -> None:
    net, tokens = make(0), sequences(1, 1)[0][0, 0]
    changed = tokens.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % TOKENS
    before, after = net(tokens), net(changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])
    torch.testing.assert_close(net(tokens[:, :3]), before[:, :3])


METHODS = {
    "CBP": (ContinualBackprop(0.05, maturity_threshold=3),),
    "ReDo": (ReDo(period=5, threshold=0.5),),
}


@pytest.mark.parametrize(("name", "tied"), [("CBP", False), ("ReDo", True)])
def test_runs_in_lock_step_are_the_runs_alone(name: str, tied: bool) -> None:
    example = torch.zeros(1, CONTEXT, dtype=torch.int64)
    options: dict[str, Any] = {"loss": "token_cross_entropy", "example": example, "trained": True, "init": "default"}
    # Small steps: biases of keys have a gradient of rounding errors alone, of which Adam makes whole steps.
    methods = (Adam(1e-3), *METHODS[name])
    inputs, targets = sequences(12, 3)
    together = neoteny.stack([make(seed, tied=tied) for seed in range(3)], *methods, **options)
    losses = torch.stack([together.step(x, y).losses for x, y in zip(inputs, targets, strict=True)])
    for run in range(3):
        alone = neoteny.stack([make(run, tied=tied)], *methods, seeds=[run], **options)
        found = [alone.step(x[run : run + 1], y[run : run + 1]).losses[0] for x, y in zip(inputs, targets, strict=True)]
        torch.testing.assert_close(losses[:, run], torch.stack(found), rtol=1e-8, atol=1e-8)
        for group, counts in together.replaced.items():
            assert counts[run] == alone.replaced[group][0]
    assert set(together.replaced) == {"blocks.0.fc1", "blocks.1.fc1"}
    assert all(int(counts.sum()) > 0 for counts in together.replaced.values())


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_tracing_finds_feed_forward_units_and_heads(tied: bool) -> None:
    example = torch.zeros(1, CONTEXT, dtype=torch.int64)
    net = GPT(CONTEXT, TOKENS, **SMALL, tied=tied)
    found = {group.name: group.units for group in trace(net, example)}
    assert found == {"blocks.0.fc1": 12, "blocks.1.fc1": 12}
    found = {group.name: group.units for group in trace(net, example, heads=True)}
    assert found == {"blocks.0.qkv": 2, "blocks.0.fc1": 12, "blocks.1.qkv": 2, "blocks.1.fc1": 12}


def test_initial_weights_are_those_that_new_units_are_drawn_from() -> None:
    torch.manual_seed(0)
    net = GPT(128, 500)
    assert float(net.tokens.weight.detach().std()) == pytest.approx(0.02, rel=0.05)
    block = net.blocks[1]
    assert isinstance(block, Block)
    assert float(block.fc2.weight.detach().std()) == pytest.approx(0.01, rel=0.05)
    assert float(block.fc1.weight.detach().std()) == pytest.approx(0.02, rel=0.05)
    assert not block.fc1.bias.any()
    tied = GPT(128, 500, tied=True)
    assert tied.out.weight is tied.tokens.weight


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="width must be a multiple of heads; got 32 and 3"):
        GPT(4, 5, heads=3)
    with pytest.raises(ValueError, match="blocks must be a whole number of at least 1; got 0"):
        GPT(4, 5, blocks=0)
    with pytest.raises(ValueError, match='activation must be "gelu" or "relu"'):
        GPT(4, 5, activation="relu6")
    with pytest.raises(ValueError, match="tied must be True or False; got 1"):
        GPT(4, 5, tied=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="at most 6 tokens; got 7"):
        make(0)(torch.zeros(1, 7, dtype=torch.int64))


def test_modules_of_other_numbers_of_heads_do_not_share_a_stack() -> None:
    with pytest.raises(ValueError, match="module 1 differs"):
        neoteny.stack([make(0), make(1, heads=4)], SGD(0.1))


def test_targets_of_another_shape_are_refused() -> None:
    runs = neoteny.stack([make(0)], SGD(0.1), loss="token_cross_entropy")
    with pytest.raises(ValueError, match=r"one target per position, of shape \(1, 3, 6\); got \(1, 3\)"):
        runs.step(torch.zeros(1, 3, 6, dtype=torch.int64), torch.zeros(1, 3, dtype=torch.int64))


def begun(*methods: Any, dtype: str = "float32") -> Training:
    """A stack of two runs of permuted Shakespeare, at its start."""
    setting = Setting("GPT", network(GPT, **SMALL), methods)
    measures = ("dead_units", "effective_rank", "weight_magnitude")
    sweep = Sweep(PROBLEM, (setting,), runs=2, measures=measures, probe_examples=5, dtype=dtype)
    (one,) = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    training = Training(one, PROBLEM.open(), CPU)
    training._block = 4
    return training


@pytest.mark.parametrize("name", ["CBP", "ReDo"])
def test_a_continued_run_is_the_same_run(name: str) -> None:
    methods = (Adam(0.01), *METHODS[name])
    whole, states = begun(*methods), []
    whole.run(lambda: states.append(whole.state_dict()))
    assert len(states) == 6
    resumed = begun(*methods)
    resumed.load_state_dict(states[2])  # within a task
    resumed.run(lambda: None)
    for metric, values in whole.table().items():
        assert torch.equal(resumed.table()[metric], values)
    table = whole.table()
    assert table["replaced"].sum() > 0
    assert table["loss"].shape == (3, 2)
    assert table["loss"].isfinite().all()


def test_the_loop_gives_the_loss_before_each_update() -> None:
    training = begun(SGD(0.1), dtype="float64")
    training.run(lambda: None)
    nets = []
    for seed in range(2):
        torch.manual_seed(seed)
        nets.append(GPT(CONTEXT, PROBLEM.outputs, **SMALL).double())
    by_hand, stream = neoteny.stack(nets, SGD(0.1), loss="token_cross_entropy"), PROBLEM.open()
    for task in range(PROBLEM.tasks):
        inputs, targets = stream.plan([0, 1], task).batches(0, PROBLEM.steps_per_task, CPU)
        losses = [by_hand.step(x, y).losses for x, y in zip(inputs, targets, strict=True)]
        torch.testing.assert_close(training.rows["loss"][task], torch.stack(losses).mean(0))
