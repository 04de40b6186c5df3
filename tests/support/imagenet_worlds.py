"""Made-up results of Continual ImageNet: worlds in which every claim holds, and what makes each fail."""

from __future__ import annotations

import functools
from itertools import product

import pandas as pd

from neoteny.experiments.imagenet.methods import BEST
from neoteny.experiments.imagenet.sweep import DECAYS, NOISES, RATES
from support.experiment_worlds import Change, Knots, World

RISING = (0.6, 0.7, 0.8, 0.9, 0.95)
FALLING = (0.95, 0.8, 0.7, 0.6, 0.5)

BP_WORLD = World(
    "accuracy",
    [
        ("BP", {"step_size": 0.01}, (0.90, 0.86, 0.82, 0.80, 0.78, 0.757, 0.757, 0.757, 0.757)),
        ("BP", {"step_size": 0.001}, (0.80, 0.82, 0.88, 0.89, 0.87, 0.83, 0.80, 0.785, 0.785)),
        ("BP", {"step_size": 0.0001}, (0.74, 0.78, 0.84, 0.86, 0.86, 0.84, 0.81, 0.79, 0.79)),
        ("BP", {"step_size": 0.003}, (0.88, 0.89, 0.85, 0.82, 0.80, 0.79, 0.78, 0.78, 0.78)),
        ("BP", {"step_size": 0.1}, (0.5,)),
        ("Linear", {"step_size": 0.001}, (0.775,)),
        ("Linear", {"step_size": 0.01}, (0.7,)),
    ],
    tasks=200,
    quiet=0.002,
    loud=0.8,
)
METHODS_WORLD = World(
    "accuracy",
    [
        ("BP", {"step_size": 0.01}, (0.85, 0.80, 0.77)),
        ("BP", {"step_size": 0.001}, (0.80, 0.78, 0.75)),
        ("L2", {"step_size": 0.03, "l2": 3e-6}, (0.85, 0.83, 0.82)),
        ("S&P", {"step_size": 0.01, "l2": 1e-5, "noise_std": 1e-5}, (0.85, 0.85, 0.84)),
        ("CBP", {"step_size": 0.01, "replacement_rate": 3e-4}, (0.86, 0.87, 0.88)),
    ],
    tasks=200,
    quiet=0.002,
    loud=0.8,
    loud_seed=5,
)


def bold(method: str, details: dict[str, float], otherwise: float, level: float) -> tuple[str, dict[str, float], Knots]:
    """A setting of the grid, at `level` if the paper's table prints it in bold."""
    return (method, details, (level if BEST[method] == details else otherwise,))


SWEEP_WORLD = World(
    "accuracy",
    [
        *(
            ("BP", {"step_size": size}, (level,))
            for size, level in ((0.1, 0.6), (0.03, 0.75), (0.01, 0.77), (0.003, 0.7))
        ),
        *(
            bold("L2", {"step_size": size, "l2": l2}, 0.6 if size in (0.1, 0.003) else 0.7, 0.82)
            for size, l2 in product((0.1, 0.03, 0.01, 0.003), DECAYS)
        ),
        *(
            bold("S&P", {"step_size": size, "l2": l2, "noise_std": noise}, 0.7 if noise > 1e-5 else 0.8, 0.85)
            for size, l2, noise in product((0.03, 0.01), DECAYS, NOISES)
        ),
        *(
            bold("CBP", {"step_size": size, "replacement_rate": rate}, 0.86, 0.88)
            for size, rate in product((0.03, 0.01), RATES)
        ),
    ],
    tasks=4,
    quiet=0.002,
    loud=0.5,
)
WORLDS = {"imagenet-bp": BP_WORLD, "imagenet-methods": METHODS_WORLD, "imagenet-sweep": SWEEP_WORLD}

# For every claim, what has to be different in its world for it to fail.
FAILS: dict[str, dict[str, Change]] = {
    "imagenet-bp": {
        "from-89-to-77-percent": Change({"method": "BP"}, (0.8,)),
        "linear-network-at-77-percent": Change({"method": "Linear"}, (0.6,)),
        "accuracy-falls-at-every-step-size": Change({"method": "BP", "step_size": 0.0001}, RISING),
        "the-loss-is-extensive": Change({"method": "BP", "step_size": 0.0001}, RISING),
        "largest-step-size-starts-best": Change({"method": "BP", "step_size": 0.001}, (0.95,)),
        "largest-step-size-falls": Change({"method": "BP", "step_size": 0.01}, RISING),
        "largest-step-size-ends-below-linear": Change({"method": "Linear"}, (0.5,)),
        "small-step-sizes-rise-then-fall": Change({"method": "BP", "step_size": 0.001}, FALLING),
        "small-step-sizes-end-near-linear": Change({"method": "BP", "step_size": 0.001}, RISING),
        "first-tasks-sometimes-improve": Change({"method": "BP"}, FALLING),
        "step-size-0.1-diverges": Change({"method": "BP", "step_size": 0.1}, (0.8,)),
        "intermediate-step-size-follows": Change({"method": "BP", "step_size": 0.003}, RISING),
        "every-step-size-ends-poorly": Change({"method": "BP", "step_size": 0.003}, RISING),
        "step-size-changes-when-the-drop-begins": Change({"method": "BP"}, FALLING),
    },
    "imagenet-methods": {
        "cbp-outperforms-all": Change({"method": "L2"}, (0.95,)),
        "cbp-ends-above-its-beginning": Change({"method": "CBP"}, FALLING),
        "cbp-maintains-plasticity": Change({"method": "CBP"}, (0.86, 0.9, 0.86)),
        "bp-loses-plasticity": Change({"method": "BP", "step_size": 0.01}, RISING),
        "l2-eases-the-loss": Change({"method": "L2"}, (0.85, 0.5)),
        "sp-eases-the-loss": Change({"method": "S&P"}, (0.85, 0.5)),
        "perturbing-helps-beyond-shrinking": Change({"method": "S&P"}, (0.85, 0.8)),
    },
    "imagenet-sweep": {
        "best-l2": Change({"method": "L2", "step_size": 0.01, "l2": 1e-6}, (0.9,)),
        "best-sp": Change({"method": "S&P", "step_size": 0.03, "l2": 1e-6, "noise_std": 1e-7}, (0.9,)),
        "best-cbp": Change({"method": "CBP", "step_size": 0.01, "replacement_rate": 3e-5}, (0.95,)),
        "outer-step-sizes-are-poor": Change({"method": "BP", "step_size": 0.003}, (0.8,)),
        "cbp-is-less-sensitive": Change({"method": "CBP", "replacement_rate": 3e-3}, (0.5,)),
        "best-cbp-outperforms-all": Change({"method": "S&P"}, (0.95,)),
    },
}


@functools.cache
def true_frame(name: str) -> pd.DataFrame:
    return WORLDS[name].frame()


@functools.cache
def open_frames(name: str) -> tuple[pd.DataFrame, ...]:
    """Results that decide nothing: much noise, and two runs."""
    return WORLDS[name].hide(), WORLDS[name].frame(runs=2)


def false_frame(name: str, claim: str) -> pd.DataFrame:
    return WORLDS[name].frame(FAILS[name][claim])


def undecided_parts(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """Parts of the results on which no claim can be decided but those of `ABOUT_THE_REST`."""
    return [frame[~frame["method"].isin(["BP", "CBP"])], frame[frame["method"] == "Linear"], frame.iloc[:0]]


ABOUT_THE_REST = ("linear-network-at-77-percent", "best-l2", "best-sp", "perturbing-helps-beyond-shrinking")
