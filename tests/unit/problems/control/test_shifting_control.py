"""Shifting control: stock environments, shifted observations, and a state that repeats every bit."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from neoteny.problems import ShiftingControl
from neoteny.problems import control as module
from neoteny.problems.control import ENVIRONMENTS, ShiftingWorld, draw_shift
from neoteny.problems.data.files import DataError
from reference import shifting_control as naive

gymnasium = pytest.importorskip("gymnasium")
SEED = 2**40 + 3


def needs(environment: str) -> Any:
    """A case that is skipped by name where a package is missing."""
    missing = [
        package
        for name, package in ENVIRONMENTS[environment].packages.items()
        if importlib.util.find_spec(name) is None
    ]
    mark = pytest.mark.skipif(bool(missing), reason=f"{environment} needs {', '.join(missing)}")
    return pytest.param(environment, marks=mark)


each_environment = pytest.mark.parametrize("environment", [needs(environment) for environment in ENVIRONMENTS])


def make(environment: str = "CartPole-v1", **options: Any) -> ShiftingWorld:
    problem = ShiftingControl(environment=environment, **{"period_steps": 90, "episode_steps": 40, **options})
    return problem.open().make(SEED)


def actions_of(environment: str, count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, ENVIRONMENTS[environment].actions, count)


def go(world: ShiftingWorld, observation: np.ndarray, actions: np.ndarray) -> list[Any]:
    """What the steps give, and the observation behind them."""
    found: list[Any] = []
    for action in actions:
        seen, (observation, reward, terminated, truncated, _) = observation, world.step(action)
        found.append((seen.tobytes(), int(action), reward, terminated, truncated))
        if terminated or truncated:
            observation, _ = world.reset()
    return [*found, observation]


@each_environment
def test_steps_are_those_of_the_stock_environment_with_shifted_observations(environment: str) -> None:
    actions = actions_of(environment, 300)
    world = make(environment)
    found = go(world, world.reset(seed=SEED)[0], actions)[:-1]
    stock = gymnasium.make(environment, disable_env_checker=True).unwrapped
    expected = naive.go(stock, SEED, lambda step, _: int(actions[step]), 300, 90, 40, 2.0)
    assert found == [(seen.tobytes(), *rest) for seen, *rest in expected]
    assert any(truncated for *_, truncated in found) or environment == "CartPole-v1"
    assert world.steps == 300


@each_environment
def test_a_continued_world_is_the_same_to_the_last_bit(environment: str) -> None:
    actions = actions_of(environment, 260)
    world = make(environment)
    start, _ = world.reset(seed=SEED)
    *first, observation = go(world, start, actions[:133])
    saved = world.state_dict()
    rest = go(world, observation, actions[133:])
    other = make(environment)
    other.load_state_dict(saved)
    assert other.steps == 133
    assert other.shift == make_shift(1, environment)
    again = go(other, observation, actions[133:])
    assert again[:-1] == rest[:-1]
    assert np.array_equal(again[-1], rest[-1])
    assert len(first) == 133


def make_shift(task: int, environment: str) -> float:
    return float(np.linalg.norm(draw_shift(SEED, task, ENVIRONMENTS[environment].observations, 2.0)))


def test_a_state_that_a_world_gave_and_has_left_is_acted_again() -> None:
    world = make()
    observation, _ = world.reset(seed=SEED)
    actions = actions_of("CartPole-v1", 60)
    observation = go(world, observation, actions[:10])[-1]
    saved = world.state_dict()
    world.load_state_dict(saved)  # it has not been left
    once = go(world, observation, actions[10:])
    world.load_state_dict(saved)
    assert world.steps == 10
    assert repr(go(world, observation, actions[10:])) == repr(once)


def test_shifts_are_zero_at_first_then_normal_and_depend_on_seed_and_task_alone() -> None:
    assert draw_shift(SEED, 0, 4, 2.0).tolist() == [0.0] * 4
    for task in (1, 2, 9):
        np.testing.assert_allclose(draw_shift(SEED, task, 6, 2.0), naive.shift(SEED, task, 6, 2.0), rtol=1e-12)
    drawn = np.concatenate([draw_shift(seed, task, 8, 2.0) for seed in range(30) for task in range(1, 20)])
    assert abs(drawn.mean()) < 0.15  # 5 standard deviations
    assert 1.9 < drawn.std() < 2.1
    assert not np.array_equal(draw_shift(1, 1, 4, 2.0), draw_shift(2, 1, 4, 2.0))
    assert not np.array_equal(draw_shift(1, 1, 4, 2.0), draw_shift(1, 2, 4, 2.0))


def test_the_recorded_shift_is_that_of_the_step_just_taken() -> None:
    world = make("MountainCar-v0")
    world.reset(seed=SEED)
    shifts = []
    for _ in range(200):
        *_, terminated, truncated, _ = world.step(0)
        shifts.append(world.shift)
        if terminated or truncated:
            world.reset()
    assert shifts == [0.0] * 90 + [make_shift(1, "MountainCar-v0")] * 90 + [make_shift(2, "MountainCar-v0")] * 20


def test_no_shift_with_a_standard_deviation_of_zero() -> None:
    world = make(shift_std=0.0)
    found = go(world, world.reset(seed=SEED)[0], actions_of("CartPole-v1", 150))
    plain = gymnasium.make("CartPole-v1").unwrapped
    assert found[0][0] == plain.reset(seed=SEED)[0].tobytes()
    assert world.shift == 0.0


def test_a_seed_restarts_everything() -> None:
    world = make()
    actions = actions_of("CartPole-v1", 120)
    once = go(world, world.reset(seed=SEED)[0], actions)
    again = go(world, world.reset(seed=SEED)[0], actions)
    assert repr(once) == repr(again)
    assert repr(go(world, world.reset(seed=4)[0], actions)) != repr(once)


@pytest.mark.parametrize("action", [2, -1, 0.0, np.array([1]), None, "left"])
def test_an_action_that_there_is_not_is_refused(action: Any) -> None:
    world = make()
    world.reset(seed=0)
    with pytest.raises(ValueError, match="CartPole-v1: expected an action from 0 to 1, a whole number; got"):
        world.step(action)


def test_a_world_says_what_to_call_first() -> None:
    world = make()
    for call in (lambda: world.step(0), world.reset, world.state_dict):
        with pytest.raises(ValueError, match="reset"):
            call()
    world.reset(seed=0)
    with pytest.raises(ValueError, match="Expected a state of 'CartPole-v1'; got one of 'Acrobot-v1'"):
        world.load_state_dict({"environment": "Acrobot-v1"})
    world.close()


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None if name == "Box2D" else name)
    with pytest.raises(DataError, match=r"v3 needs the package box2d, not installed. Run: pip install box2d$"):
        ShiftingControl(environment="LunarLander-v3").open()
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r'package gymnasium, not installed. Run: pip install "neoteny\[control\]"'):
        ShiftingControl().open()


def test_the_published_protocol_is_the_default() -> None:
    problem = ShiftingControl()
    assert (problem.tasks, problem.period_steps, problem.episode_steps, problem.shift_std) == (10, 200 * 800, 400, 2.0)
    assert "gymnasium" in problem.open().fingerprint


@each_environment
def test_sizes_are_those_of_the_environment(environment: str) -> None:
    env, problem = gymnasium.make(environment), ShiftingControl(environment=environment)
    assert env.observation_space.shape == problem.input_shape
    assert env.action_space.n == problem.outputs
