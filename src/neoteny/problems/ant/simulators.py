"""The simulators of the Ant: their names, what has to be installed for them, and what they have in common.

The two are different problems, with other bodies, observations and rewards: their returns must never be compared.
Before this: `pybullet.py` and `mujoco.py`; after it: `problem.py` describes the problem, `env.py` makes environments.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from neoteny.problems.ant.mujoco import MujocoAnt
from neoteny.problems.ant.pybullet import BulletAnt
from neoteny.problems.data.files import DataError
from neoteny.text import nearest


class Ant(Protocol):
    """One simulated Ant."""

    observations: ClassVar[int]
    """Values of an observation."""
    bound: ClassVar[float]
    """The largest absolute value in an observation."""
    standard_friction: ClassVar[float]
    """The friction of the model file."""
    step_seconds: ClassVar[float]
    """Simulated time of a step."""
    friction: float
    """The friction in force."""

    def build(self) -> None:
        """Build a new world at standard friction; the previous one has no effect on what follows."""
        ...

    def set_friction(self, friction: float) -> None:
        """Set the friction from the next step on."""
        ...

    def reset(self, generator: np.random.Generator) -> np.ndarray:
        """Start an episode; its first observation, float32."""
        ...

    def step(self, action: Sequence[float]) -> tuple[np.ndarray, float, bool]:
        """Observation, reward (not finite where the simulator blew up) and whether the Ant fell."""
        ...

    def state(self) -> dict[str, Any]:
        """The state, complete enough to continue from it, as numbers and lists."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Rebuild the world and bring it to a state; what follows depends on that state alone."""
        ...

    def render(self) -> np.ndarray:
        """A picture, uint8 (height, width, 3)."""
        ...

    def close(self) -> None:
        """Free the simulator; may be called more than once."""
        ...


@dataclass(frozen=True)
class Simulator:
    """A simulator of the Ant.

    Args:
        name: of the package and of the extra that installs it.
        oldest: the oldest version that works.
        ant: the class of its Ants.
    """

    name: str
    oldest: str
    ant: type[Ant]

    def require(self) -> None:
        """Check that the simulator and gymnasium are installed.

        Raises:
            DataError: one is missing or too old; the message names the extra to install.
        """
        remedy = f'Run: pip install "neoteny[{self.name}]"'
        for package in ("gymnasium", self.name):
            if importlib.util.find_spec(package) is None:
                raise DataError(f"The Slippery Ant in {self.name} needs the package {package}, not installed. {remedy}")
        if _numbers(self.version) < _numbers(self.oldest):
            raise DataError(f"Expected {self.name} of at least version {self.oldest}; found {self.version}. {remedy}")

    @property
    def version(self) -> str:
        """The version that is installed."""
        return importlib.metadata.version(self.name)


SIMULATORS: dict[str, Simulator] = {
    "pybullet": Simulator("pybullet", "3.2.7", BulletAnt),
    "mujoco": Simulator("mujoco", "3.17", MujocoAnt),
}
"""Every simulator, by name."""


def find_simulator(name: str) -> Simulator:
    """The simulator of this name."""
    if isinstance(name, str) and name in SIMULATORS:
        return SIMULATORS[name]
    hint = nearest(str(name).lower(), SIMULATORS)
    raise ValueError(f"simulator must be one of {', '.join(map(repr, SIMULATORS))}; got {name!r}.{hint}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
