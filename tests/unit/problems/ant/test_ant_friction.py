"""The Slippery Ant: friction that really changes, at the right step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neoteny.problems.ant.friction import draw_friction
from support.ants import REST, actions

gymnasium = pytest.importorskip("gymnasium", reason="the Slippery Ant is an environment of gymnasium")

from neoteny.problems.ant.env import SlipperyAntEnv  # noqa: E402

RANGE = (1e-4, 1e4)


def slide(simulator: str, friction: float, seconds: float = 0.99, **options: Any) -> tuple[float, float, float]:
    """An Ant at rest on the floor is pushed to 2 m/s: how far it slid, its last speed, the lowest of its heights."""
    env = SlipperyAntEnv(simulator, first_friction=friction, episode_steps=10**6, **options)
    env.reset(seed=0)
    for _ in range(100):
        env.step(REST)
    state = env.state_dict()
    state["ant"]["velocity"][0] = 2.0
    env.load_state_dict(state)
    places = [state["ant"]["position"]]
    for _ in range(round(seconds / (0.0165 if simulator == "pybullet" else 0.05))):
        env.step(REST)
        places.append(env.state_dict()["ant"]["position"])
    speed = env.state_dict()["ant"]["velocity"][0]
    env.close()
    return places[-1][0] - places[0][0], speed, min(place[2] for place in places)


def test_friction_really_changes_and_the_ant_stays_above_the_floor(simulator: str) -> None:
    ice, standard, glue = (slide(simulator, friction) for friction in (1e-4, 1.5, 1e4))
    # On ice nothing stops it (PyBullet damps it by 4% a second); at 1.5 (on PyBullet's floor of 0.8: 1.2) it comes to
    # rest after v^2 / 2 mu g, 0.17 m or 0.14 m; glued to the floor it tilts, but does not get anywhere.
    assert ice[0] > 1.8
    assert ice[1] > 1.7
    assert 0.1 < standard[0] < 0.25
    assert abs(standard[1]) < 0.1
    assert -0.01 < glue[0] < 0.06
    assert min(ice[2], standard[2], glue[2]) > 0.245  # the torso's radius is 0.25


def test_friction_that_changes_in_mid_slide_brakes_at_that_step(simulator: str) -> None:
    change = {"friction_range": (5.0, 5.0), "period_steps": 110, "change": "step"}
    seconds = 20 * (0.0165 if simulator == "pybullet" else 0.05)
    assert slide(simulator, 1e-4, seconds, **change)[1] < 0.5
    assert slide(simulator, 1e-4, seconds, **{**change, "change": "episode"})[1] > 1.7


@pytest.mark.parametrize("friction", [1e-4, 1.5, 1e4])
def test_a_moving_ant_stays_above_the_floor(make: Any, friction: float) -> None:
    env = make(first_friction=friction)
    env.reset(seed=1)
    heights = []
    for action in actions(200):
        if any(env.step(action)[2:4]):
            env.reset()
        heights.append(env.state_dict()["ant"]["position"][2])
    assert min(heights) > 0.2


def test_friction_depends_on_seed_and_task_alone(make: Any) -> None:
    one, two, other = make(period_steps=4, episode_steps=3), make(period_steps=4, episode_steps=4), make(period_steps=4)
    seen: list[list[float]] = []
    for env, seed, noise in ((one, 5, 1), (two, 5, 2), (other, 6, 1)):
        env.reset(seed=seed)
        frictions = []
        for action in actions(40, noise):
            *_, terminated, truncated, info = env.step(action)
            frictions.append(info["friction"])
            assert info["task"] == env.task == (env.steps - 1) // 4
            if terminated or truncated:
                env.reset()
        seen.append(frictions)
    first = 1.5 if one.simulator == "pybullet" else 1.0
    assert seen[0] == seen[1] == [draw_friction(5, step // 4, RANGE, first) for step in range(40)]
    assert seen[0][:4] == seen[2][:4] == [first] * 4
    assert not set(seen[0][4:]) & set(seen[2][4:])


def test_with_change_at_the_episode_friction_waits_for_its_end(make: Any) -> None:
    env = make(period_steps=10, episode_steps=8, change="episode")
    env.reset(seed=2)
    frictions = []
    for _ in range(40):
        *_, truncated, info = env.step(REST)
        frictions.append(info["friction"])
        if truncated:
            env.reset()
    starts = [step - step % 8 for step in range(40)]
    first = 1.5 if env.simulator == "pybullet" else 1.0
    assert frictions == [draw_friction(2, start // 10, RANGE, first) for start in starts]


def test_friction_is_log_uniform() -> None:
    drawn = np.log10([draw_friction(seed, task, RANGE, 1.5) for seed in (0, 9) for task in range(1, 501)])
    assert -4 <= drawn.min() < -3.9
    assert 3.9 < drawn.max() <= 4
    counts, _ = np.histogram(drawn, bins=8, range=(-4, 4))
    assert counts.min() > 90  # of 125 expected, with a deviation of 10
