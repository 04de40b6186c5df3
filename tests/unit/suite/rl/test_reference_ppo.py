"""The naive PPO: by hand, by finite differences, by torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from neoteny.suite.rl import ppo as engine
from reference import mlp, ppo

pytestmark = pytest.mark.usefixtures("double_precision")


def random_layers(sizes: list[int], seed: int) -> mlp.Layers:
    generator = np.random.default_rng(seed)
    return [
        (generator.normal(size=(n_out, n_in)) / math.sqrt(n_in), 0.1 * generator.normal(size=n_out))
        for n_in, n_out in itertools.pairwise(sizes)
    ]


def small_agent(**settings: Any) -> ppo.NaivePPO:
    return ppo.NaivePPO(
        random_layers([3, 4, 5, 2], 0), random_layers([3, 4, 5, 1], 1), np.array([-0.3, 0.2]), **settings
    )


def surprising_batch(agent: ppo.NaivePPO, size: int) -> dict[str, np.ndarray]:
    """Examples whose ratios lie on all sides of the clip range, with advantages of both signs."""
    generator = np.random.default_rng(2)
    inputs, actions = agent.policy.layers[0][0].shape[1], len(agent.log_std)
    batch = {"observations": generator.normal(size=(size, inputs)), "actions": generator.normal(size=(size, actions))}
    shift = np.resize([-0.4, -0.1, 0.05, 0.4, 0.3, -0.35], size)
    return {
        **batch,
        "old_log_densities": agent.log_densities(**batch) - shift,
        "advantages": np.resize([1.2, 0.7, -0.6, 0.9, -1.1, -0.5, 0.3], size),
        "returns": generator.normal(size=size),
    }


def central_difference(function: Callable[[], float], array: np.ndarray, width: float = 1e-6) -> np.ndarray:
    """The gradient of a function that reads `array`, one entry at a time."""
    gradient = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        old = array[index]
        array[index] = old + width
        above = function()
        array[index] = old - width
        below = function()
        array[index] = old
        gradient[index] = (above - below) / (2 * width)
    return gradient


# five steps: the third is cut by a time limit, the fourth terminates, the fifth is the iteration's last
FIVE_STEPS: dict[str, Any] = {
    "rewards": [1.0, 2.0, 3.0, 4.0, 5.0],
    "values": [1.0, 0.0, 2.0, 1.0, 3.0],
    "next_values": [0.0, 2.0, 7.0, 99.0, 8.0],
    "terminated": [False, False, False, True, False],
    "ended": [False, False, True, True, False],
    "discount": 0.5,
    "trace_decay": 0.5,
}


# differences 0, 3, 3 + 7/2 - 2, 4 - 1 (no bootstrap), 5 + 8/2 - 3; the trace of 1/4 joins the first three only
FIVE_ADVANTAGES = [4.125 / 4, 3 + 4.5 / 4, 4.5, 3.0, 6.0]
FIVE_RETURNS = [2.03125, 4.125, 6.5, 4.0, 9.0]


def test_advantages_of_five_steps_by_hand_in_the_reference_and_in_the_engine() -> None:
    advantages, returns = ppo.gae(**FIVE_STEPS)
    assert advantages.tolist() == FIVE_ADVANTAGES
    assert returns.tolist() == FIVE_RETURNS
    as_tensors = {name: torch.tensor(value) for name, value in FIVE_STEPS.items() if isinstance(value, list)}
    assert engine.estimate_advantages(**as_tensors, discount=0.5, trace_decay=0.5).tolist() == FIVE_ADVANTAGES


def test_normalised_advantages_have_population_deviation_one() -> None:
    np.testing.assert_allclose(ppo.normalise(np.array([1.0, 3.0])), [-1.0, 1.0], rtol=1e-7)  # deviation 1, not sqrt(2)
    np.testing.assert_array_equal(ppo.normalise(np.array([2.0, 2.0])), [0.0, 0.0])


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "slope"),
    [
        (1.0, 2.0, 2.0, 2.0),
        (1.0, -2.0, -2.0, -2.0),
        (1.5, 2.0, 2.5, 0.0),  # already gained: held
        (1.5, -2.0, -3.0, -2.0),
        (0.5, 2.0, 1.0, 2.0),
        (0.5, -2.0, -1.5, 0.0),  # already gained: held
        (1.25, 2.0, 2.5, 2.0),  # at the edges the inner derivative
        (0.75, -2.0, -1.5, -2.0),
    ],
)
def test_clipped_objective_by_hand_and_by_torch(ratio: float, advantage: float, objective: float, slope: float) -> None:
    assert ppo.clipped_objective(ratio, advantage, 0.25) == (objective, slope)
    x = torch.tensor(ratio, requires_grad=True)
    torch.min(x * advantage, x.clamp(0.75, 1.25) * advantage).backward()
    assert x.grad is not None
    # torch halves a tie between min's sides: at an edge both sides have the inner derivative, so nothing is lost
    assert x.grad.item() == slope


def test_gradients_of_the_reference_match_finite_differences() -> None:
    agent = small_agent()
    batch = surprising_batch(agent, 14)
    ratios = np.exp(agent.log_densities(batch["observations"], batch["actions"]) - batch["old_log_densities"])
    sides = {(np.sign(a), r < 0.8, r > 1.2) for a, r in zip(batch["advantages"], ratios, strict=True)}
    assert len(sides) == 6  # both signs; below, inside and above the range
    found = agent.differentiate(**batch)

    def loss() -> float:
        now = agent.differentiate(**batch)
        return now.policy_loss + now.value_loss

    for layers, gradients in ((agent.policy.layers, found.policy), (agent.value.layers, found.value)):
        for pair, gradient in zip(layers, gradients, strict=True):
            for array, expected in zip(pair, gradient, strict=True):
                np.testing.assert_allclose(expected, central_difference(loss, array), rtol=1e-6, atol=1e-8)
                assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(found.log_std, central_difference(loss, agent.log_std), rtol=1e-6, atol=1e-8)


def test_densities_and_divergence_are_those_of_torchs_normal_distribution() -> None:
    generator = np.random.default_rng(3)
    action, mean, other_mean, log_std, other_log_std = generator.normal(size=(5, 3))
    old = torch.distributions.Normal(torch.tensor(mean), torch.tensor(log_std).exp())
    new = torch.distributions.Normal(torch.tensor(other_mean), torch.tensor(other_log_std).exp())
    assert ppo.log_density(action, mean, log_std) == pytest.approx(old.log_prob(torch.tensor(action)).sum().item())
    divergence = torch.distributions.kl_divergence(old, new).sum().item()
    assert ppo.gaussian_kl(mean, log_std, other_mean, other_log_std) == pytest.approx(divergence)


def test_explained_variance_by_hand() -> None:
    returns = np.array([0.0, 2.0, 4.0])
    assert ppo.explained_variance(returns, returns) == 1.0
    assert ppo.explained_variance(returns - 5.0, returns) == 1.0  # a constant offset is no variance
    assert ppo.explained_variance(np.zeros(3), returns) == 0.0
    assert ppo.explained_variance(-returns, returns) == -3.0
    assert ppo.explained_variance(returns, np.ones(3)) == 0.0


def test_the_first_mini_batch_of_an_iteration_has_the_plain_policy_gradient() -> None:
    agent = small_agent(clip=0.0)  # nothing but the tie at ratio 1 is left of the range
    batch = surprising_batch(agent, 12)
    batch["old_log_densities"] = agent.log_densities(batch["observations"], batch["actions"])
    found = agent.differentiate(**batch)

    def plain() -> float:
        densities = agent.log_densities(batch["observations"], batch["actions"])
        return -float(np.mean(densities * batch["advantages"]))

    np.testing.assert_allclose(found.log_std, central_difference(plain, agent.log_std), rtol=1e-6, atol=1e-8)
    weight = agent.policy.layers[1][0]
    np.testing.assert_allclose(found.policy[1][0], central_difference(plain, weight), rtol=1e-6, atol=1e-8)
