"""The Ant in PyBullet: the packaged model, driven directly, with the observation and reward of the stock environment.

The floor and the body are those of `pybullet_data` ("plane_stadium.sdf", "mjcf/ant.xml"), loaded with the flags, time
step (0.0165 s in four substeps), solver iterations and contact parameters of the bundled gym environments. They
ask PyBullet link by link; this file needs few calls per step. Observation and reward agree with theirs to rounding as
long as the physics does. An observation has 28 values, clipped to +-5:

    0        height of the torso above its height at the start of the episode
    1, 2     sine and cosine of the angle between heading and target
    3 - 5    velocity of the torso, forward, sideways and up, times 0.3
    6, 7     roll and pitch
    8 - 23   of each joint: its position, -1 and 1 at its limits, and its speed times 0.1
    24 - 27  whether each foot touched the floor *after the step before* (the stock environment reads contacts last)

    reward = alive (+1 above 0.26 m, else -1 and the end) + progress - 2 mean |a * 0.1 * speed| - 0.1 mean a^2
             - 0.1 for each joint within 1% of a limit,

where progress is what the distance to a target 1 km ahead shrank by, divided by 0.0165 s. That distance is measured
from the mean position of all parts. The stock environment counts the floor, which stays at the origin, as one of its 22
parts from the second episode on (and in the first episode from its first step on), so that progress is 21/22 of the
true one; here the floor is counted always, so that all episodes are alike.

Friction of a contact is the product of both bodies' lateral friction, at most 10. The floor keeps 0.8; the friction of
a task is set on every link of the Ant, whose standard value is 1.5. Above 12.5 nothing changes any more.

Before this: nothing of ours; after it: `simulators.py` lists it, `env.py` makes an environment of it.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np

_STEP_SECONDS = 0.0165
_LEGS = ("front_left", "front_right", "left_back", "right_back")
_HEIGHT = 0.75  # of the torso in the model file
_LOWEST = 0.26  # the torso is a sphere of radius 0.25: below this it scrapes the floor
_TORQUE = 250.0
_TARGET = 1000.0


def _import_pybullet() -> Any:
    """PyBullet; the line that it prints on import, when it was built, is dropped."""
    if "pybullet" in sys.modules:
        return sys.modules["pybullet"]
    _flush()
    try:
        kept = (os.dup(1), os.dup(2))
    except OSError:  # a process that has closed them has nobody to read the line
        import pybullet

        return pybullet
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in (1, 2):
            os.dup2(nowhere, number)
        import pybullet
    finally:
        _flush()
        for number, file in zip((1, 2), kept, strict=True):
            os.dup2(file, number)
            os.close(file)
        os.close(nowhere)
    return pybullet


def _flush() -> None:
    """Write out what Python and the C library hold back."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.flush()
    with suppress(OSError, TypeError, AttributeError):  # where ctypes cannot reach the C library
        ctypes.CDLL(None).fflush(None)


class BulletAnt:
    """One Ant in a physics client of its own; several may live in one process.

    Attributes:
        friction: the lateral friction of the Ant in force.
    """

    observations: ClassVar[int] = 28
    bound: ClassVar[float] = 5.0
    standard_friction: ClassVar[float] = 1.5
    step_seconds: ClassVar[float] = _STEP_SECONDS

    def __init__(self) -> None:
        self._bullet = _import_pybullet()
        import pybullet_data

        self._data = pybullet_data.getDataPath()
        self._client = self._bullet.connect(self._bullet.DIRECT)
        if self._client < 0:
            raise RuntimeError("PyBullet gave no physics client; it has at most 1024 in one process: close some.")
        self._disconnect = weakref.finalize(self, self._bullet.disconnect, self._client)
        self.build()

    def build(self) -> None:
        """Build a new world; the previous one has no effect on what follows."""
        bullet, client = self._bullet, self._client
        bullet.resetSimulation(physicsClientId=client)
        bullet.setPhysicsEngineParameter(deterministicOverlappingPairs=1, physicsClientId=client)
        bullet.setGravity(0, 0, -9.8, physicsClientId=client)
        bullet.setDefaultContactERP(0.9, physicsClientId=client)
        bullet.setPhysicsEngineParameter(
            fixedTimeStep=_STEP_SECONDS, numSolverIterations=5, numSubSteps=4, physicsClientId=client
        )
        (self._floor,) = bullet.loadSDF(os.path.join(self._data, "plane_stadium.sdf"), physicsClientId=client)
        bullet.changeDynamics(self._floor, -1, lateralFriction=0.8, restitution=0.5, physicsClientId=client)
        flags = (
            bullet.URDF_USE_SELF_COLLISION
            | bullet.URDF_USE_SELF_COLLISION_EXCLUDE_ALL_PARENTS
            | bullet.URDF_GOOGLEY_UNDEFINED_COLORS
        )
        (self._body,) = bullet.loadMJCF(
            os.path.join(self._data, "mjcf", "ant.xml"), flags=flags, physicsClientId=client
        )
        self._links = bullet.getNumJoints(self._body, physicsClientId=client)
        joints = [bullet.getJointInfo(self._body, link, physicsClientId=client) for link in range(self._links)]
        numbers = {joint[12].decode(): joint[0] for joint in joints}
        hinges = [joint for joint in joints if joint[2] == bullet.JOINT_REVOLUTE]
        self._joints = [hinge[0] for hinge in hinges]
        # slope and offset that bring a joint's limits to -1 and 1
        self._scales = [
            (2.0 / (hinge[9] - hinge[8]), -2.0 * hinge[8] / (hinge[9] - hinge[8]) - 1.0) for hinge in hinges
        ]
        self._feet = [numbers[f"{leg}_foot"] for leg in _LEGS]
        knees = [foot - 1 for foot in self._feet]  # links without a body of their own, numbered before what they carry
        self._marks = [numbers["front_left_leg"], numbers["left_back_leg"], *knees, *self._feet]
        self._set_motors(bullet.POSITION_CONTROL, [0.0] * len(self._joints))
        self.set_friction(self.standard_friction)
        self._contacts = [0.0] * len(self._feet)
        self._first_height = self._height = self._potential = 0.0

    def set_friction(self, friction: float) -> None:
        """Set the lateral friction of every link of the Ant, from the next step on."""
        for link in range(-1, self._links):
            self._bullet.changeDynamics(self._body, link, lateralFriction=friction, physicsClientId=self._client)
        self.friction = friction

    def reset(self, generator: np.random.Generator) -> np.ndarray:
        """Start an episode: the Ant at rest in the air, joints within 0.1 of 0; the first observation."""
        positions = generator.uniform(-0.1, 0.1, len(self._joints)).tolist()
        self._place((0.0, 0.0, _HEIGHT), (0.0, 0.0, 0.0, 1.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
        self._place_joints(positions, [0.0] * len(positions))
        self._contacts = [0.0] * len(self._feet)
        self._first_height = self._pose()[0][2]
        observation, _ = self._look([0.0] * len(positions))
        return observation

    def step(self, action: Sequence[float]) -> tuple[np.ndarray, float, bool]:
        """Observation, reward and whether the episode is over, after 0.0165 s of these actions in [-1, 1].

        The reward is not finite where the simulator blew up.
        """
        bullet = self._bullet
        self._set_motors(bullet.TORQUE_CONTROL, [_TORQUE * a for a in action])
        bullet.stepSimulation(physicsClientId=self._client)
        before = self._potential
        observation, costs = self._look(action)
        alive = self._height > _LOWEST
        touching = {c[3] for c in bullet.getContactPoints(self._body, self._floor, physicsClientId=self._client)}
        self._contacts = [1.0 if foot in touching else 0.0 for foot in self._feet]
        return observation, (1.0 if alive else -1.0) + (self._potential - before) - costs, not alive

    def _look(self, action: Sequence[float]) -> tuple[np.ndarray, float]:
        """The observation, and what these actions cost; takes note of height and distance. Plain numbers: faster."""
        bullet, body, client = self._bullet, self._body, self._client
        joints = bullet.getJointStates(body, self._joints, physicsClientId=client)
        (vx, vy, vz), _ = bullet.getBaseVelocity(body, physicsClientId=client)
        (x, y, z), orientation = self._pose()
        roll, pitch, yaw = bullet.getEulerFromQuaternion(orientation)

        away_x, away_y = self._way_to_target(x, y)
        self._potential = -math.sqrt(away_x * away_x + away_y * away_y) / _STEP_SECONDS
        self._height = z
        angle = math.atan2(away_y, away_x) - yaw
        cosine, sine = math.cos(yaw), math.sin(yaw)
        values = [
            z - self._first_height,
            math.sin(angle),
            math.cos(angle),
            0.3 * (cosine * vx + sine * vy),
            0.3 * (cosine * vy - sine * vx),
            0.3 * vz,
            roll,
            pitch,
        ]
        power = energy = at_limit = 0.0
        for (position, speed, _, _), (slope, offset), a in zip(joints, self._scales, action, strict=True):
            scaled = slope * position + offset
            values.append(scaled)
            values.append(0.1 * speed)
            power += abs(a * speed)
            energy += a * a
            if not -0.99 <= scaled <= 0.99:
                at_limit += 1.0
        values += self._contacts
        costs = (0.2 * power + 0.1 * energy) / len(joints) + 0.1 * at_limit
        if not math.isfinite(sum(values)):
            costs = math.nan
        observation = np.array(values, dtype=np.float32)
        np.maximum(observation, -5.0, out=observation)
        np.minimum(observation, 5.0, out=observation)
        return observation, costs

    def _way_to_target(self, x: float, y: float) -> tuple[float, float]:
        """From the mean place of all 22 parts to the target, given the torso's place.

        The parts are floor (always at 0), torso, and of each leg the thigh, hip, shin, knee and foot. Thighs and hips
        lie around the torso in a cross, and a shin half-way between hip and knee: so the legs' parts together are 10
        times the middle of two opposite thighs, 1.5 times the knees, and the feet. The torso itself would not do for
        that middle: PyBullet gives links as they were before the last substep.
        """
        links = self._bullet.getLinkStates(self._body, self._marks, physicsClientId=self._client)
        t1, t2, k1, k2, k3, k4, f1, f2, f3, f4 = [link[0] for link in links]
        sum_x = x + 5.0 * (t1[0] + t2[0]) + 1.5 * (k1[0] + k2[0] + k3[0] + k4[0]) + f1[0] + f2[0] + f3[0] + f4[0]
        sum_y = y + 5.0 * (t1[1] + t2[1]) + 1.5 * (k1[1] + k2[1] + k3[1] + k4[1]) + f1[1] + f2[1] + f3[1] + f4[1]
        return _TARGET - sum_x / 22.0, -sum_y / 22.0

    def state(self) -> dict[str, Any]:
        """The state, complete enough to continue from it, as numbers and lists."""
        position, orientation = self._pose()
        velocity, spin = self._bullet.getBaseVelocity(self._body, physicsClientId=self._client)
        joints = self._bullet.getJointStates(self._body, self._joints, physicsClientId=self._client)
        return {
            "position": list(position),
            "orientation": list(orientation),
            "velocity": list(velocity),
            "spin": list(spin),
            "joint_positions": [joint[0] for joint in joints],
            "joint_speeds": [joint[1] for joint in joints],
            "friction": self.friction,
            "first_height": self._first_height,
            "potential": self._potential,
            "contacts": list(self._contacts),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Rebuild the world and bring it to a state; PyBullet's own saved states do not continue bit by bit."""
        self.build()
        self._place(state["position"], state["orientation"], state["velocity"], state["spin"])
        self._place_joints(state["joint_positions"], state["joint_speeds"])
        self.set_friction(state["friction"])
        self._first_height, self._potential = state["first_height"], state["potential"]
        self._contacts = list(state["contacts"])

    def render(self) -> np.ndarray:
        """The Ant from the side, uint8 (240, 320, 3)."""
        bullet = self._bullet
        view = bullet.computeViewMatrixFromYawPitchRoll(self._pose()[0], 3.0, 0.0, -30.0, 0.0, 2)
        projection = bullet.computeProjectionMatrixFOV(60.0, 320 / 240, 0.1, 100.0)
        picture = bullet.getCameraImage(
            320, 240, view, projection, renderer=bullet.ER_TINY_RENDERER, physicsClientId=self._client
        )
        return np.asarray(picture[2], dtype=np.uint8).reshape(240, 320, 4)[:, :, :3].copy()

    def close(self) -> None:
        """Give the physics client back; may be called more than once."""
        self._disconnect()

    def _pose(self) -> tuple[tuple[float, float, float], tuple[float, float, float, float]]:
        return self._bullet.getBasePositionAndOrientation(self._body, physicsClientId=self._client)

    def _set_motors(self, mode: int, forces: list[float]) -> None:
        self._bullet.setJointMotorControlArray(
            self._body, self._joints, mode, forces=forces, physicsClientId=self._client
        )

    def _place(
        self, position: Sequence[float], orientation: Sequence[float], velocity: Sequence[float], spin: Sequence[float]
    ) -> None:
        bullet, client = self._bullet, self._client
        bullet.resetBasePositionAndOrientation(self._body, position, orientation, physicsClientId=client)
        bullet.resetBaseVelocity(self._body, velocity, spin, physicsClientId=client)

    def _place_joints(self, positions: Sequence[float], speeds: Sequence[float]) -> None:
        self._bullet.resetJointStatesMultiDof(
            self._body,
            self._joints,
            [[position] for position in positions],
            [[speed] for speed in speeds],
            physicsClientId=self._client,
        )
