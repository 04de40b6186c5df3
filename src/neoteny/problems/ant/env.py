"""The environment of the Slippery Ant, for gymnasium: an Ant whose friction changes as the steps of a run go by.

Importing this file registers it, so that

    import neoteny.problems.ant.env
    env = gymnasium.make("neoteny/SlipperyAnt-v0", simulator="pybullet")

gives one; so does `gymnasium.make("neoteny.problems.ant.env:neoteny/SlipperyAnt-v0")` without the import. It cuts
episodes off by itself, with `truncated`, and its clock, task and friction go on over episodes: `reset()` starts an
episode, `reset(seed=s)` restarts everything. `state_dict` and `load_state_dict` stop and continue it bit by bit.
`gymnasium.make_vec` gives many at once (`vector_env.py`, MuJoCo only).

Before this: `friction.py` gives the friction, `simulators.py` the Ants, `problem.py` the description; after it: the
agents of `suite/rl/`, or any other.
"""

from __future__ import annotations

import copy
import math
import secrets
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from neoteny.problems.ant.friction import FrictionClock, check_steps
from neoteny.problems.ant.simulators import find_simulator
from neoteny.problems.problem import SimulationError

ENVIRONMENT = "neoteny/SlipperyAnt-v0"
ACTIONS = 8


class SlipperyAntEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """An Ant that is rewarded for walking, on a ground whose friction changes.

    Args:
        simulator: "pybullet" (observations of 28 values within 5) or "mujoco" (27 values).
        period_steps: steps between two changes; step t, from 0, belongs to task t // period_steps.
        friction_range: lowest and highest friction, from which every task but the first draws log-uniformly.
        first_friction: of the first task; None for the simulator's standard value.
        change: "step" to change friction exactly then, mid-episode; "episode" at the start of the next episode.
        episode_steps: after which an episode is cut off.
        render_mode: None or "rgb_array".

    Attributes:
        steps: taken since `reset(seed=...)`, over all episodes.
        task: whose friction is in force.
        friction: in force.
        simulator: its name.

    Raises:
        DataError: the simulator is not installed.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012

    def __init__(
        self,
        simulator: str = "pybullet",
        period_steps: int = 10_000_000,
        friction_range: Sequence[float] = (1e-4, 1e4),
        first_friction: float | None = None,
        change: str = "step",
        episode_steps: int = 1000,
        render_mode: str | None = None,
    ) -> None:
        kind = find_simulator(simulator)
        first = kind.ant.standard_friction if first_friction is None else first_friction
        self._clock = FrictionClock(period_steps, friction_range, first, change)
        check_steps("episode_steps", episode_steps)
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode must be None or 'rgb_array'; got {render_mode!r}.")
        kind.require()
        self.simulator = simulator
        self.episode_steps = episode_steps
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": round(1 / kind.ant.step_seconds)}
        self.observation_space = gymnasium.spaces.Box(
            -kind.ant.bound, kind.ant.bound, (kind.ant.observations,), np.float32
        )
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)
        self._episode_step = -1  # no episode yet
        self._seeded = False
        self._closed = False
        self._loaded: dict[str, Any] | None = None  # the Ant's state that was loaded, until it moves
        self._ant = kind.ant()

    @property
    def steps(self) -> int:
        return self._clock.steps

    @property
    def task(self) -> int:
        return self._clock.task

    @property
    def friction(self) -> float:
        return self._clock.friction

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode. With a seed, restart everything; if there never was one, a seed is drawn."""
        self._refuse_closed()
        self._loaded = None
        if seed is None and not self._seeded:
            seed = secrets.randbelow(2**31)
        super().reset(seed=seed)
        if seed is not None:
            self._clock.start(seed)
            self._seeded = True
            self._ant.build()
        self._clock.enter_episode()
        self._set_friction()
        self._episode_step = 0
        return self._ant.reset(self.np_random), self._info()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Observation, reward, terminated (fell), truncated (time is up), and the friction and task of this step.

        Raises:
            SimulationError: the action is not finite, or the simulator blew up.
        """
        if self._episode_step < 0:
            self._refuse_closed()
            raise gymnasium.error.ResetNeeded("Call reset before the first step.")
        values = check_action(action, self.steps)
        self._loaded = None
        clock = self._clock
        clock.enter_step()
        self._set_friction()
        observation, reward, fell = self._ant.step(values)
        if not math.isfinite(reward):
            raise SimulationError(
                f"{self.simulator} blew up at step {clock.steps:,} (step {self._episode_step:,} of its episode, "
                f"friction {clock.friction:g}): the state is not finite. The reward is {reward}, the observation "
                f"{observation.tolist()}, the action was {values}."
            )
        clock.steps += 1
        self._episode_step += 1
        return observation, reward, fell, not fell and self._episode_step >= self.episode_steps, self._info()

    def state_dict(self) -> dict[str, Any]:
        """Everything a continuation needs, as numbers, strings, lists and dicts."""
        self._refuse_closed()
        return {
            "simulator": self.simulator,
            "clock": self._clock.state(),
            "episode_step": self._episode_step,
            "generator": self.np_random.bit_generator.state,
            # A simulator returns a rounded copy of the state it was given.
            "ant": self._ant.state() if self._loaded is None else copy.deepcopy(self._loaded),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Rebuild the simulator and bring it to a saved state; what follows depends on that state alone.

        Simulators keep more than positions and speeds, such as the contacts of the step before. A run that must
        repeat bit by bit after an interruption therefore also loads its own state at each point where it saves it.
        """
        if state.get("simulator") != self.simulator:
            raise ValueError(f"Expected a state of {self.simulator!r}; got one of {state.get('simulator')!r}.")
        self._refuse_closed()
        self._clock.restore(state["clock"])
        self._episode_step = state["episode_step"]
        self._seeded = True
        self.np_random = np.random.Generator(np.random.PCG64())
        self.np_random.bit_generator.state = state["generator"]
        self._ant.restore(state["ant"])
        self._loaded = copy.deepcopy(state["ant"])

    def render(self) -> np.ndarray | None:
        """A picture, uint8 (height, width, 3), in render mode "rgb_array"."""
        self._refuse_closed()
        return self._ant.render() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self._closed, self._episode_step = True, -1
        self._ant.close()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise gymnasium.error.ClosedEnvironmentError("This environment was closed; make a new one.")

    def _set_friction(self) -> None:
        if self._ant.friction != self._clock.friction:
            self._ant.set_friction(self._clock.friction)

    def _info(self) -> dict[str, Any]:
        return {"friction": self._clock.friction, "task": self._clock.task}


def check_action(action: np.ndarray, step: int) -> list[float]:
    """An action as numbers in [-1, 1], clipped where they are outside; refused if it is not eight finite numbers."""
    given = np.asarray(action, dtype=np.float64)
    if given.shape != (ACTIONS,):
        raise ValueError(f"Expected an action of shape ({ACTIONS},); got one of shape {given.shape}.")
    values = given.tolist()
    if not all(map(math.isfinite, values)):
        raise SimulationError(f"The action of step {step:,} is not finite: {values}. Has the policy diverged?")
    return [-1.0 if value < -1.0 else min(value, 1.0) for value in values]


if ENVIRONMENT not in gymnasium.registry:
    gymnasium.register(
        ENVIRONMENT,
        entry_point=f"{__name__}:SlipperyAntEnv",
        vector_entry_point="neoteny.problems.ant.vector_env:SlipperyAntVectorEnv",
    )
