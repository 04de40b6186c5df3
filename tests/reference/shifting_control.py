"""Control with shifted observations, naively: the stock environment, one step at a time.

Step t (from 0) belongs to task t // period. The observation that the agent acts on at step t is the environment's plus
the vector of that task: zeros in task 0, then normal numbers with a standard deviation. Episodes are cut at a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import philox


def shift(seed: int, task: int, size: int, std: float) -> np.ndarray:
    """The vector of a task."""
    if task == 0:
        return np.zeros(size)
    return std * philox.normal(seed, 0, "control.shift", task, size)


def go(
    env: Any, seed: int, choose: Callable[[int, np.ndarray], int], steps: int, period: int, limit: int, std: float
) -> list[tuple[np.ndarray, int, float, bool, bool]]:
    """Steps as (observation acted on, action, reward, terminated, truncated)."""
    found = []
    plain, _ = env.reset(seed=seed)
    age = 0
    for step in range(steps):
        seen = (np.asarray(plain, np.float64) + shift(seed, step // period, len(plain), std)).astype(np.float32)
        action = choose(step, seen)
        plain, reward, terminated, _, _ = env.step(action)
        age += 1
        truncated = not terminated and age == limit
        found.append((seen, action, float(reward), bool(terminated), truncated))
        if terminated or truncated:
            plain, _ = env.reset()
            age = 0
    return found
