"""Does PPO learn to walk? PPO and Continual PPO on the standard Ant in PyBullet, some seeds each.

For every run: the mean return, reward per step and length of the first 25 and of the last 25 episodes.

    python benchmarks/ant_learning.py [--steps 300000] [--seeds 3] [--jobs 2]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time

import numpy as np
from overhead import with_allocator_settings
from rl import make_training

METHODS = ("PPO", "Continual PPO")
EPISODES = 25
BAR = 1.8


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    with_allocator_settings()
    wanted = [(method, seed, arguments.steps) for method in METHODS for seed in range(arguments.seeds)]
    print(f"{arguments.steps:,} steps; first {EPISODES} episodes -> last {EPISODES}", flush=True)
    found: dict[str, list[np.ndarray]] = {method: [] for method in METHODS}
    with multiprocessing.get_context("spawn").Pool(arguments.jobs, maxtasksperchild=1) as pool:
        for method, seed, values, seconds in pool.imap_unordered(learn, wanted):
            found[method].append(values)
            show(f"{method}, seed {seed}", values, f"  {arguments.steps / seconds:,.0f} steps/s")
    for method, runs in found.items():
        mean = np.mean(runs, axis=0)
        met = mean[1, 0] >= BAR * mean[0, 0] and mean[1, 1] > mean[0, 1] and mean[1, 2] >= mean[0, 2]
        show(
            f"{method}, mean of {len(runs)}",
            mean,
            f"  bar {BAR}, rewards up, not shorter: {'met' if met else 'MISSED'}",
        )


def learn(wanted: tuple[str, int, int]) -> tuple[str, int, np.ndarray, float]:
    """One run: return, reward per step and length of its first and of its last episodes, (2, 3)."""
    from neoteny.suite.environment import set_deterministic

    set_deterministic()
    method, seed, steps = wanted
    training = make_training(method, seed)
    rewards, ends = [], []
    act = training._act

    def listen(count: int):
        experience, frictions = act(count)
        rewards.append(experience.rewards.numpy())
        ends.append(experience.ended.numpy())
        return experience, frictions

    training._act = listen
    start = time.perf_counter()
    while training.updates < steps:
        training._iterate()
    seconds = time.perf_counter() - start
    last = np.flatnonzero(np.concatenate(ends))
    returns = np.diff(np.cumsum(np.concatenate(rewards))[last], prepend=0.0)
    lengths = np.diff(last + 1, prepend=0)
    parts = [(returns[part].mean(), returns[part].sum() / lengths[part].sum(), lengths[part].mean()) for part in PARTS]
    return method, seed, np.array(parts), seconds


PARTS = (slice(None, EPISODES), slice(-EPISODES, None))


def show(name: str, values: np.ndarray, rest: str) -> None:
    """One row."""
    (first, first_reward, first_length), (last, last_reward, last_length) = values
    print(
        f"  {name:<24} return {first:7.1f} -> {last:7.1f} ({last / first:.2f}x)   per step {first_reward:.3f} -> "
        f"{last_reward:.3f}   length {first_length:.0f} -> {last_length:.0f}{rest}",
        flush=True,
    )


if __name__ == "__main__":
    main()
