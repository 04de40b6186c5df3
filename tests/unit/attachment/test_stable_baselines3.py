"""Agents of a framework that owns the loop: attach(..., auto=True) on Stable-Baselines3, which knows nothing of it.

Its policy samples in `forward`, trains through `evaluate_actions`, and holds its own optimizer; rollouts and training
take turns. `test_examples.py` runs the example on the Slippery Ant.
"""

from __future__ import annotations

import copy
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import neoteny
from neoteny import ContinualBackprop
from reference.cbp import choose_units, step_utility

sb3 = pytest.importorskip("stable_baselines3", reason="stable_baselines3 is not installed (the extra sb3)")

FAST = ContinualBackprop(replacement_rate=0.05, maturity_threshold=8, decay_rate=0.9)
ROLLOUT, UPDATES = 64, 8  # environment steps of a rollout, and the updates made on it
POLICY = {"ortho_init": False, "net_arch": [8, 8]}
PI, VF = "mlp_extractor.policy_net", "mlp_extractor.value_net"
CHAINS = ((f"{PI}.0", f"{PI}.2", "action_net"), (f"{VF}.0", f"{VF}.2", "value_net"))
CONSUMERS = {name: chain[place + 1] for chain in CHAINS for place, name in enumerate(chain[:-1])}


def agent(optimizer: type[Optimizer] = neoteny.optim.Adam, env: str = "Pendulum-v1") -> Any:
    settings: dict[str, Any] = {"n_steps": ROLLOUT, "batch_size": 16, "n_epochs": 2, "seed": 3, "device": "cpu"}
    return sb3.PPO("MlpPolicy", env, policy_kwargs={**POLICY, "optimizer_class": optimizer}, **settings)


def attach(model: Any, method: ContinualBackprop = FAST, **options: Any) -> neoteny.Attachment:
    example = torch.zeros(1, *model.observation_space.shape)
    return neoteny.attach(model.policy, model.policy.optimizer, method, example=example, seed=5, auto=True, **options)


def statistics(plastic: neoteny.Attachment, group: str) -> dict[str, Any]:
    return plastic.state_dict()["states"][0][group]


def assert_same(left: Any, right: Any) -> None:
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(left, Tensor):
        assert torch.equal(left, right)
    else:
        assert left == right


def assert_same_agents(left: Any, right: Any) -> None:
    assert_same(left.policy.state_dict(), right.policy.state_dict())
    assert_same(left.policy.optimizer.state_dict(), right.policy.optimizer.state_dict())


def test_the_hidden_units_of_a_policy_that_samples_are_found_and_the_agent_is_left_alone() -> None:
    model = agent()
    before, numbers = copy.deepcopy(model.policy.state_dict()), torch.get_rng_state()
    plastic = attach(model)
    assert_same(before, model.policy.state_dict())
    assert torch.equal(numbers, torch.get_rng_state())
    assert model.policy.optimizer.state_dict()["state"] == {}
    assert plastic.wiring is not None
    assert {group.name: group.consumers[0].module for group in plastic.wiring} == CONSUMERS
    assert all(len(group.consumers) == 1 and group.units == 8 for group in plastic.wiring)


@pytest.mark.parametrize("optimizer", [neoteny.optim.Adam, torch.optim.Adam])
def test_every_optimizer_step_is_one_tick(optimizer: type[Optimizer]) -> None:
    model = agent(optimizer)
    plastic = attach(model)
    model.learn(3 * ROLLOUT)
    (steps,) = {int(state["step"]) for state in model.policy.optimizer.state.values()}
    assert steps == 3 * UPDATES
    for group in CONSUMERS:
        assert statistics(plastic, group)["schedule"]["step"] == steps
        assert plastic.replaced[group] > 0


def test_without_replacements_the_agent_is_the_same_to_the_last_bit() -> None:
    plain = agent().learn(3 * ROLLOUT)
    watched = agent()
    plastic = attach(watched, ContinualBackprop(replacement_rate=0.0))
    watched.learn(3 * ROLLOUT)
    assert statistics(plastic, f"{PI}.0")["schedule"]["step"] == 3 * UPDATES
    assert_same_agents(plain, watched)


def test_replaced_units_start_afresh_in_network_and_optimizer() -> None:
    model = agent()
    plastic = attach(model)
    parameters = dict(model.policy.named_parameters())
    seen = dict.fromkeys(CONSUMERS, 0)

    def check(optimizer: Optimizer, *_: Any) -> None:
        """Runs after the tick, before anything else is done."""
        kept = {group: statistics(plastic, group) for group in CONSUMERS}
        step = kept[f"{PI}.0"]["schedule"]["step"]
        new = {group: kept[group]["born"] == step for group in CONSUMERS}
        for group, consumer in CONSUMERS.items():
            units = new[group].nonzero().flatten()
            seen[group] += len(units)
            outgoing, incoming = parameters[f"{consumer}.weight"], parameters[f"{group}.weight"]
            # A unit of the next layer that is new as well reads from all units, the new ones among them.
            readers = ~new.get(consumer, torch.zeros(len(outgoing), dtype=torch.bool))
            bias, state = parameters[f"{group}.bias"], optimizer.state
            assert not outgoing[readers][:, units].any()
            assert not bias[units].any()
            assert incoming[units].all()
            for moment in ("exp_avg", "exp_avg_sq"):
                assert not state[outgoing][moment][:, units].any()
                assert not state[incoming][moment][units].any()
                assert not state[bias][moment][units].any()
            if len(units):
                assert (state[incoming]["resets"]["rows"]["step"][units] == step).all()
                assert (state[outgoing]["resets"]["columns"]["step"][0, units] == step).all()

    model.policy.optimizer.register_step_post_hook(check)
    model.learn(4 * ROLLOUT)
    assert seen == plastic.replaced
    assert all(seen.values())


class Rollouts(sb3.common.callbacks.BaseCallback):
    """Compares what is remembered of the units before and after every rollout."""

    def __init__(self, plastic: neoteny.Attachment) -> None:
        super().__init__()
        self.plastic = plastic
        self.count = 0

    def _on_rollout_start(self) -> None:
        self.before = self.plastic.state_dict()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.model.predict(self.model.observation_space.sample())
        assert_same(self.before, self.plastic.state_dict())
        assert not any(self.plastic.view.activations.values())
        self.count += 1


def test_rollouts_and_predictions_leave_no_trace() -> None:
    model = agent()
    plastic = attach(model)
    rollouts = Rollouts(plastic)
    model.learn(3 * ROLLOUT, callback=rollouts)
    assert rollouts.count == 3
    assert all(plastic.replaced.values())


class NaiveUtilities:
    """Utilities of one hidden layer after Algorithm 1, from the mini-batches that the loss was computed on."""

    def __init__(self, units: int) -> None:
        self.mean, self.utility, self.age = np.zeros(units), np.zeros(units), np.zeros(units, dtype=np.int64)
        self.accumulator = 0.0

    def choose(self, h: np.ndarray, incoming: np.ndarray, outgoing: np.ndarray) -> list[int]:
        """The units to replace; h (B, U) before the update, weights after it."""
        decay, rate, threshold = FAST.decay_rate, FAST.replacement_rate, FAST.maturity_threshold
        assert isinstance(decay, float)
        assert isinstance(rate, float)
        assert isinstance(threshold, int)
        self.age += 1
        correction = 1.0 - decay**self.age
        self.mean = decay * self.mean + (1.0 - decay) * h.mean(0)
        for unit, centre in enumerate(self.mean / correction):
            sizes = np.abs(h[:, unit]).mean(), np.abs(h[:, unit] - centre).mean()
            weights = np.abs(outgoing[:, unit]).mean(), np.abs(incoming[unit]).mean()
            fresh = step_utility("overall", *map(float, (*sizes, *weights)))
            self.utility[unit] = decay * self.utility[unit] + (1.0 - decay) * fresh
        chosen, self.accumulator = choose_units(
            self.utility / correction,
            self.age,
            self.accumulator,
            replacement_rate=rate,
            maturity_threshold=threshold,
            count="eligible",
        )
        for values in (self.mean, self.utility, self.age):
            values[chosen] = 0
        return chosen


def test_the_units_replaced_are_the_least_useful_on_the_mini_batches() -> None:
    model = agent()
    policy, optimizer = model.policy, model.policy.optimizer
    naive = {group: NaiveUtilities(8) for group in CONSUMERS}
    hidden: dict[str, np.ndarray] = {}
    expected: dict[str, list[int]] = {}
    chosen: list[int] = []

    def array(name: str) -> np.ndarray:
        return policy.get_parameter(name).detach().double().numpy()

    def before_tick(*_: Any) -> None:  # registered before attach, so it sees the updated weights of the old units
        for group, consumer in CONSUMERS.items():
            expected[group] = naive[group].choose(hidden[group], array(f"{group}.weight"), array(f"{consumer}.weight"))

    def after_tick(*_: Any) -> None:
        for group in CONSUMERS:
            kept = statistics(plastic, group)
            replaced = (kept["born"] == kept["schedule"]["step"]).nonzero().flatten().tolist()
            assert replaced == sorted(expected[group]), f"{group} at tick {kept['schedule']['step']}"
            np.testing.assert_allclose(kept["mean_activation"], naive[group].mean, rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(kept["utility"], naive[group].utility, rtol=1e-3)
            chosen.extend(replaced)

    optimizer.register_step_post_hook(before_tick)
    plastic = attach(model)
    optimizer.register_step_post_hook(after_tick)
    evaluate: Callable[..., Any] = policy.evaluate_actions

    def note(observations: Tensor, actions: Tensor) -> Any:
        for chain in CHAINS:
            h = observations.double().numpy()
            for group in chain[:-1]:
                hidden[group] = h = np.tanh(h @ array(f"{group}.weight").T + array(f"{group}.bias"))
        return evaluate(observations, actions)

    policy.evaluate_actions = note
    model.learn(8 * ROLLOUT)
    assert len(chosen) == sum(plastic.replaced.values()) > 40
    assert len(set(chosen)) > 3  # not always the first ones


def random_states() -> list[Any]:
    return [torch.get_rng_state(), np.random.get_state(), random.getstate()]


def set_random_states(states: list[Any]) -> None:
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


def test_a_saved_agent_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    model = agent()
    plastic = attach(model)
    model.learn(3 * ROLLOUT)
    model.save(tmp_path / "agent")
    file = io.BytesIO()
    torch.save(plastic.state_dict(), file)
    file.seek(0)
    # The framework saves neither its environment nor random states: these are the user's to keep.
    env, states = copy.deepcopy(model.get_env()), random_states()
    at_stop = dict(plastic.replaced)
    model.learn(3 * ROLLOUT, reset_num_timesteps=False)

    resumed = sb3.PPO.load(tmp_path / "agent", env=env, device="cpu", force_reset=False)
    assert type(resumed.policy.optimizer) is neoteny.optim.Adam
    again = attach(resumed, trained=True)
    again.load_state_dict(torch.load(file))
    set_random_states(states)
    assert again.replaced == at_stop
    assert all(at_stop.values())
    resumed.learn(3 * ROLLOUT, reset_num_timesteps=False)
    assert_same_agents(model, resumed)
    assert_same(plastic.state_dict(), again.state_dict())
    assert all(plastic.replaced[group] > at_stop[group] for group in CONSUMERS)


SMALL: dict[str, Any] = {"seed": 0, "device": "cpu", "policy_kwargs": {"net_arch": [8, 8]}}
OFF_POLICY: dict[str, Any] = {**SMALL, "learning_starts": 20, "buffer_size": 200, "batch_size": 8, "train_freq": 1}
Parts = tuple[Any, nn.Module, Optimizer, Any]


def advantage_actor_critic() -> Parts:
    model = sb3.A2C("MlpPolicy", "CartPole-v1", **{**SMALL, "policy_kwargs": POLICY}, n_steps=4)
    return model, model.policy, model.policy.optimizer, torch.zeros(1, 4)


def deep_q_network() -> Parts:
    model = sb3.DQN("MlpPolicy", "CartPole-v1", **OFF_POLICY)
    return model, model.policy.q_net, model.policy.optimizer, torch.zeros(1, 4)


def soft_actor_critic() -> Parts:
    model = sb3.SAC("MlpPolicy", "Pendulum-v1", **OFF_POLICY)
    return model, model.critic, model.critic.optimizer, (torch.zeros(1, 3), torch.zeros(1, 1))


@pytest.mark.parametrize("make", [advantage_actor_critic, deep_q_network, soft_actor_critic])
def test_other_agents_need_no_change_either(make: Callable[[], Parts]) -> None:
    model, network, optimizer, example = make()
    plastic = neoteny.attach(network, optimizer, FAST, example=example, seed=0, auto=True)
    model.learn(120)
    (steps,) = {int(state["step"]) for state in optimizer.state.values()}
    assert {statistics(plastic, group)["schedule"]["step"] for group in plastic.replaced} == {steps}
    assert all(plastic.replaced.values())
