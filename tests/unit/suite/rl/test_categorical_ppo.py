"""PPO with a choice among actions: the naive reference, autograd, and the gradients written out agree."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from neoteny.backends.actor_critic import why_not_covered
from neoteny.methods import Adam, ContinualBackprop, ReDo
from neoteny.nets import ActorCritic
from neoteny.problems.draws import shuffle
from neoteny.problems.problem import SimulationError
from neoteny.suite.rl.agent import Experience
from neoteny.suite.rl.policies import Categorical, Gaussian
from neoteny.suite.rl.ppo import PPO, Batch, Learner
from reference import categorical_ppo as naive
from reference import mlp

INPUTS, ACTIONS, HIDDEN = 4, 3, (12, 10)
SEED = 2**40 + 7
STEP_SIZE = 3e-3
PATHS = ("reference", "cpu")
pytestmark = pytest.mark.usefixtures("double_precision")


def arrays_of(network: torch.nn.Module) -> mlp.Layers:
    layers = [layer for layer in network.children() if isinstance(layer, torch.nn.Linear)]
    return [(layer.weight.detach().numpy().copy(), layer.bias.detach().numpy().copy()) for layer in layers]


def tensors(*arrays: Any) -> list[Tensor]:
    return [torch.from_numpy(np.asarray(array)) for array in arrays]


def make_agent(**options: Any) -> PPO:
    return PPO(iteration_steps=48, epochs=3, minibatch=16, **options)


def make_both(
    agent: PPO, activation: str = "tanh", methods: tuple[Any, ...] = ()
) -> tuple[naive.NaiveCategoricalPPO, dict[str, Learner]]:
    torch.manual_seed(3)
    network = ActorCritic(INPUTS, ACTIONS, HIDDEN, activation=activation, discrete=True)
    reference = naive.NaiveCategoricalPPO(
        arrays_of(network.policy),
        arrays_of(network.value),
        activation=activation.partition("(")[0],
        step_size=STEP_SIZE,
        clip=agent.clip,
        entropy=agent.entropy,
        reward_scale=agent.reward_scale,
    )
    return reference, {path: Learner(network, (Adam(STEP_SIZE), *methods), SEED, agent, path) for path in PATHS}


def draw_batch(generator: np.random.Generator, logits_of: Any, size: int = 16) -> dict[str, np.ndarray]:
    """Ratios on all sides of the clip range, advantages of both signs."""
    observations = generator.normal(size=(size, INPUTS))
    actions = generator.integers(0, ACTIONS, size)
    now = [naive.log_probability(row, action) for row, action in zip(logits_of(observations), actions, strict=True)]
    advantages, returns = generator.normal(size=(2, size))
    return {
        "observations": observations,
        "actions": actions,
        "old_log_probabilities": np.array(now) - 0.2 * generator.normal(size=size),
        "advantages": advantages,
        "returns": returns + observations.sum(axis=1),
    }


def check_same_weights(reference: naive.NaiveCategoricalPPO, learner: Learner) -> None:
    network = learner.network()
    for mine, theirs in ((network.policy, reference.policy), (network.value, reference.value)):
        for pair, expected in zip(arrays_of(mine), theirs, strict=True):
            np.testing.assert_allclose(pair[0], expected[0], rtol=0, atol=1e-9)
            np.testing.assert_allclose(pair[1], expected[1], rtol=0, atol=1e-9)


@pytest.mark.parametrize(("activation", "entropy"), [("tanh", 0.0), ("relu", 0.3), ("leaky_relu", 0.3)])
def test_both_paths_learn_the_weights_of_the_reference(activation: str, entropy: float) -> None:
    reference, learners = make_both(make_agent(entropy=entropy), activation)
    before = arrays_of(learners["cpu"].network().policy)
    generator = np.random.default_rng(7)
    for update in range(30):
        batch = draw_batch(generator, reference.logits)
        expected = reference.update(**batch)
        for path, learner in learners.items():
            assert float(learner.update(Batch(*tensors(*batch.values())))) == pytest.approx(expected, abs=1e-9), (
                path,
                update,
            )
    for learner in learners.values():
        check_same_weights(reference, learner)
    assert np.abs(before[0][0] - reference.policy[0][0]).max() > 0.01


@pytest.mark.parametrize("path", PATHS)
def test_whole_iterations_agree_with_the_reference_in_weights_and_figures(path: str) -> None:
    agent = make_agent(entropy=0.01, reward_scale=0.05)
    reference, learners = make_both(agent)
    for iteration in range(3):
        generator = np.random.default_rng(iteration)
        observations, following = generator.normal(size=(2, 48, INPUTS))
        ended = generator.random(48) < 0.2
        terminated = ended & (generator.random(48) < 0.5)
        following[:-1][~ended[:-1]] = observations[1:][~ended[:-1]]
        actions = generator.integers(0, ACTIONS, 48)
        rewards = 20.0 * generator.normal(size=48)
        last = following[-1] if not ended[-1] else generator.normal(size=INPUTS)
        parts = tensors(observations, actions, rewards, terminated, ended, following[ended], last)
        orders = shuffle([SEED], iteration, "ppo.shuffle", 48, rounds=agent.epochs)[0].numpy()
        expected = reference.learn(
            observations,
            actions,
            rewards,
            following,
            terminated,
            ended,
            [rows for order in orders for rows in order.reshape(-1, agent.minibatch)],
            discount=agent.discount,
            trace_decay=agent.trace_decay,
        )
        found = learners[path].learn(Experience(*parts), iteration)
        assert found == pytest.approx(expected, abs=1e-9)
        assert set(found) == set(learners[path].metric_names)
    check_same_weights(reference, learners[path])


@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
def test_the_gradients_written_out_are_those_of_autograd(kind: str) -> None:
    generator = torch.Generator().manual_seed(5)
    outputs = torch.randn(9, ACTIONS, generator=generator, requires_grad=True)
    by_log_prob = torch.randn(9, generator=generator)
    if kind == "categorical":
        policy, actions, log_std = Categorical(), torch.randint(0, ACTIONS, (9,), generator=generator), None
    else:
        policy, actions = Gaussian(), torch.randn(9, ACTIONS, generator=generator)
        log_std = torch.randn(ACTIONS, generator=generator, requires_grad=True)
    sources = [outputs] if log_std is None else [outputs, log_std]
    log_probs = policy.log_probability(actions, outputs, log_std)
    loss = (by_log_prob * log_probs).sum() - 0.7 * policy.entropy(outputs, log_std).mean()
    expected = torch.autograd.grad(loss, sources)
    with torch.no_grad():
        found = policy.evaluate(actions, outputs, log_std)
        by_outputs, by_log_std = policy.differentiate(found, by_log_prob, 0.7)
    torch.testing.assert_close(found.log_probs, log_probs.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(by_outputs, expected[0], rtol=1e-12, atol=1e-12)
    if by_log_std is not None:
        torch.testing.assert_close(by_log_std, expected[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("activation", "discrete"),
    [("leaky_relu(negative_slope=0.1)", True), ("leaky_relu(negative_slope=0.1)", False), ("tanh", True)],
)
def test_both_paths_agree_with_methods_that_replace_units(activation: str, discrete: bool) -> None:
    torch.manual_seed(1)
    network = ActorCritic(INPUTS, ACTIONS, HIDDEN, activation=activation, discrete=discrete)
    methods = (Adam(STEP_SIZE), ContinualBackprop(0.02, maturity_threshold=5))
    first, second = (Learner(network, methods, SEED, make_agent(entropy=0.1), path) for path in PATHS)
    generator = np.random.default_rng(1)
    for _ in range(40):
        batch = draw_batch(generator, lambda x: np.zeros((len(x), ACTIONS)))
        if not discrete:
            batch["actions"] = generator.normal(size=(16, ACTIONS))
            batch["old_log_probabilities"] -= 3.0
        for learner in (first, second):
            learner.update(Batch(*tensors(*batch.values())))
    for (name, one), two in zip(first.network().named_parameters(), second.network().parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-9, msg=name)
    assert int(sum(first.stack.replaced.values())) == int(sum(second.stack.replaced.values())) > 10


def test_an_action_is_drawn_with_the_probabilities_of_the_logits() -> None:
    logits = np.array([0.3, -1.0, 1.2])
    uniform = np.random.default_rng(0).random((8_000, 3))
    noise = -np.log(-np.log(uniform))
    chosen = [int(Categorical().choose(logits, None, each)) for each in noise]
    shares = np.bincount(chosen, minlength=3) / len(chosen)
    np.testing.assert_allclose(shares, naive.probabilities(logits), atol=0.022)  # 4 standard deviations


@pytest.mark.parametrize("path", PATHS)
def test_both_paths_choose_the_action_of_the_reference(path: str) -> None:
    reference, learners = make_both(make_agent())
    generator = np.random.default_rng(2)
    seen = set()
    for step, observation in enumerate(generator.normal(size=(40, INPUTS)) * 3):
        uniform = naive.philox.uniform(5, 2, "agent.choice", step, ACTIONS)
        expected = naive.draw_action(reference.logits(observation[None])[0], 5, 2, step)
        assert int(learners[path].act(observation, -np.log(-np.log(uniform)))) == expected
        seen.add(expected)
    assert seen == {0, 1, 2}


def test_entropies_and_divergences_are_the_references() -> None:
    old, new = np.random.default_rng(3).normal(size=(2, 6, ACTIONS))
    before, after = tensors(old, new)
    entropies = Categorical().entropy(before, None)
    divergences = Categorical().divergence(before, None, after, None)
    for row in range(6):
        assert float(entropies[row]) == pytest.approx(naive.entropy(old[row]))
        assert float(divergences[row]) == pytest.approx(naive.divergence(old[row], new[row]))
    assert float(Categorical().entropy(torch.zeros(1, 4), None)) == pytest.approx(math.log(4))
    assert float(Gaussian().entropy(torch.zeros(1, 2), torch.zeros(2))) == pytest.approx(1 + math.log(2 * math.pi))


@pytest.mark.parametrize("shift", [-800.0, 800.0])
@pytest.mark.parametrize("path", PATHS)
def test_a_ratio_beyond_all_numbers_does_not_break_the_networks(path: str, shift: float) -> None:
    learner = make_both(make_agent(entropy=0.01))[1][path]
    actions = torch.tensor([0, 1, 2, 1] * 4)
    learner.update(Batch(torch.randn(16, INPUTS), actions, torch.full((16,), shift), torch.ones(16), torch.zeros(16)))
    assert all(bool(parameter.isfinite().all()) for parameter in learner.network().parameters())


def test_a_policy_that_diverged_cannot_choose() -> None:
    with pytest.raises(SimulationError, match=r"outputs are not finite: \[0.0, nan\]"):
        Categorical().choose(np.array([0.0, np.nan]), None, np.zeros(2))


def test_a_network_of_choices_has_no_standard_deviations() -> None:
    network = ActorCritic(INPUTS, ACTIONS, (5,), discrete=True)
    assert {name.split(".")[0] for name, _ in network.named_parameters()} == {"policy", "value"}
    with pytest.raises(ValueError, match="discrete must be True or False; got 1"):
        ActorCritic(INPUTS, ACTIONS, (5,), discrete=1)  # pyright: ignore[reportArgumentType]


def test_redo_acts_on_both_networks() -> None:
    learner = make_both(make_agent(), "relu", (ReDo(threshold=0.5, period=5),))[1]["cpu"]
    generator = np.random.default_rng(4)
    for _ in range(10):
        learner.update(Batch(*tensors(*draw_batch(generator, lambda x: np.zeros((len(x), ACTIONS))).values())))
    assert {name.split(".")[0] for name, count in learner.stack.replaced.items() if int(count)} == {"policy", "value"}


def test_what_is_not_written_out_is_named() -> None:
    assert why_not_covered(ActorCritic, {"activation": "leaky_relu(negative_slope=0.1)", "discrete": True}) == ""
    assert why_not_covered(ActorCritic, {"activation": "elu"}) == "activation elu"
    refused = "leaky_relu(negative_slope=-0.1)"
    assert why_not_covered(ActorCritic, {"activation": refused}) == f"activation {refused}"
