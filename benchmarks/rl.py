"""Steps per second of the Slippery Ant and of PPO in it, on one core and on two, in one run.

- the environment alone, ours over the stock one of `pybullet_envs_gymnasium`, both without wrappers: the same actions
  in alternating blocks, resets included;
- Continual PPO from end to end (acting, learning, recording, rebuilding the world) with the paper's settings, and its
  cost over PPO, iteration by iteration in turns, past the maturity threshold;
- two seeds in two processes over one seed in one.

    python benchmarks/rl.py [--blocks 9] [--iterations 8] [--processes]

Numbers are medians over blocks. One torch thread per process, as in the suite.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np
from overhead import with_allocator_settings

BLOCK_STEPS = 1000
BARS = {"environment": 1.7, "continual": 1900.0 / 2000.0, "overhead": 1.12, "processes": 1.85}
"""`continual`: 1,900 steps/s where the stock environment alone gives 2,000; machines differ, so the ratio counts."""


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=9, help="blocks of 1,000 steps of each environment")
    parser.add_argument("--iterations", type=int, default=8, help="iterations of 4,096 steps of each method")
    parser.add_argument("--processes", action="store_true", help="only two processes over one")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    with_allocator_settings()
    from neoteny.suite.environment import set_deterministic

    set_deterministic()
    if arguments.worker is not None:
        work(arguments.worker, arguments.iterations)
        return
    print(f"{os.cpu_count()} cores; steps per second, median (best)", flush=True)
    if not arguments.processes:
        stock = compare_environments(arguments.blocks)
        compare_methods(arguments.iterations, stock)
    compare_processes(arguments.iterations)


def compare_environments(blocks: int) -> float:
    """Ours over the stock one, MuJoCo's for the record; the stock one's steps per second."""
    import gymnasium
    import pybullet_envs_gymnasium  # noqa: F401  registers

    from neoteny.problems.ant.env import SlipperyAntEnv

    sides: dict[str, Any] = {
        "PyBullet, stock": gymnasium.make("AntBulletEnv-v0").unwrapped,
        "PyBullet, ours": SlipperyAntEnv(),
        "MuJoCo, ours": SlipperyAntEnv(simulator="mujoco"),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    actions = np.random.default_rng(0).uniform(-1, 1, (BLOCK_STEPS, 8)).astype(np.float32)
    for environment in sides.values():
        environment.reset(seed=0)
        take_steps(environment, actions)  # not counted
    for _ in range(blocks):
        for name, environment in sides.items():
            start = time.perf_counter()
            take_steps(environment, actions)
            times[name].append(time.perf_counter() - start)
    for name, found in times.items():
        show(f"environment, {name}", found, BLOCK_STEPS)
    ratio = median_ratio(times["PyBullet, stock"], times["PyBullet, ours"])
    judge("environment, PyBullet: ours over the stock one", ratio, BARS["environment"])
    return BLOCK_STEPS / statistics.median(times["PyBullet, stock"])


def take_steps(environment: Any, actions: np.ndarray) -> None:
    """Steps with these actions, and resets where an episode ends (the stock environment has no limit of its own)."""
    for number, action in enumerate(actions):
        _, _, terminated, truncated, _ = environment.step(action)
        if terminated or truncated or number == len(actions) - 1:
            environment.reset()


def make_training(method: str, seed: int) -> Any:
    """PPO, or Continual PPO, at its start."""
    from neoteny.methods import Adam, ContinualBackprop
    from neoteny.nets import ActorCritic
    from neoteny.problems import SlipperyAnt
    from neoteny.suite.rl.ppo import PPO
    from neoteny.suite.stacks import PlannedStack, runs_of
    from neoteny.suite.sweep import Setting, Sweep, network

    after = {
        "PPO": (),
        "Continual PPO": (ContinualBackprop(1e-4, maturity_threshold=500),),
        "Continual PPO, 10 times the rate": (ContinualBackprop(1e-3, maturity_threshold=100),),
    }
    setting = Setting(method, network(ActorCritic), (Adam(1e-4), *after[method]), agent=PPO())
    sweep = Sweep(SlipperyAnt(), (setting,), runs=seed + 1)
    run = runs_of(sweep, sweep.settings, "cpu")[seed]
    return PPO().train(PlannedStack(sweep, (run,)), SlipperyAnt().open())


def compare_methods(iterations: int, stock: float) -> None:
    """PPO and Continual PPO in turns, after two iterations (640 updates) that are not counted."""
    names = ("PPO", "Continual PPO", "Continual PPO, 10 times the rate")
    trainings = {name: make_training(name, 0) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(iterations + 2):
        for name, training in trainings.items():
            start = time.perf_counter()
            training._iterate()
            if number >= 2:
                times[name].append(time.perf_counter() - start)
    steps = trainings["PPO"]._iteration_steps
    for name, found in times.items():
        show(name, found, steps)
        counts = trainings[name]._learner.stack.replaced
        if counts:
            print(f"    units replaced: {int(sum(int(count) for count in counts.values()))}")
    rate = steps / statistics.median(times["Continual PPO"])
    judge("Continual PPO over the stock environment alone", rate / stock, BARS["continual"])
    for name in names[1:]:
        bar = BARS["overhead"] if name == "Continual PPO" else None
        judge(f"{name}, time over PPO's", median_ratio(times[name], times["PPO"]), bar, at_most=True)


def compare_processes(iterations: int) -> None:
    """One seed alone, then two at once, in turns."""
    alone, together = [], []
    for _ in range(3):
        alone.append(sum(run_processes(1, iterations)))
        together.append(sum(run_processes(2, iterations)))
    print(f"  one process: {', '.join(f'{rate:,.0f}' for rate in alone)} steps/s")
    print(f"  two processes: {', '.join(f'{rate:,.0f}' for rate in together)} steps/s together")
    judge("two seeds on two cores over one", statistics.median(together) / statistics.median(alone), BARS["processes"])


def run_processes(count: int, iterations: int) -> list[float]:
    """Steps per second of each process; they begin together, when all are ready."""
    command = [sys.executable, __file__, "--iterations", str(iterations), "--worker"]
    workers = [
        subprocess.Popen([*command, str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for seed in range(count)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    return [float(worker.communicate()[0]) for worker in workers]


def work(seed: int, iterations: int) -> None:
    """A process of `run_processes`."""
    training = make_training("Continual PPO", seed)
    training._iterate()
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    for _ in range(iterations):
        training._iterate()
    print(iterations * training._iteration_steps / (time.perf_counter() - start))


def median_ratio(first: list[float], second: list[float]) -> float:
    """The median over blocks of the one's time over the other's in the same turn."""
    return statistics.median(one / other for one, other in zip(first, second, strict=True))


def show(name: str, times: list[float], steps: int) -> None:
    """One row."""
    print(f"  {name:<48} {steps / statistics.median(times):>8,.0f} ({steps / min(times):,.0f})", flush=True)


def judge(name: str, value: float, bar: float | None, at_most: bool = False) -> None:
    """One row with its bar."""
    text = f"  {name:<48} {value:>8,.2f}"
    if bar is not None:
        met = value <= bar if at_most else value >= bar
        text += f"   bar {'at most' if at_most else 'at least'} {bar:,g}: {'met' if met else 'MISSED'}"
    print(text, flush=True)


if __name__ == "__main__":
    main()
