"""Shifting control: gymnasium's small environments, in which all observations are shifted from task to task.

The protocol is that of the paper on C-CHAIN (continual Gym control). A task is `period_steps` actions long, 200
iterations of 800. In the first task observations are as they are; every later one draws a vector, normal with a
standard deviation of 2, by the run's seed alone, and adds it to all observations. The agent is not told of changes.
Episodes end after 400 actions. Here a shift changes at its step, also within an episode: the protocol was not found to
say when.

The state of a world is how its episode began and the actions since; to continue, they are acted again. So every
environment is saved in the same way, and a continued run is the same to the last bit.

This is the description and the worlds; gymnasium is needed when it is opened. After it: the agents of `suite/rl/`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from neoteny.draws import rng
from neoteny.problems.data.files import DataError
from neoteny.problems.problem import Problem, Worlds
from neoteny.text import check_whole, nearest


class Kind(NamedTuple):
    """Sizes of an environment's observations and actions, and the packages that it needs, by the names of imports."""

    observations: int
    actions: int
    packages: dict[str, str]


_CLASSIC = {"gymnasium": "gymnasium"}
ENVIRONMENTS: dict[str, Kind] = {
    "CartPole-v1": Kind(4, 2, _CLASSIC),
    "Acrobot-v1": Kind(6, 3, _CLASSIC),
    "LunarLander-v3": Kind(8, 4, {**_CLASSIC, "Box2D": "box2d", "pygame": "pygame-ce"}),
    "MountainCar-v0": Kind(2, 3, _CLASSIC),
}
"""The environments, by gymnasium's names."""


@dataclass(frozen=True)
class ShiftingControl(Problem):
    """Control of a small system whose observations are shifted by another vector in every task.

    Args:
        tasks: shifts, the first of which is zero.
        environment: "CartPole-v1", "Acrobot-v1", "MountainCar-v0" or "LunarLander-v3" (which needs Box2D and
            pygame: the extra control).
        period_steps: actions between two changes.
        shift_std: standard deviation of the shifts.
        episode_steps: after which an episode is cut off; it takes the place of the environment's own limit.

    Example:
        >>> ShiftingControl(environment="Acrobot-v1").input_shape
        (6,)
    """

    tasks: int = 10
    environment: str = "CartPole-v1"
    period_steps: int = 160_000
    shift_std: float = 2.0
    episode_steps: int = 400

    performance: ClassVar[str] = "return"
    control: ClassVar[bool] = True
    discrete: ClassVar[bool] = True
    varied: ClassVar[str] = "shift"

    def __post_init__(self) -> None:
        check_whole(self, tasks=1, period_steps=1, episode_steps=1)
        if self.environment not in ENVIRONMENTS:
            known = ", ".join(map(repr, ENVIRONMENTS))
            raise ValueError(
                f"ShiftingControl: environment must be one of {known}; got {self.environment!r}."
                f"{nearest(str(self.environment), ENVIRONMENTS)}"
            )
        std = self.shift_std
        if isinstance(std, bool) or not isinstance(std, (int, float)) or not 0 <= std < math.inf:
            raise ValueError(f"ShiftingControl: shift_std must be a finite number of at least 0; got {std!r}.")
        if self.period_steps < self.episode_steps:
            raise ValueError(
                f"ShiftingControl: period_steps must be at least episode_steps ({self.episode_steps:,}), so that every "
                f"task sees the end of an episode; got {self.period_steps:,}."
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (ENVIRONMENTS[self.environment].observations,)

    @property
    def outputs(self) -> int:
        return ENVIRONMENTS[self.environment].actions

    @property
    def steps_per_task(self) -> int:
        return self.period_steps

    def open(self, data: Path | str | None = None) -> ShiftingWorlds:
        """Check that gymnasium and what the environment needs are installed; no data is needed.

        Raises:
            DataError: a package is missing; the message names it.
        """
        for module, package in ENVIRONMENTS[self.environment].packages.items():
            if importlib.util.find_spec(module) is None:
                what = '"neoteny[control]"' if module == "gymnasium" else package
                raise DataError(
                    f"{self.environment} needs the package {package}, not installed. Run: pip install {what}"
                )
        return ShiftingWorlds(self)


@dataclass
class ShiftingWorlds(Worlds):
    """Environments of one description."""

    problem: ShiftingControl

    def __post_init__(self) -> None:
        packages = ENVIRONMENTS[self.problem.environment].packages.values()
        self.fingerprint = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)

    def make(self, seed: int) -> ShiftingWorld:
        """A world; `reset(seed=seed)` starts it."""
        return ShiftingWorld(self.problem)


def draw_shift(seed: int, task: int, size: int, std: float) -> np.ndarray:
    """What is added to the observations of a task (from 0), float64 (size,); zeros in the first.

    Example:
        >>> draw_shift(3, 0, 2, 2.0).tolist()
        [0.0, 0.0]
    """
    if task == 0:
        return np.zeros(size)
    return std * rng.normal(torch.tensor(seed), 0, "control.shift", torch.tensor(task), size).numpy()


class ShiftingWorld:
    """One environment whose clock, task and shift go on over episodes.

    `reset()` starts an episode, `reset(seed=s)` restarts everything. Step t (from 0) belongs to task t // period_steps:
    the observation that is acted on at that step has the shift of this task.

    Attributes:
        steps: taken since `reset(seed=...)`, over all episodes.
        shift: the length of the vector that was added to what the last step was acted on.
    """

    def __init__(self, problem: ShiftingControl) -> None:
        import gymnasium

        self.problem = problem
        # Without its wrappers: the limit of time is ours, and checks at every step take longer than the step.
        self._env = gymnasium.make(problem.environment, disable_env_checker=True).unwrapped
        self.steps = 0
        self.shift = 0.0
        self._seed: int | None = None
        self._began: dict[str, Any] = {}  # the generator's state before the episode
        self._actions: list[int] = []  # of the episode
        self._running = False
        self._task = 0
        self._vector = np.zeros(problem.input_shape)
        self._given: dict[str, Any] | None = None  # the state that was given out and still holds

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """The first observation of an episode, float32; a seed restarts everything, the clock included."""
        if seed is None and self._seed is None:
            raise ValueError("ShiftingWorld: call reset(seed=...) first.")
        self._given = None
        if seed is not None:
            self._seed, self.steps, self.shift = seed, 0, 0.0
            self._task, self._vector = 0, np.zeros(self.problem.input_shape)
            self._env.np_random = np.random.Generator(np.random.PCG64(seed))
        return self._shifted(self._begin()), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Observation, reward, terminated, truncated (time is up) and info."""
        number = self._check(action)
        self._given = None
        self.shift = float(np.linalg.norm(self._vector))
        plain, reward, terminated, _, _ = self._env.step(number)
        self._actions.append(number)
        self.steps += 1
        truncated = not terminated and len(self._actions) >= self.problem.episode_steps
        self._running = not (terminated or truncated)
        return self._shifted(plain), float(reward), bool(terminated), truncated, {}

    def state_dict(self) -> dict[str, Any]:
        """Everything a continuation needs, as numbers, strings, lists and dicts."""
        if self._seed is None:
            raise ValueError("ShiftingWorld: there is no state before reset(seed=...).")
        if self._given is None:
            self._given = {
                "environment": self.problem.environment,
                "seed": self._seed,
                "steps": self.steps,
                "shift": self.shift,
                "began": self._began,
                "actions": list(self._actions),
                "running": self._running,
            }
        return self._given

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Bring the environment to a saved state, by acting its episode again.

        A state that this world gave out itself, and has not left, is not acted again: it would come to the same.
        """
        if state.get("environment") != self.problem.environment:
            raise ValueError(
                f"Expected a state of {self.problem.environment!r}; got one of {state.get('environment')!r}."
            )
        if state is self._given:
            return
        self._seed, self.steps = state["seed"], state["steps"]
        self._task, self._vector = 0, np.zeros(self.problem.input_shape)
        self._given = None
        self._env.np_random = np.random.Generator(np.random.PCG64())
        self._env.np_random.bit_generator.state = state["began"]
        plain = self._begin()
        for action in state["actions"]:
            plain = self._env.step(action)[0]
        self._shifted(plain)
        self._actions = list(state["actions"])
        self._running, self.shift = state["running"], state["shift"]

    def close(self) -> None:
        """Free the simulator."""
        self._env.close()

    def _begin(self) -> np.ndarray:
        self._began = dict(self._env.np_random.bit_generator.state)
        self._actions, self._running = [], True
        return self._env.reset()[0]

    def _shifted(self, plain: np.ndarray) -> np.ndarray:
        """An observation as the agent sees it, float32."""
        task = self.steps // self.problem.period_steps
        if task != self._task:
            assert self._seed is not None, "an observation comes after reset(seed=...)"
            self._task = task
            self._vector = draw_shift(self._seed, task, len(self._vector), self.problem.shift_std)
        return (np.asarray(plain, np.float64) + self._vector).astype(np.float32)

    def _check(self, action: Any) -> int:
        if not self._running:
            raise ValueError("ShiftingWorld: no episode is running; call reset before the next step.")
        given = np.asarray(action)
        if given.shape != () or given.dtype.kind not in "iu" or not 0 <= int(given) < self.problem.outputs:
            raise ValueError(
                f"{self.problem.environment}: expected an action from 0 to {self.problem.outputs - 1}, a whole number; "
                f"got {action!r}."
            )
        return int(given)
