"""The Ant in MuJoCo agrees, step by step, with gymnasium's Ant-v5; many at once agree with one at a time."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

mujoco = pytest.importorskip("mujoco", reason="mujoco is an optional simulator")
gymnasium = pytest.importorskip("gymnasium", reason="the Slippery Ant is an environment of gymnasium")

from neoteny.problems.ant.env import ENVIRONMENT, SlipperyAntEnv  # noqa: E402
from neoteny.problems.ant.vector_env import SlipperyAntVectorEnv  # noqa: E402
from neoteny.problems.problem import SimulationError  # noqa: E402

OPTIONS = {"simulator": "mujoco", "period_steps": 70, "episode_steps": 60}


@pytest.fixture
def stock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    try:
        import imageio  # noqa: F401 # pyright: ignore[reportMissingImports]
    except ImportError:  # gymnasium imports it to render, which nobody does here
        monkeypatch.setitem(sys.modules, "imageio", types.ModuleType("imageio"))
    env = gymnasium.make("Ant-v5", include_cfrc_ext_in_observation=False, contact_cost_weight=0.0).unwrapped
    env.model.opt.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    yield env
    env.close()


@pytest.mark.parametrize("friction", [1.0, 1e-3, 50.0])
def test_observations_and_rewards_are_those_of_ant_v5(stock: Any, friction: float) -> None:
    stock.model.geom_friction[:, 0] = friction
    ours = SlipperyAntEnv("mujoco", first_friction=friction)
    (expected, _), (given, _) = stock.reset(seed=3), ours.reset(seed=3)
    assert np.allclose(given, expected, rtol=1e-6, atol=1e-6)
    ends = 0
    generator = np.random.default_rng(1)
    for _ in range(400):
        action = generator.uniform(-1, 1, 8).astype(np.float32)
        observation, reward, terminated, _, _ = stock.step(action)
        given = ours.step(action)
        assert np.allclose(given[0], observation, rtol=1e-6, atol=1e-6)
        assert given[1] == pytest.approx(reward, abs=1e-6)
        assert given[2] == terminated
        if terminated:
            ends += 1
            assert np.allclose(ours.reset()[0], stock.reset()[0], rtol=1e-6, atol=1e-6)
    assert ends or friction != 1.0


def test_many_ants_are_those_of_single_environments() -> None:
    many = gymnasium.make_vec(ENVIRONMENT, num_envs=5, threads=2, **OPTIONS)
    singles = gymnasium.make_vec(ENVIRONMENT, num_envs=5, vectorization_mode="sync", **OPTIONS)
    assert isinstance(many, SlipperyAntVectorEnv)
    assert many.metadata["autoreset_mode"] == singles.metadata["autoreset_mode"]
    assert many.observation_space == singles.observation_space
    assert many.action_space == singles.action_space
    generator = np.random.default_rng(0)
    assert np.array_equal(many.reset(seed=4)[0], singles.reset(seed=4)[0])
    ends = 0
    for _ in range(200):
        actions = generator.uniform(-1.5, 1.5, (5, 8)).astype(np.float32)
        outcomes = [envs.step(actions) for envs in (many, singles)]
        ends += (outcomes[0][2] | outcomes[0][3]).sum()
        for ours, theirs in zip(outcomes[0][:4], outcomes[1][:4], strict=True):
            assert np.array_equal(ours, theirs)
            assert ours.dtype == theirs.dtype
        ours, theirs = outcomes[0][4], outcomes[1][4]
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[key], theirs[key]) for key in ours)
    assert ends > 10
    assert len(set(many.unwrapped.friction)) == 5
    assert min(many.unwrapped.task) >= 2
    many.close()
    singles.close()


def test_of_many_ants_the_one_that_cannot_go_on_is_named() -> None:
    envs = SlipperyAntVectorEnv(3, **OPTIONS)
    envs.reset(seed=[5, 6, 7])
    actions = np.zeros((3, 8))
    envs.step(actions)
    actions[1, 2] = np.nan
    with pytest.raises(SimulationError, match="Ant 1 of 3, at its step 1, has an action that is not finite"):
        envs.step(actions)


def test_many_ants_are_not_another_problem_by_default() -> None:
    with pytest.raises(ValueError, match=r"by simulator='mujoco'; got 'pybullet'.*vectorization_mode='sync'"):
        gymnasium.make_vec(ENVIRONMENT, num_envs=2)
    with pytest.raises(ValueError, match="Expected 2 seeds, one for each Ant; got 3"):
        SlipperyAntVectorEnv(2, simulator="mujoco").reset(seed=[1, 2, 3])
    with pytest.raises(ValueError, match=r"Expected actions of shape \(2, 8\); got \(8,\)"):
        SlipperyAntVectorEnv(2, simulator="mujoco").step(np.zeros(8))


def test_a_closed_vector_environment_is_closed() -> None:
    env = gymnasium.make_vec(ENVIRONMENT, num_envs=2, simulator="mujoco")
    env.reset(seed=0)
    env.close()
    for use in (env.reset, lambda: env.step(np.zeros((2, 8)))):
        with pytest.raises(gymnasium.error.ClosedEnvironmentError, match="closed; make a new one"):
            use()
