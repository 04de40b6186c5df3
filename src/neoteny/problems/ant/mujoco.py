"""The Ant in MuJoCo: the body and reward of gymnasium's Ant-v5, many at a time, stepped by MuJoCo's own threads.

The model is gymnasium's file "ant.xml"; a step is five substeps of 0.01 s. An observation has 27 values: position
without x and y (13: height, orientation, joints) and velocity (14). That is Ant-v5 without contact forces in the
observation; their cost in the reward, which is hardly more than a constant, is left out too:

    reward = speed along x + 1 while healthy (height in [0.2, 1]) - 0.5 sum a^2;   not healthy: the end.

An episode starts with Ant-v5's noise: uniform within 0.1 on positions, normal with deviation 0.1 on velocities.

Friction of a contact is the larger of both geoms', so that the friction of a task is set on every geom, the floor's
included; it is the sliding component, whose standard value is 1. The cone is elliptic: with the pyramidal one of the
model file the Ant sinks through the floor where friction is 10 or more. In this alone the physics differs from Ant-v5.

Before this: nothing of ours; after it: `simulators.py` lists it, `env.py` drives one, `vector_env.py` many.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from neoteny.problems.data.files import DataError

_SUBSTEPS = 5
_STANDARD_FRICTION = 1.0
_HEALTHY = (0.2, 1.0)
_NOISE = 0.1


def find_model() -> Path:
    """The model file of Ant-v5, which comes with gymnasium."""
    spec = importlib.util.find_spec("gymnasium")
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / "envs" / "mujoco" / "assets" / "ant.xml"
        if path.is_file():
            return path
    raise DataError(
        "Expected the Ant's model, envs/mujoco/assets/ant.xml, in gymnasium's folder; it is not there. "
        'Run: pip install --force-reinstall "neoteny[mujoco]"'
    )


def _import_mujoco() -> Any:
    """MuJoCo, whose names type checkers do not see."""
    return importlib.import_module("mujoco")


class MujocoAnts:
    """Any number of Ants, each with its own friction; results do not depend on how many there are, nor on threads.

    Args:
        count: of Ants.
        threads: that step them; 0 for as many as there are processors.

    Attributes:
        friction: in force, (count,); changed with `set_friction`.
    """

    def __init__(self, count: int, threads: int = 1) -> None:
        mujoco, batch = _import_mujoco(), importlib.import_module("mujoco.batch")
        model = mujoco.MjModel.from_xml_path(str(find_model()))
        model.opt.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
        self.batch = batch.Batch(model, count, threads)
        self._no_stage = int(mujoco.mjtStage.mjSTAGE_NONE)
        self._first_position = model.qpos0.copy()
        self._step_seconds = model.opt.timestep * _SUBSTEPS
        self._position, self._velocity = self.batch.bind("qpos"), self.batch.bind("qvel")
        self._control = self.batch.bind("ctrl")
        self._places = self.batch.bind("xpos")[:, 1, 0]  # x of the torso
        self._sliding = self.batch.expand("geom_friction")[:, :, 0]
        unstable = ("mjWARN_BADQPOS", "mjWARN_BADQVEL", "mjWARN_BADQACC", "mjWARN_BADCTRL")
        first = min(int(getattr(mujoco.mjtWarning, name)) for name in unstable)
        self._warnings = self.batch.warning[:, first : first + len(unstable), 1]
        self._x = np.zeros(count)
        self.friction = np.empty(count)
        self.set_friction(range(count), _STANDARD_FRICTION)

    def set_friction(self, numbers: Sequence[int], friction: float) -> None:
        """Set the friction of all geoms of these Ants, from their next step on."""
        chosen = list(numbers)
        self._sliding[chosen] = friction
        self.friction[chosen] = friction

    def reset(self, numbers: Sequence[int], generators: Sequence[np.random.Generator]) -> None:
        """Start an episode of these Ants, one generator each."""
        chosen = np.asarray(numbers, dtype=np.int32)
        self._clear(chosen)
        for number, generator in zip(numbers, generators, strict=True):
            positions = self._first_position.shape[0]
            self._position[number] = self._first_position + generator.uniform(-_NOISE, _NOISE, positions)
            self._velocity[number] = _NOISE * generator.standard_normal(self._velocity.shape[1])
        self.batch.forward(chosen)
        self._x[chosen] = self._places[chosen]

    def step(self, actions: np.ndarray, numbers: Sequence[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Rewards and whether each fell, both (count,), after 0.05 s of these actions (count, 8) in [-1, 1].

        Args:
            actions: of all Ants.
            numbers: of the Ants that step, in rising order; None for all. The others' rewards mean nothing.
        """
        self._control[...] = actions
        self.batch.step(None if numbers is None else np.asarray(numbers, dtype=np.int32), _SUBSTEPS)
        speed = (self._places - self._x) / self._step_seconds
        self._x[...] = self._places
        height = self._position[:, 2]
        healthy = (height >= _HEALTHY[0]) & (height <= _HEALTHY[1])
        rewards = speed + healthy - 0.5 * np.square(actions).sum(-1)
        return rewards, ~healthy

    def observe(self) -> np.ndarray:
        """Observations of all Ants, float32 (count, 27)."""
        return np.concatenate((self._position[:, 2:], self._velocity), axis=-1, dtype=np.float32)

    def broken(self) -> np.ndarray:
        """Which Ants blew up in their episode, (count,): MuJoCo starts such ones again by itself and takes note."""
        return self._warnings.any(-1)

    def state(self, number: int) -> dict[str, Any]:
        """The state of one Ant, complete enough to continue from it, as numbers and lists."""
        return {
            "time": float(self.batch.bind("time")[number]),
            "position": self._position[number].tolist(),
            "velocity": self._velocity[number].tolist(),
            "warm_start": self.batch.bind("qacc_warmstart")[number].tolist(),
            "x": float(self._x[number]),
            "friction": float(self.friction[number]),
        }

    def restore(self, number: int, state: dict[str, Any]) -> None:
        """Bring an Ant to a state, all of what MuJoCo keeps of it between steps."""
        self._clear(np.array([number], dtype=np.int32))
        self.batch.bind("time")[number] = state["time"]
        self._position[number] = state["position"]
        self._velocity[number] = state["velocity"]
        self.batch.bind("qacc_warmstart")[number] = state["warm_start"]
        self._x[number] = state["x"]
        self.set_friction([number], state["friction"])

    def _clear(self, numbers: np.ndarray) -> None:
        self.batch.reset(numbers, stage=self._no_stage)
        self.batch.warning[numbers] = 0


class MujocoAnt:
    """One Ant.

    Attributes:
        friction: the sliding friction of every geom in force.
    """

    observations: ClassVar[int] = 27
    bound: ClassVar[float] = math.inf
    standard_friction: ClassVar[float] = _STANDARD_FRICTION
    step_seconds: ClassVar[float] = 0.05

    def __init__(self) -> None:
        self._ants = MujocoAnts(1)
        self._renderer: Any = None
        self.build()

    def build(self) -> None:
        """Start from nothing; MuJoCo keeps nothing of an Ant that is not in its state."""
        self._ants.restore(0, {**self._ants.state(0), "warm_start": 0.0, "time": 0.0, "friction": _STANDARD_FRICTION})
        self.friction = _STANDARD_FRICTION

    def set_friction(self, friction: float) -> None:
        """Set the friction from the next step on."""
        self._ants.set_friction([0], friction)
        self.friction = friction

    def reset(self, generator: np.random.Generator) -> np.ndarray:
        """Start an episode; its first observation."""
        self._ants.reset([0], [generator])
        return self._ants.observe()[0]

    def step(self, action: Sequence[float]) -> tuple[np.ndarray, float, bool]:
        """Observation, reward (not a number if the simulator blew up) and whether the Ant is not healthy any more."""
        rewards, fell = self._ants.step(np.array([action]))
        reward = math.nan if self._ants.broken()[0] else rewards.item()
        return self._ants.observe()[0], reward, bool(fell[0])

    def state(self) -> dict[str, Any]:
        """The state, complete enough to continue from it, as numbers and lists."""
        return self._ants.state(0)

    def restore(self, state: dict[str, Any]) -> None:
        """Bring the Ant to a state; what follows depends on that state alone."""
        self._ants.restore(0, state)
        self.friction = state["friction"]

    def render(self) -> np.ndarray:
        """The Ant from the side, uint8 (240, 320, 3); needs OpenGL (see MuJoCo's variable MUJOCO_GL)."""
        mujoco = _import_mujoco()
        model, data = self._ants.batch.get_model(0), self._ants.batch.get_data(0)
        mujoco.mj_forward(model, data)
        if self._renderer is None:
            self._renderer = mujoco.Renderer(model, 240, 320)
        self._renderer.update_scene(data, camera="track")
        return self._renderer.render()

    def close(self) -> None:
        """Free the renderer; may be called more than once."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
