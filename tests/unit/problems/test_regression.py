"""Slowly-changing regression: the paper's target network, and bits that flip."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neoteny.problems import SlowlyChangingRegression
from neoteny.problems.draws import draw_whole
from neoteny.problems.regression import RegressionPlan, agreement, slow_bits
from reference import problems as reference
from support.problem_streams import CPU, SEEDS, equal


def regression(task: int = 3, **options: Any) -> RegressionPlan:
    return SlowlyChangingRegression(**options).open().plan(SEEDS, task)


@pytest.mark.parametrize("options", [{}, {"bits": 18, "slow_bits": 5}, {"bits": 9, "slow_bits": 6}], ids=str)
def test_targets_are_those_of_the_papers_network(options: dict[str, int]) -> None:
    """bits=9 makes (m + 1) * beta the whole number 7, which a sum can equal: the unit must be strictly above."""
    plan = regression(target_units=12, examples_per_task=30, **options)
    inputs, targets = plan.batches(0, 30, CPU)
    for run in range(3):
        hidden, output = plan.hidden[run].numpy(), plan.output[run].numpy()
        for step in range(30):
            answer = reference.target(inputs[step, run, 0].numpy(), hidden, output[:-1], output[-1], 0.7)
            assert float(targets[step, run]) == answer


def test_a_unit_at_its_threshold_does_not_fire() -> None:
    problem = SlowlyChangingRegression(bits=9, slow_bits=6, target_units=1, examples_per_task=200)
    plan = problem.open().plan(range(20), 0)
    inputs, targets = plan.batches(0, 200, CPU)
    hidden = plan.hidden[:, 0]  # (n, 10)
    sums = (inputs[:, :, 0] * hidden).sum(-1)
    distance = sums - (7 - (hidden < 0).sum(-1))
    fired = (targets[:, :, 0, 0] - plan.output[:, 1]) / plan.output[:, 0]
    assert bool((distance == 0).any())
    assert bool((distance == 1).any())
    assert torch.equal(fired == 1, distance > 0)


@pytest.mark.parametrize(("bits", "threshold", "most"), [(21, 0.7, 15), (9, 0.7, 7), (9, 0.29, 2), (99, 0.29, 29)])
def test_thresholds_are_decimal_numbers(bits: int, threshold: float, most: int) -> None:
    assert agreement(SlowlyChangingRegression(bits=bits, slow_bits=bits, threshold=threshold)) == most


def test_all_weights_are_one_or_minus_one_about_evenly_and_kept_for_the_whole_run() -> None:
    first, later = regression(0), regression(250)
    assert torch.equal(first.hidden, later.hidden)
    assert torch.equal(first.output, later.output)
    assert first.hidden.shape == (3, 100, 22)
    assert set(first.hidden.unique().tolist()) == set(first.output.unique().tolist()) == {-1.0, 1.0}
    assert abs(float(first.hidden.mean())) < 0.06


def test_exactly_one_slow_bit_flips_at_each_task_change() -> None:
    problem = SlowlyChangingRegression()
    states = torch.stack([slow_bits(problem, range(50), task) for task in range(40)])  # (tasks, n, 15)
    assert set(states.unique().tolist()) == {0.0, 1.0}
    changes = (states[1:] != states[:-1]).int()
    assert bool((changes.sum(-1) == 1).all())
    places = changes.sum((0, 1))
    assert int(places.min()) > 80, "every slow bit is as likely as any other (130 expected)"
    assert 0.3 < float(states[0].mean()) < 0.7


def test_slow_bits_follow_their_flips_one_after_another() -> None:
    problem = SlowlyChangingRegression()
    initial = slow_bits(problem, [4], 0)[0].int().tolist()
    flips = draw_whole([4], 0, "regression.flip", 1, 31, 15)[0].tolist()
    expected = reference.slow_bits(initial, flips)
    assert [slow_bits(problem, [4], task)[0].int().tolist() for task in range(31)] == expected


def test_slow_bits_are_constant_within_a_task_random_bits_are_fair_and_the_last_input_is_one() -> None:
    plan = regression(5)
    inputs, _ = plan.batches(0, 10_000, CPU)
    inputs = inputs[:, :, 0]
    assert bool((inputs[..., :15] == plan.slow).all())
    assert bool((inputs[..., 21] == 1).all())
    random = inputs[..., 15:21]
    assert set(random.unique().tolist()) == {0.0, 1.0}
    assert float((random.mean(0) - 0.5).abs().max()) < 0.025  # 5 standard deviations
    pairs = torch.einsum("kni,knj->nij", 2 * random - 1, 2 * random - 1) / 10_000
    assert float((pairs - torch.eye(6)).abs().max()) < 0.05, "random bits are independent of each other"
    following = ((2 * random[1:] - 1) * (2 * random[:-1] - 1)).mean(0)
    assert float(following.abs().max()) < 0.05, "and of the example before"


def test_looking_up_all_inputs_of_a_task_gives_what_computing_each_gives() -> None:
    looked_up, computed = regression(), regression()
    computed.inputs = computed.targets = None
    assert looked_up.inputs is not None
    assert equal(looked_up.batches(0, 500, CPU), computed.batches(0, 500, CPU))
