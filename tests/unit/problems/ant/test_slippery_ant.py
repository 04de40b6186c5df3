"""The Slippery Ant as gymnasium sees it, its options, and what is refused."""

from __future__ import annotations

import importlib.metadata
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neoteny.problems import SlipperyAnt
from neoteny.problems.ant.problem import LATER_VERSION
from neoteny.problems.data.files import DataError
from neoteny.problems.problem import SimulationError
from support.ants import REST, actions, go

gymnasium = pytest.importorskip("gymnasium", reason="the Slippery Ant is an environment of gymnasium")
from gymnasium.error import ClosedEnvironmentError  # noqa: E402
from gymnasium.utils.env_checker import check_env  # noqa: E402

from neoteny.problems.ant.env import ENVIRONMENT, SlipperyAntEnv  # noqa: E402

# The environment as gymnasium sees it


# MuJoCo's observations are unbounded, as Ant-v5's are; the checker has doubts about that and nothing else.
@pytest.mark.filterwarnings("ignore:.*A Box observation space m..imum value is .?infinity")
def test_gymnasiums_checker_passes(simulator: str) -> None:
    env = gymnasium.make(ENVIRONMENT, simulator=simulator).unwrapped
    check_env(env, skip_render_check=simulator == "mujoco")  # MuJoCo needs OpenGL to render
    env.close()


def test_the_registered_environment_cuts_episodes_off_by_itself(simulator: str) -> None:
    env = gymnasium.make(ENVIRONMENT, simulator=simulator, episode_steps=3)
    assert env.spec is not None
    assert env.spec.max_episode_steps is None
    env.reset(seed=0)
    ends = [env.step(REST)[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    env.close()


def test_a_fallen_ant_ends_the_episode_and_is_not_cut_off(make: Any) -> None:
    env = make(episode_steps=1)
    env.reset(seed=0)
    state = env.state_dict()
    state["ant"]["position"][2] = 0.252 if env.simulator == "pybullet" else 1.5  # too low here, too high there
    env.load_state_dict(state)
    *_, terminated, truncated, _ = env.step(REST)
    assert (terminated, truncated) == (True, False)


def test_a_seed_starts_everything_anew_and_a_reset_only_an_episode(make: Any) -> None:
    env = make(period_steps=20, episode_steps=15)
    first, _ = env.reset(seed=3)
    digest = go(env, 0, 50)
    assert (env.steps, env.task) == (50, 2)
    second, info = env.reset()
    assert env.steps == 50
    assert info == {"friction": env.friction, "task": 2}
    assert not np.array_equal(first, second)
    again, info = env.reset(seed=3)
    assert np.array_equal(first, again)
    assert (env.steps, env.task, info["task"]) == (0, 0, 0)
    assert go(env, 0, 50) == digest


def test_without_a_seed_one_is_drawn(make: Any) -> None:
    assert not np.array_equal(make().reset()[0], make().reset()[0])


def test_actions_are_clipped(make: Any) -> None:
    outcomes = []
    for scale in (1.0, 7.0):
        env = make()
        env.reset(seed=0)
        outcomes.append([env.step(scale * np.sign(action)) for action in actions(20)])
    for once, again in zip(*outcomes, strict=True):
        assert np.array_equal(once[0], again[0])
        assert once[1:] == again[1:]


@pytest.mark.parametrize("action", [np.zeros(7), np.zeros((1, 8)), 0.0])
def test_an_action_of_another_shape_is_refused(make: Any, action: Any) -> None:
    env = make()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"Expected an action of shape \(8,\); got one of shape"):
        env.step(action)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_action_that_is_not_finite_ends_the_simulation_with_its_step(make: Any, value: float) -> None:
    env = make()
    env.reset(seed=0)
    env.step(REST)
    with pytest.raises(SimulationError, match=r"The action of step 1 is not finite: .*(nan|inf)"):
        env.step(np.array([0, 0, 0, value, 0, 0, 0, 0]))


def test_a_simulator_that_blows_up_says_so(
    make: Any, simulator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log where it is
    env = make()
    env.reset(seed=0)
    state = env.state_dict()
    state["ant"]["velocity"][0] = 1e300
    env.load_state_dict(state)
    with pytest.raises(SimulationError, match=rf"{simulator} blew up at step \d.*friction .*not finite"):
        go(env, 0, 5)


def test_a_step_before_the_first_reset_is_refused(make: Any) -> None:
    with pytest.raises(gymnasium.error.ResetNeeded):
        make().step(REST)


# What is refused


def test_an_unknown_simulator_is_refused_with_the_nearest_name() -> None:
    message = "simulator must be one of 'pybullet', 'mujoco'; got 'PyBulet'. Did you mean 'pybullet'?"
    for kind in (SlipperyAnt, SlipperyAntEnv):
        with pytest.raises(ValueError, match=message.replace("?", r"\?")):
            kind(simulator="PyBulet")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"friction_range": (0.0, 1.0)}, "both finite and above 0"),
        ({"friction_range": (-1.0, 1.0)}, r"got \(-1.0, 1.0\)"),
        ({"friction_range": (2.0, 1.0)}, "low <= high"),
        ({"friction_range": (math.nan, 1.0)}, "both finite"),
        ({"friction_range": (1.0, math.inf)}, "both finite"),
        ({"friction_range": (1.0,)}, r"two numbers \(low, high\)"),
        ({"friction_range": 1.0}, "two numbers"),
        ({"first_friction": 0.0}, "first_friction must be a finite number above 0"),
        ({"first_friction": math.nan}, "or None for the simulator's standard value; got nan"),
        ({"change": "steps"}, "change must be one of 'step', 'episode'; got 'steps'. Did you mean 'step'"),
        ({"period_steps": 0}, "period_steps must be a whole number of at least 1; got 0"),
        ({"period_steps": 1e7}, "period_steps must be a whole number"),
        ({"episode_steps": True}, "episode_steps must be a whole number"),
    ],
)
def test_impossible_options_are_refused_by_problem_and_environment(options: dict[str, Any], message: str) -> None:
    for kind in (SlipperyAnt, SlipperyAntEnv):
        with pytest.raises(ValueError, match=message):
            kind(**options)


def test_a_task_shorter_than_an_episode_is_no_problem_to_report_on() -> None:
    with pytest.raises(ValueError, match=r"period_steps must be at least episode_steps \(1,000\).*got 999"):
        SlipperyAnt(period_steps=999)


def test_a_missing_simulator_is_an_error_that_names_the_extra(simulator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in (simulator, "gymnasium"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            for start in (SlipperyAnt(simulator=simulator).open, lambda: SlipperyAntEnv(simulator)):
                with pytest.raises(DataError, match=rf'package {package}, .*pip install "neoteny\[{simulator}\]"'):
                    start()


def test_an_old_simulator_is_an_error_that_names_both_versions(simulator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.1.9")
    with pytest.raises(DataError, match=rf"Expected {simulator} of at least version 3\.\S+; found 3.1.9. Run: pip"):
        SlipperyAnt(simulator=simulator).open()


# The description


def test_the_problem_opens_as_worlds_of_its_options(simulator: str) -> None:
    problem = SlipperyAnt(
        simulator=simulator, period_steps=5, episode_steps=4, first_friction=2.0, friction_range=(3, 3)
    )
    worlds = problem.open()
    assert worlds.fingerprint == f"{simulator} {importlib.metadata.version(simulator)}"
    world = worlds.make(8)
    observation, _ = world.reset(seed=8)
    assert (observation.shape, observation.dtype) == (problem.input_shape, np.float32)
    assert world.action_space.shape == (problem.outputs,)
    steps = [world.step(REST) for _ in range(6)]
    assert [step[4]["friction"] for step in steps] == [2.0] * 5 + [3.0]
    assert [step[3] for step in steps][:4] == [False, False, False, True]
    world.close()


def test_the_later_version_is_another_simulator_range_and_period() -> None:
    problem = SlipperyAnt(**LATER_VERSION)
    assert (problem.simulator, problem.friction_range, problem.period_steps) == ("mujoco", (0.02, 2.0), 2_000_000)
    assert problem.input_shape == (27,)


def test_a_state_that_was_loaded_is_what_is_saved_again(make: Any) -> None:
    env = make()
    env.reset(seed=3)
    state = env.state_dict()
    for action in actions(40, seed=1):
        env.step(action)
        state = env.state_dict()
        env.load_state_dict(state)
        assert env.state_dict() == state
    env.step(REST)
    assert env.state_dict() != state


def test_a_closed_environment_is_closed(make: Any) -> None:
    env, other = make(), make()
    for each in (env, other):
        each.reset(seed=0)
    state = other.state_dict()
    env.close()
    env.close()
    uses = (lambda: env.step(np.zeros(8)), env.reset, env.render, env.state_dict, lambda: env.load_state_dict(state))
    for use in uses:
        with pytest.raises(ClosedEnvironmentError, match="This environment was closed; make a new one"):
            use()
    assert other.state_dict() == state
