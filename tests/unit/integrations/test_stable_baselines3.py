"""The Stable-Baselines3 callback on its agents."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import neoteny

sb3: Any = pytest.importorskip("stable_baselines3", reason="stable_baselines3 is not installed (the extra sb3)")

import gymnasium  # noqa: E402

from neoteny.integrations.stable_baselines3 import Plasticity  # noqa: E402

FAST = neoteny.ContinualBackprop(replacement_rate=0.05, maturity_threshold=8)
SMALL: dict[str, Any] = {"seed": 3, "device": "cpu", "policy_kwargs": {"net_arch": [8, 8]}}
OFF_POLICY: dict[str, Any] = {**SMALL, "learning_starts": 20, "buffer_size": 200, "batch_size": 8, "train_freq": 1}
ON_POLICY: dict[str, Any] = {**SMALL, "policy_kwargs": {"net_arch": [8, 8], "ortho_init": False}}
AGENTS: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "PPO": ("Pendulum-v1", {**ON_POLICY, "n_steps": 64, "batch_size": 16, "n_epochs": 2}, {"policy"}),
    "A2C": ("CartPole-v1", {**ON_POLICY, "n_steps": 4}, {"policy"}),
    "DQN": ("CartPole-v1", OFF_POLICY, {"q_net"}),
    "SAC": ("Pendulum-v1", OFF_POLICY, {"critic", "actor"}),
}


def build(name: str) -> Any:
    env, options, _ = AGENTS[name]
    return getattr(sb3, name)("MlpPolicy", env, **options)


@pytest.mark.parametrize("name", AGENTS)
def test_the_networks_of_every_agent_are_attached_while_it_learns(name: str) -> None:
    model, callback = build(name), Plasticity(FAST, seed=1)
    model.learn(192, callback=callback)
    assert {part.partition(".")[0] for part in callback.replaced} == AGENTS[name][2]
    assert sum(callback.replaced.values()) > 10
    assert not any(module._forward_pre_hooks for module in model.policy.modules())


def test_a_second_learn_goes_on_and_a_loaded_agent_too(tmp_path: Path) -> None:
    model, callback = build("PPO"), Plasticity(FAST, seed=1)
    model.learn(192, callback=callback)
    model.save(tmp_path / "agent")
    state, counts = copy.deepcopy(callback.state_dict()), callback.replaced
    torch.save(state, tmp_path / "plastic.pt")
    model.learn(192, callback=callback, reset_num_timesteps=False)
    assert all(callback.replaced[name] > count for name, count in counts.items())

    again = Plasticity(FAST, seed=1)
    again.load_state_dict(torch.load(tmp_path / "plastic.pt"))
    loaded = sb3.PPO.load(tmp_path / "agent", env=gymnasium.make("Pendulum-v1"), device="cpu")
    loaded.learn(64, callback=again, reset_num_timesteps=False)
    assert all(again.replaced[name] >= count for name, count in counts.items())
    steps = {int(group["schedule"]["step"]) for group in again.state_dict()["policy"]["states"][0].values()}
    assert steps == {32}  # 24 before, 8 now
