"""The Slippery Ant: a robot learns to walk on a ground whose friction changes from task to task.

The paper's reinforcement-learning problem (Appendix C). A task is `period_steps` actions long. The first task has the
simulator's standard friction; every later one draws its friction log-uniformly from `friction_range`, by the run's seed
alone. The agent is not told of changes; episodes end after `episode_steps` actions (a truncation) or when the Ant falls
(a termination). The two simulators are different problems whose returns must not be compared.

This is the description, which needs neither simulator nor gymnasium until it is opened. Before this: `friction.py` and
`simulators.py`; after it: `env.py` makes the environments, in which the agents of `suite/rl/` act.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from neoteny.problems.ant.friction import check_change, check_first, check_range
from neoteny.problems.ant.simulators import find_simulator
from neoteny.problems.problem import Problem, Worlds
from neoteny.text import check_whole

if TYPE_CHECKING:
    from neoteny.problems.ant.env import SlipperyAntEnv

LATER_VERSION: dict[str, Any] = {"simulator": "mujoco", "friction_range": (0.02, 2.0), "period_steps": 2_000_000}
"""Options of `SlipperyAnt` and `SlipperyAntEnv` for the problem as a later version of the work has it."""


@dataclass(frozen=True)
class SlipperyAnt(Problem):
    """Walking on a ground whose friction changes every 10 million steps.

    Args:
        tasks: frictions.
        simulator: "pybullet" (the paper's) or "mujoco".
        period_steps: actions between two changes.
        friction_range: lowest and highest friction, both above 0.
        first_friction: of the first task; None for the simulator's standard value (1.5 in PyBullet, 1 in MuJoCo).
        change: "step" to change friction exactly after `period_steps`, mid-episode; "episode" to wait for the start of
            the next episode.
        episode_steps: after which an episode is cut off.
    """

    tasks: int = 10
    simulator: str = "pybullet"
    period_steps: int = 10_000_000
    friction_range: tuple[float, float] = (1e-4, 1e4)
    first_friction: float | None = None
    change: str = "step"
    episode_steps: int = 1000

    performance: ClassVar[str] = "return"
    control: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole(self, tasks=1, period_steps=1, episode_steps=1)
        try:
            find_simulator(self.simulator)
            check_first(self.first_friction)
            check_change(self.change)
            object.__setattr__(self, "friction_range", check_range(self.friction_range))
        except ValueError as error:
            raise ValueError(f"SlipperyAnt: {error}") from None
        if self.period_steps < self.episode_steps:
            raise ValueError(
                f"SlipperyAnt: period_steps must be at least episode_steps ({self.episode_steps:,}), so that every "
                f"task sees the end of an episode; got {self.period_steps:,}."
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (find_simulator(self.simulator).ant.observations,)

    @property
    def outputs(self) -> int:
        return 8

    @property
    def steps_per_task(self) -> int:
        return self.period_steps

    def open(self, data: Path | str | None = None) -> AntWorlds:
        """Check that gymnasium and the simulator are installed; no data is needed.

        Raises:
            DataError: one is not; the message names the extra to install.
        """
        find_simulator(self.simulator).require()
        return AntWorlds(self)


@dataclass
class AntWorlds(Worlds):
    """Environments of one description."""

    problem: SlipperyAnt

    def __post_init__(self) -> None:
        simulator = find_simulator(self.problem.simulator)
        self.fingerprint = f"{simulator.name} {simulator.version}"

    def make(self, seed: int) -> SlipperyAntEnv:
        """An environment; `reset(seed=seed)` starts it."""
        from neoteny.problems.ant.env import SlipperyAntEnv

        problem = self.problem
        return SlipperyAntEnv(
            simulator=problem.simulator,
            period_steps=problem.period_steps,
            friction_range=problem.friction_range,
            first_friction=problem.first_friction,
            change=problem.change,
            episode_steps=problem.episode_steps,
        )
