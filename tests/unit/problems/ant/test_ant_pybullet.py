"""The Ant in PyBullet agrees, step by step, with the stock environment whose observation and reward it computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pybullet", reason="pybullet is an optional simulator")
gymnasium = pytest.importorskip("gymnasium", reason="the Slippery Ant is an environment of gymnasium")
pytest.importorskip("pybullet_envs_gymnasium", reason="the stock environments are not installed")

from neoteny.problems.ant.env import SlipperyAntEnv  # noqa: E402
from neoteny.problems.ant.pybullet import BulletAnt  # noqa: E402


@pytest.fixture
def stock() -> Iterator[Any]:
    env = gymnasium.make("AntBulletEnv-v0").unwrapped
    yield env
    env.close()


@pytest.fixture
def ours() -> Iterator[SlipperyAntEnv]:
    env = SlipperyAntEnv("pybullet")
    yield env
    env.close()


def test_observations_and_rewards_are_those_of_the_stock_environment(stock: Any, ours: SlipperyAntEnv) -> None:
    generator = np.random.default_rng(1)
    for episode in range(3):
        seed = 4 if episode == 0 else None
        (expected, _), (given, _) = stock.reset(seed=seed), ours.reset(seed=seed)
        # The stock environment counts the floor among the Ant's parts from after its first reset on.
        assert np.allclose(given, expected, rtol=0, atol=1e-6 if episode == 0 else 1e-7)
        for step in range(150):
            action = generator.uniform(-1, 1, 8).astype(np.float32)
            expected, reward, fell, _, _ = stock.step(action)
            given = ours.step(action)
            assert np.allclose(given[0], expected, rtol=0, atol=1e-7)
            assert given[2] == fell
            if (episode, step) == (0, 0):
                assert abs(given[1] - reward) < 0.1
            else:
                assert given[1] == pytest.approx(reward, abs=2e-7)


def test_falling_is_what_it_is_in_the_stock_environment(stock: Any, ours: SlipperyAntEnv) -> None:
    stock.reset(seed=0)
    ours.reset(seed=0)
    torque = np.array([0, -1, 0, 1, 0, 1, 0, -1], dtype=np.float32)  # all legs up
    expected, given = stock.step(torque), ours.step(torque)
    for _ in range(300):
        assert np.allclose(given[0], expected[0], rtol=0, atol=1e-7)
        assert given[2] == expected[2]
        if given[2]:
            break
        expected, given = stock.step(torque), ours.step(torque)
    assert given[2]
    assert given[1] == pytest.approx(expected[1], abs=2e-7)
    assert given[1] < 0


def test_many_resets_and_rebuilds_leave_the_world_as_it_was() -> None:
    ant, fresh = BulletAnt(), BulletAnt()
    torques = np.random.default_rng(0).uniform(-1, 1, (30, 8)).tolist()
    for round_number in range(20):
        ant.reset(np.random.default_rng(round_number))
        for torque in torques[:5]:
            ant.step(torque)
        ant.restore(ant.state())
    ant.build()
    outcomes = []
    for each in (ant, fresh):
        each.reset(np.random.default_rng(3))
        outcomes.append([each.step(torque) for torque in torques])
        each.close()
        each.close()
    for once, again in zip(*outcomes, strict=True):
        assert np.array_equal(once[0], again[0])
        assert once[1:] == again[1:]
