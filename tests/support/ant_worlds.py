"""Made-up results of Slippery Ant: worlds in which every claim holds, and what makes each fail."""

from __future__ import annotations

import functools
import zlib
from itertools import product

import numpy as np
import pandas as pd

from neoteny.experiments.ant.settings import DECAYS, NOISES, PAIRS, points_per_task
from support.experiment_worlds import Change, World

POINTS = points_per_task("paper")
DEPTH = 600.0
"""Of a tooth of the saw: what a return gains over a task, and loses at a change."""
RISING = (1000.0, 1500.0, 2000.0)
FALLING = (2000.0, 1900.0, 1400.0, 900.0, 700.0, 600.0)

METHODS_WORLD = World(
    "return",
    [
        ("PPO", {}, FALLING),
        ("PPO+L2", {"l2": 1e-3}, (2000.0, 1700.0, 1500.0)),
        ("PPO+S&P", {"l2": 1e-3, "noise_std": 1e-5}, (2000.0, 1800.0, 1600.0)),
        ("Continual PPO", {"replacement_rate": 1e-4, "maturity_threshold": 5000}, (2200.0, 2150.0, 2100.0)),
    ],
    tasks=10,
    quiet=10.0,
    loud=20_000.0,
)
UTILITIES_WORLD = World(
    "return",
    [
        ("PPO", {}, FALLING),
        ("Continual PPO", {"utility": "overall"}, (2200.0, 2150.0, 2100.0)),
        ("Continual PPO", {"utility": "mean_corrected_contribution"}, (2150.0, 1900.0, 1500.0)),
    ],
    tasks=10,
    quiet=10.0,
    loud=20_000.0,
)
SWEEP_WORLD = World(
    "return",
    [
        ("PPO", {}, FALLING),
        *(("PPO+L2", {"l2": l2}, (1700.0 if l2 == 1e-4 else 1500.0,)) for l2 in DECAYS),
        *(
            ("PPO+S&P", {"l2": l2, "noise_std": noise}, (1800.0 if noise == 1e-5 else 1400.0,))
            for l2, noise in product(DECAYS, NOISES)
        ),
        *(
            (
                "Continual PPO",
                {"replacement_rate": rate, "maturity_threshold": maturity},
                (2200.0 if maturity == 5000 else 1300.0,),
            )
            for rate, maturity in PAIRS
        ),
    ],
    tasks=10,
    quiet=10.0,
    loud=20_000.0,
)
WORLDS = {"ant-methods": METHODS_WORLD, "ant-utilities": UTILITIES_WORLD, "ant-sweep": SWEEP_WORLD}

# For every claim, what has to be different in its world for it to fail: some curves, or the depth of teeth.
FAILS: dict[str, dict[str, Change | float]] = {
    "ant-methods": {
        "ppo-ends-below-its-first-task": Change({"method": "PPO"}, RISING),
        "ppo-falls-over-tasks": Change({"method": "PPO"}, (2000.0, *np.linspace(500.0, 700.0, 9))),
        "l2-is-better-than-ppo": Change({"method": "PPO+L2"}, (500.0,)),
        "sp-is-better-than-ppo": Change({"method": "PPO+S&P"}, (4000.0, 100.0)),
        "continual-ppo-is-better-than-ppo": Change({"method": "Continual PPO"}, (500.0,)),
        "continual-ppo-is-best": Change({"method": "PPO+S&P"}, (2500.0,)),
        "continual-ppo-almost-keeps-its-performance": Change({"method": "Continual PPO"}, (2200.0, 1500.0)),
        "continual-ppo-loses-a-little": Change({"method": "Continual PPO"}, RISING),
        "continual-ppo-loses-less-than-ppo": Change({"method": "Continual PPO"}, (4000.0, 500.0)),
        "returns-drop-at-changes": -DEPTH,
    },
    "ant-utilities": {
        "both-utilities-beat-ppo": Change({"utility": "mean_corrected_contribution"}, (500.0,)),
        "overall-beats-mean-corrected-contribution": Change({"utility": "mean_corrected_contribution"}, (2500.0,)),
        "above-all-near-the-end": Change({"utility": "mean_corrected_contribution"}, (1500.0, 2000.0)),
        "overall-almost-keeps-its-performance": Change({"utility": "overall"}, (2200.0, 1500.0)),
    },
    "ant-sweep": {
        "each-at-its-best-is-better-than-ppo": Change({"method": "Continual PPO"}, (500.0,)),
        "best-continual-ppo-outperforms-all": Change({"method": "PPO+L2", "l2": 1e-6}, (2500.0,)),
    },
}


def add_curves(frame: pd.DataFrame, depth: float = DEPTH, noise: float = 0.0, points: int = POINTS) -> pd.DataFrame:
    """The frame with "return.curve": in every task a straight rise by `depth` (a noisy one, by run) about its mean."""
    keys = [zlib.crc32(f"{label}/{seed}".encode()) for label, seed in zip(frame["setting"], frame["seed"], strict=True)]
    drawn = {key: depth + noise * np.random.default_rng(key).standard_normal() for key in set(keys)}
    depths = np.array([drawn[key] for key in keys])
    parts = [
        frame.assign(
            metric="return.curve",
            task=frame["task"] * points + point,
            value=frame["value"] + depths * (point / (points - 1) - 0.5),
        )
        for point in range(points)
    ]
    return pd.concat([frame, *parts], ignore_index=True)


@functools.cache
def true_frame(name: str) -> pd.DataFrame:
    return add_curves(WORLDS[name].frame(), points=points_of(name))


def points_of(name: str) -> int:
    """Points a task of the made-up curves; where no claim reads them, a few will do."""
    return POINTS if name == "ant-methods" else 4


def false_frame(name: str, claim: str) -> pd.DataFrame:
    change = FAILS[name][claim]
    if isinstance(change, Change):
        return add_curves(WORLDS[name].frame(change), points=points_of(name))
    return add_curves(WORLDS[name].frame(), depth=change)


@functools.cache
def open_frames(name: str) -> tuple[pd.DataFrame, ...]:
    """Results that decide nothing: much noise, and two runs."""
    points = points_of(name)
    return add_curves(WORLDS[name].hide(), DEPTH, 5000.0, points), add_curves(WORLDS[name].frame(runs=2), points=points)


def undecided_parts(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """Parts of the results on which no claim can be decided but those of `ABOUT_THE_REST`."""
    diverged = frame.assign(value=frame["value"].where(frame["seed"] != 3))
    return [diverged, frame[~frame["method"].isin(["PPO", "Continual PPO"])], frame.iloc[:0]]


ABOUT_THE_REST = ()
