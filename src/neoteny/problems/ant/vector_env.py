"""Many Slippery Ants at once, for gymnasium: a batch of MuJoCo, stepped by its own threads, one friction per Ant.

    import neoteny.problems.ant.env
    envs = gymnasium.make_vec("neoteny/SlipperyAnt-v0", num_envs=8, simulator="mujoco")

Each is equal, bit by bit, to a `SlipperyAntEnv` of its seed. An Ant whose episode ended starts the next one in the next
step, as gymnasium's NEXT_STEP mode has it: that step's action is not used, its reward is 0, and it does not count.

PyBullet has no such batch and holds Python's lock while it steps: for it use vectorization_mode="async".
Before this: `env.py` and `mujoco.py`; after it: any agent.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from neoteny.problems.ant.env import ACTIONS
from neoteny.problems.ant.friction import FrictionClock, check_steps
from neoteny.problems.ant.mujoco import MujocoAnts
from neoteny.problems.ant.simulators import find_simulator
from neoteny.problems.problem import SimulationError


class SlipperyAntVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Many Ants on grounds whose friction changes.

    Args:
        num_envs: how many.
        simulator: must be "mujoco". It has no default, because the default of `gymnasium.make` is another problem.
        period_steps, friction_range, first_friction, change, episode_steps: as of `SlipperyAntEnv`.
        threads: that step them; 0 for as many as there are processors. Results do not depend on it.

    Attributes:
        steps, task, friction: of each, (num_envs,).
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": [],
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        simulator: str = "pybullet",
        period_steps: int = 10_000_000,
        friction_range: Sequence[float] = (1e-4, 1e4),
        first_friction: float | None = None,
        change: str = "step",
        episode_steps: int = 1000,
        threads: int = 0,
    ) -> None:
        kind = find_simulator(simulator)
        if simulator != "mujoco":
            raise ValueError(
                f"Many Ants at once are simulated by simulator='mujoco'; got {simulator!r}. For others give "
                "gymnasium.make_vec vectorization_mode='sync' or 'async'."
            )
        check_steps("num_envs", num_envs)
        check_steps("episode_steps", episode_steps)
        first = kind.ant.standard_friction if first_friction is None else first_friction
        self._clocks = [FrictionClock(period_steps, friction_range, first, change) for _ in range(num_envs)]
        kind.require()
        self.num_envs, self.simulator, self.episode_steps = num_envs, simulator, episode_steps
        self.single_observation_space = Box(-kind.ant.bound, kind.ant.bound, (kind.ant.observations,), np.float32)
        self.single_action_space = Box(-1.0, 1.0, (ACTIONS,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._ants = MujocoAnts(num_envs, threads)
        self._generators: list[np.random.Generator] = []
        self._episode_steps = np.zeros(num_envs, dtype=np.int64)
        self._ended = np.zeros(num_envs, dtype=bool)

    @property
    def steps(self) -> np.ndarray:
        return np.array([clock.steps for clock in self._clocks])

    @property
    def task(self) -> np.ndarray:
        return np.array([clock.task for clock in self._clocks])

    @property
    def friction(self) -> np.ndarray:
        return np.array([clock.friction for clock in self._clocks])

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode of all Ants; with seeds (s means s, s + 1, ...) restart everything."""
        self._refuse_closed()
        if options and "reset_mask" in options:
            raise ValueError("Ants start new episodes by themselves: reset_mask is not one of the options.")
        if seed is None and not self._generators:
            seed = secrets.randbelow(2**31)
        if seed is not None:
            seeds = [seed + number for number in range(self.num_envs)] if isinstance(seed, int) else list(seed)
            if len(seeds) != self.num_envs:
                raise ValueError(f"Expected {self.num_envs} seeds, one for each Ant; got {len(seeds)}.")
            for clock, one in zip(self._clocks, seeds, strict=True):
                clock.start(one)
            self._generators = [np.random.Generator(np.random.PCG64(np.random.SeedSequence(one))) for one in seeds]
        self._begin(range(self.num_envs))
        self._ended[:] = False
        return self._ants.observe(), self._info()

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Observations, rewards, terminations, truncations, and the frictions and tasks.

        Raises:
            SimulationError: an action is not finite, or a simulation blew up.
        """
        self._refuse_closed()
        given = np.asarray(actions, dtype=np.float64)
        if given.shape != self.action_space.shape:
            raise ValueError(f"Expected actions of shape {self.action_space.shape}; got {given.shape}.")
        if not self._generators:
            raise RuntimeError("Call reset before the first step.")
        going = ~self._ended
        numbers = np.flatnonzero(going).tolist()
        self._refuse(
            numbers,
            [bool(np.isfinite(row).all()) for row in given],
            "has an action that is not finite; has the policy diverged?",
        )
        for number in numbers:
            self._clocks[number].enter_step()
            self._set_friction(number)
        rewards, fell = self._ants.step(given.clip(-1.0, 1.0), None if going.all() else numbers)
        self._refuse(numbers, (~self._ants.broken()).tolist(), "blew up: its state is not finite.")
        for number in numbers:
            self._clocks[number].steps += 1
        self._episode_steps[going] += 1
        rewards[self._ended] = 0.0
        terminated = fell & going
        truncated = (self._episode_steps >= self.episode_steps) & going & ~terminated
        if self._ended.any():
            self._begin(np.flatnonzero(self._ended).tolist())
        self._ended = terminated | truncated
        return self._ants.observe(), rewards, terminated, truncated, self._info()

    def _refuse_closed(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("This environment was closed; make a new one.")

    def _begin(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._clocks[number].enter_episode()
            self._set_friction(number)
            self._episode_steps[number] = 0
        self._ants.reset(numbers, [self._generators[number] for number in numbers])

    def _set_friction(self, number: int) -> None:
        friction = self._clocks[number].friction
        if self._ants.friction[number] != friction:
            self._ants.set_friction([number], friction)

    def _refuse(self, numbers: Sequence[int], fit: Sequence[bool], what: str) -> None:
        for number in numbers:
            if not fit[number]:
                step = self._clocks[number].steps
                raise SimulationError(f"Ant {number} of {self.num_envs}, at its step {step:,}, {what}")

    def _info(self) -> dict[str, Any]:
        everyone = np.ones(self.num_envs, dtype=bool)
        return {"friction": self.friction, "_friction": everyone, "task": self.task, "_task": everyone.copy()}
