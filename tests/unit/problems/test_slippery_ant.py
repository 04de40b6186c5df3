"""The Slippery Ant: gymnasium's checker, friction that really changes, a clock and a state that go on bit by bit."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neoteny.problems import SlipperyAnt
from neoteny.problems.ant.friction import draw_friction
from neoteny.problems.ant.problem import LATER_VERSION
from neoteny.problems.data.files import DataError
from neoteny.problems.problem import SimulationError

gymnasium = pytest.importorskip("gymnasium", reason="the Slippery Ant is an environment of gymnasium")

from gymnasium.error import ClosedEnvironmentError  # noqa: E402
from gymnasium.utils.env_checker import check_env  # noqa: E402

from neoteny.problems.ant.env import ENVIRONMENT, SlipperyAntEnv  # noqa: E402

REST = np.zeros(8, dtype=np.float32)
RANGE = (1e-4, 1e4)


@pytest.fixture(params=["pybullet", "mujoco"])
def simulator(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param, reason=f"{request.param} is an optional simulator")
    return request.param


@pytest.fixture
def make(simulator: str) -> Iterator[Any]:
    made: list[SlipperyAntEnv] = []

    def make(**options: Any) -> SlipperyAntEnv:
        made.append(SlipperyAntEnv(simulator=simulator, **options))
        return made[-1]

    yield make
    for env in made:
        env.close()


def actions(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1.2, 1.2, (count, 8)).astype(np.float32)


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


def slide_distance(simulator: str, friction: float) -> float:
    """How far an Ant slides in a second that is pushed to 2 m/s and does nothing."""
    return slide(simulator, friction)[0]


def go(env: SlipperyAntEnv, first: int, last: int) -> str:
    """A checksum of every bit that steps first to last - 1 give."""
    digest = hashlib.sha256()
    for action in actions(last)[first:]:
        observation, reward, terminated, truncated, info = env.step(action)
        digest.update(
            observation.tobytes() + np.float64(reward).tobytes() + repr((terminated, truncated, info)).encode()
        )
        if terminated or truncated:
            digest.update(env.reset()[0].tobytes())
    return digest.hexdigest()


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


# Friction


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


# States


def test_a_continuation_is_the_same_to_the_last_bit(make: Any, simulator: str, tmp_path: Path) -> None:
    options = {"period_steps": 150, "episode_steps": 130}
    neighbour, env = make(**options), make(**options)
    neighbour.reset(seed=1)
    go(neighbour, 0, 30)
    env.reset(seed=11)
    parts: list[str] = []
    files: list[Path] = []
    for first, last in ((0, 3), (3, 60), (60, 200), (200, 500)):  # in the air, in contact, in a later episode and task
        parts.append(go(env, first, last))
        files.append(tmp_path / f"{last}.pt")
        torch.save(env.state_dict(), files[-1])
        env.load_state_dict(env.state_dict())
        neighbour.step(REST)
    for file, (first, last), expected in zip(files, ((3, 60), (60, 200), (200, 500)), parts[1:], strict=False):
        resumed = make(**options)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        assert go(resumed, first, last) == expected
    if simulator == "pybullet":  # whose worlds hold more than their states say
        assert go_elsewhere(files[2], options, 200, 500) == parts[3]


def go_elsewhere(file: Path, options: dict[str, Any], first: int, last: int) -> str:
    """What `go` says in a process of its own; nothing else may be on its stdout, though PyBullet speaks on import."""
    program = (
        "import sys, torch; from test_slippery_ant import SlipperyAntEnv, go\n"
        f"env = SlipperyAntEnv('pybullet', **{options!r}); env.load_state_dict(torch.load({str(file)!r}))\n"
        f"print(go(env, {first}, {last}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    return done.stdout.removesuffix("\n")


def test_a_state_is_made_of_plain_values(make: Any) -> None:
    def check(value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                assert type(key) is str
                check(inner)
        elif isinstance(value, list):
            for inner in value:
                check(inner)
        else:
            assert type(value) in (int, float, str, bool)

    env = make()
    env.reset(seed=0)
    env.step(REST)
    check(env.state_dict())
    buffer = io.BytesIO()
    torch.save(env.state_dict(), buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True) == env.state_dict()


def test_a_state_of_the_other_simulator_is_refused(make: Any) -> None:
    env = make()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"Expected a state of .*; got one of 'brax'"):
        env.load_state_dict({**env.state_dict(), "simulator": "brax"})


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
    for action in actions(40, seed=1):
        env.step(action)
        state = env.state_dict()
        env.load_state_dict(state)
        assert env.state_dict() == state
    env.step(action)
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
