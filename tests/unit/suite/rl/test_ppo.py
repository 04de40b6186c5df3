"""PPO and Continual PPO of the engine against the naive reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from neoteny.methods import L2, Adam, ContinualBackprop, Method, ShrinkAndPerturb
from neoteny.nets import ActorCritic
from neoteny.problems.draws import shuffle
from neoteny.suite.rl import policies
from neoteny.suite.rl import ppo as engine
from neoteny.suite.rl.agent import Experience
from neoteny.suite.rl.ppo import PPO, Batch, Learner
from reference import mlp, ppo

INPUTS, ACTIONS, HIDDEN = 5, 3, (12, 10)
SEED = 2**40 + 7
STEP_SIZE = 3e-3
PATHS = ("reference", "cpu")
AGENT = PPO(iteration_steps=48, epochs=3, minibatch=16)
pytestmark = pytest.mark.usefixtures("double_precision")


@dataclass(frozen=True)
class Case:
    """What acts after Adam, in the library and in the reference."""

    name: str
    methods: tuple[Method, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    activation: str = "tanh"
    updates: int = 100

    def __str__(self) -> str:
        return self.name


def continual(name: str, updates: int = 200, activation: str = "tanh", **settings: Any) -> Case:
    settings = {"replacement_rate": 0.02, "maturity_threshold": 10, **settings}
    return Case(name, (ContinualBackprop(**settings),), settings, activation, updates)


CASES = [
    Case("plain", updates=200),
    Case("l2", (L2(1e-2),), {"l2_strength": 1e-2}),
    Case("shrink_and_perturb", (ShrinkAndPerturb(1e-2, 1e-3),), {"l2_strength": 1e-2, "noise_std": 1e-3}),
    continual("overall"),
    continual("mean_corrected", utility="mean_corrected_contribution"),
    continual("relu_layer_uncompensated", 120, "relu", count="layer", compensate=False, decay_rate=0.9),
]


def arrays_of(network: nn.Module) -> mlp.Layers:
    layers = [layer for layer in network.children() if isinstance(layer, nn.Linear)]
    return [(layer.weight.detach().numpy().copy(), layer.bias.detach().numpy().copy()) for layer in layers]


def make_both(case: Case) -> tuple[ppo.NaivePPO, dict[str, Learner]]:
    """The reference, and a learner on each path, all with the same weights."""
    network = ActorCritic(INPUTS, ACTIONS, HIDDEN, activation=case.activation, initial_std=0.7)
    reference = ppo.NaivePPO(
        arrays_of(network.policy),
        arrays_of(network.value),
        network.log_std.detach().numpy(),
        activation=case.activation,
        step_size=STEP_SIZE,
        clip=AGENT.clip,
        seed=SEED,
        **case.settings,
    )
    methods = (Adam(STEP_SIZE), *case.methods)
    return reference, {path: Learner(network, methods, SEED, AGENT, path) for path in PATHS}


def replaced_now(learner: Learner) -> list[tuple[str, int]]:
    """(layer, unit) of the units that the last update replaced."""
    state = learner.stack.state_dict()["states"][-1]
    return [
        (name, int(unit))
        for name, values in state.items()
        for unit in (values["born"][0] == values["schedule"]["step"]).nonzero().flatten()
    ]


def check_same_weights(reference: ppo.NaivePPO, learner: Learner) -> None:
    network = learner.network()
    for mine, theirs in ((network.policy, reference.policy), (network.value, reference.value)):
        for pair, expected in zip(arrays_of(mine), theirs.layers, strict=True):
            np.testing.assert_allclose(pair[0], expected[0], rtol=0, atol=1e-9)
            np.testing.assert_allclose(pair[1], expected[1], rtol=0, atol=1e-9)
    np.testing.assert_allclose(network.log_std.detach().numpy(), reference.log_std, rtol=0, atol=1e-9)


def tensors(*arrays: Any) -> list[Tensor]:
    return [torch.from_numpy(np.asarray(array)) for array in arrays]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_paths_learn_the_weights_of_the_reference_and_replace_the_same_units(case: Case) -> None:
    reference, learners = make_both(case)
    start = reference.log_std.copy()
    generator = np.random.default_rng(7)
    outside = count = 0
    for update in range(case.updates):
        observations = generator.normal(size=(AGENT.minibatch, INPUTS))
        noise = generator.normal(size=(AGENT.minibatch, ACTIONS))
        actions = reference.means(observations) + np.exp(reference.log_std) * noise
        shifts = 0.2 * generator.normal(size=AGENT.minibatch)
        outside += int(np.sum((np.exp(shifts) < 0.8) | (np.exp(shifts) > 1.2)))
        old = reference.log_densities(observations, actions) - shifts
        advantages, returns = generator.normal(size=(2, AGENT.minibatch))
        returns += observations.sum(axis=1)
        found = reference.update(observations, actions, old, advantages, returns)
        expected = sorted(reference.replaced[-1]) if reference.replaced else []
        count += len(expected)
        batch = Batch(*tensors(observations, actions, old, advantages, returns))
        for path, learner in learners.items():
            value_loss = float(learner.update(batch))
            assert abs(value_loss - found.value_loss) < 1e-9, (path, update)
            assert sum(int(number) for number in learner.stack.replaced.values()) == count, (path, update)
            if expected:
                assert sorted(replaced_now(learner)) == expected, (path, update)
    for learner in learners.values():
        check_same_weights(reference, learner)
        if "replacement_rate" in case.settings:
            assert min(int(count) for count in learner.stack.replaced.values()) >= 20
    assert 0.2 < outside / (case.updates * AGENT.minibatch) < 0.5  # the clip range matters
    assert np.abs(reference.log_std - start).max() > 0.01


def make_experience(reference: ppo.NaivePPO, seed: int) -> tuple[Experience, dict[str, np.ndarray]]:
    """An iteration with terminations and time limits, the last step among them; for the engine, for the reference."""
    generator = np.random.default_rng(seed)
    steps = AGENT.iteration_steps
    observations = generator.normal(size=(steps, INPUTS))
    next_observation = generator.normal(size=INPUTS)
    ended = generator.random(steps) < 0.15
    ended[-1] = seed % 2 == 0
    terminated = ended & (generator.random(steps) < 0.5)
    final = generator.normal(size=(int(ended.sum()), INPUTS))
    following = np.vstack([observations[1:], next_observation])
    following[ended] = final
    noise = generator.normal(size=(steps, ACTIONS))
    actions = reference.means(observations) + np.exp(reference.log_std) * noise
    rewards = observations[:, 0] + generator.normal(size=steps)
    parts = tensors(observations, actions, rewards, terminated, ended, final, next_observation)
    steps_of_reference = {
        "observations": observations,
        "actions": actions,
        "rewards": rewards,
        "next_observations": following,
        "terminated": terminated,
        "ended": ended,
    }
    return Experience(*parts), steps_of_reference


@pytest.mark.parametrize("path", PATHS)
def test_whole_iterations_agree_with_the_reference_in_weights_and_figures(path: str) -> None:
    reference, learners = make_both(continual("overall", maturity_threshold=3))
    learner = learners[path]
    for iteration in range(4):
        experience, steps = make_experience(reference, iteration)
        orders = shuffle([SEED], iteration, "ppo.shuffle", AGENT.iteration_steps, rounds=AGENT.epochs)[0].numpy()
        assert all(sorted(order) == list(range(AGENT.iteration_steps)) for order in orders)
        expected = reference.learn(
            **steps,
            minibatches=[rows for order in orders for rows in order.reshape(-1, AGENT.minibatch)],
            discount=AGENT.discount,
            trace_decay=AGENT.trace_decay,
        )
        figures = learner.learn(experience, iteration)
        assert {name: figures[name] for name in expected} == pytest.approx(expected, abs=1e-9)
        assert figures["policy_std"] == pytest.approx(np.exp(reference.log_std).mean(), abs=1e-9)
        assert expected["kl"] > 1e-4
    check_same_weights(reference, learner)
    assert int(sum(learner.stack.replaced.values())) == sum(len(tick) for tick in reference.replaced) > 10
    assert reference.ticks == 4 * AGENT.epochs * AGENT.iteration_steps // AGENT.minibatch


@pytest.mark.parametrize("path", PATHS)
def test_an_action_is_the_mean_plus_noise_times_the_standard_deviation(path: str) -> None:
    reference, learners = make_both(CASES[0])
    observation, noise = np.arange(INPUTS) / 4.0, np.array([0.5, -1.0, 2.0])
    expected = reference.means(observation[None])[0] + 0.7 * noise
    np.testing.assert_allclose(learners[path].act(observation, noise), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 7, 64, 300])
@pytest.mark.parametrize("share_ended", [0.0, 0.1, 1.0])
def test_advantages_solved_by_doubling_are_those_of_the_recurrence(steps: int, share_ended: float) -> None:
    generator = np.random.default_rng(steps)
    rewards, values, next_values = generator.normal(size=(3, steps))
    ended = generator.random(steps) < share_ended
    terminated = ended & (generator.random(steps) < 0.5)
    expected, _ = ppo.gae(rewards, values, next_values, terminated, ended, 0.99, 0.95)
    parts = tensors(rewards, values, next_values, terminated, ended)
    found = engine.estimate_advantages(*parts, discount=0.99, trace_decay=0.95)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_densities_divergence_and_explained_variance_of_the_engine_are_the_references() -> None:
    generator = np.random.default_rng(8)
    actions, means, new_means = generator.normal(size=(3, 6, ACTIONS))
    log_std, new_log_std = generator.normal(size=(2, ACTIONS))
    densities = policies.log_probability(*tensors(actions, means, log_std))
    divergences = policies.divergence(*tensors(means, log_std, new_means, new_log_std))
    for row in range(6):
        assert float(densities[row]) == pytest.approx(ppo.log_density(actions[row], means[row], log_std))
        expected = ppo.gaussian_kl(means[row], log_std, new_means[row], new_log_std)
        assert float(divergences[row]) == pytest.approx(expected)
    values, returns = generator.normal(size=(2, 20))
    assert engine.explained_variance(*tensors(values, returns)) == pytest.approx(
        ppo.explained_variance(values, returns)
    )
    assert engine.explained_variance(*tensors(values, np.ones(20))) == 0.0


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shift", [-800.0, 800.0])
def test_a_ratio_beyond_all_numbers_does_not_break_the_networks(path: str, shift: float) -> None:
    torch.manual_seed(0)
    learner = Learner(ActorCritic(3, 2, (4,)), (Adam(1e-2),), 0, PPO(iteration_steps=8, minibatch=8), path)
    observations, actions = torch.randn(8, 3), torch.randn(8, 2)
    log_probs = torch.full((8,), shift)
    learner.update(Batch(observations, actions, log_probs, torch.tensor([1.0, -1.0] * 4), torch.zeros(8)))
    assert all(bool(parameter.isfinite().all()) for parameter in learner.network().parameters())


def test_a_mini_batch_of_another_size_is_refused() -> None:
    learner = Learner(ActorCritic(3, 2, (4,)), (Adam(1e-2),), 0, PPO(iteration_steps=8, minibatch=8), "cpu")
    one = torch.zeros(1)
    with pytest.raises(ValueError, match=r"mini-batch of 8 steps, as PPO.* says; got 1"):
        learner.update(Batch(torch.zeros(1, 3), torch.zeros(1, 2), one, one, one))
