"""Random actions for the Slippery Ant."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # needs gymnasium, which is optional
    from neoteny.problems.ant.env import SlipperyAntEnv

REST = np.zeros(8, dtype=np.float32)


def actions(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1.2, 1.2, (count, 8)).astype(np.float32)


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
