"""Made-up results of slowly-changing regression: worlds in which every claim holds, and what makes each fail."""

from __future__ import annotations

import functools

import pandas as pd

from neoteny.experiments.regression.settings import ACTIVATIONS, OPTIMIZERS, step_sizes
from neoteny.experiments.regression.utilities import UTILITIES
from support.experiment_worlds import Change, World

FALLING = (1.0, 0.95, 0.9, 0.8, 0.7)
SEVERE = (0.8, 0.8, 0.95, 1.05, 1.05)
MILD = (0.8, 0.8, 0.83, 0.86, 0.88)
WITH_ADAM = (0.8, 0.8, 1.1, 1.2, 1.3)
STEP_SIZES = step_sizes("paper")
LINEAR = [("Linear", {"optimizer": name, "step_size": 0.01}, (1.02,)) for name in OPTIMIZERS]

ACTIVATION_WORLD = World(
    "error",
    [
        *(
            (
                "BP",
                {"activation": activation, "optimizer": "SGD", "step_size": size},
                MILD if activation == "elu" else SEVERE,
            )
            for activation in ACTIVATIONS
            for size in STEP_SIZES
        ),
        *(
            ("BP", {"activation": activation, "optimizer": "Adam", "step_size": size}, WITH_ADAM)
            for activation in ACTIVATIONS
            for size in STEP_SIZES
        ),
        *LINEAR,
    ],
    tasks=30,
    quiet=0.005,
    loud=1.5,
)
METHOD_WORLD = World(
    "error",
    [
        setting
        for optimizer in OPTIMIZERS
        for activation in ("tanh", "relu")
        for shared in [{"activation": activation, "optimizer": optimizer}]
        for setting in (
            ("BP", shared, (0.8, 0.85, 0.95, 1.0, 1.05)),
            ("L2", {**shared, "l2": 1e-4}, (0.8, 0.85, 0.9, 1.0)),
            ("L2", {**shared, "l2": 1e-2}, (1.3,)),
            ("S&P", {**shared, "l2": 1e-4, "noise_std": 1e-4}, (0.8, 0.85, 0.9)),
            ("S&P", {**shared, "l2": 1e-4, "noise_std": 1e-2}, (1.4,)),
            ("CBP", {**shared, "replacement_rate": 1e-4}, (0.78,)),
            ("CBP", {**shared, "replacement_rate": 1e-2}, (0.82,)),
        )
    ]
    + LINEAR,
    tasks=30,
    quiet=0.005,
    loud=1.5,
    scale="laptop",
)
UTILITY_WORLD = World(
    "error",
    [
        ("CBP", {"utility": utility, "replacement_rate": rate}, (level + (0.1 if rate > 1e-4 else 0.0),))
        for utility, level in zip(UTILITIES, (0.7, 0.75, 0.8, 0.85, 0.82, 0.84), strict=True)
        for rate in (1e-4, 1e-2)
    ]
    + [("BP", {}, (0.9, 1.0))],
    tasks=30,
    quiet=0.005,
    loud=1.0,
)
WORLDS = {"scr-activations": ACTIVATION_WORLD, "scr-cbp": METHOD_WORLD, "scr-utilities": UTILITY_WORLD}

# For every claim, what has to be different in its world for it to fail.
FAILS: dict[str, dict[str, Change]] = {
    "scr-activations": {
        **{
            f"{activation.replace('_', '-')}-loses-plasticity": Change(
                {"activation": activation, "optimizer": "SGD", "step_size": 0.003}, FALLING
            )
            for activation in ACTIVATIONS
        },
        "relu-and-tanh-fall-to-the-linear-level": Change({"activation": "tanh", "optimizer": "SGD"}, (0.5, 0.5, 0.6)),
        "elu-loses-less": Change({"activation": "elu", "optimizer": "SGD"}, (0.8, 0.8, 1.5)),
        "adam-loses-plasticity": Change({"activation": "swish", "optimizer": "Adam"}, FALLING),
        "adam-is-usually-worse": Change({"optimizer": "Adam", "method": "BP"}, (0.8, 0.8, 0.81)),
    },
    "scr-cbp": {
        **{
            f"cbp-maintains-plasticity-with-{name.lower()}": Change(
                {"method": "CBP", "optimizer": name, "activation": "tanh"}, (0.7, 0.7, 0.8, 0.9)
            )
            for name in OPTIMIZERS
        },
        **{
            f"cbp-ends-better-than-bp-with-{name.lower()}": Change({"method": "BP", "optimizer": name}, (0.8, 0.6, 0.5))
            for name in OPTIMIZERS
        },
        **{
            f"cbp-outperforms-with-{name.lower()}": Change(
                {"method": "S&P", "optimizer": name, "noise_std": 1e-4, "activation": "relu"}, (0.6,)
            )
            for name in OPTIMIZERS
        },
        "cbp-is-less-sensitive": Change({"method": "CBP", "replacement_rate": 1e-2}, (3.0,)),
    },
    "scr-utilities": {
        "overall-is-best": Change({"utility": "random"}, (0.5,)),
        "mean-corrected-contribution-is-second": Change({"utility": "contribution"}, (0.6,)),
    },
}


@functools.cache
def open_frames(name: str) -> tuple[pd.DataFrame, ...]:
    """Results that decide nothing: much noise, and two runs."""
    return WORLDS[name].hide(), WORLDS[name].frame(runs=2)


@functools.cache
def true_frame(name: str) -> pd.DataFrame:
    return WORLDS[name].frame()


def false_frame(name: str, claim: str) -> pd.DataFrame:
    return WORLDS[name].frame(FAILS[name][claim])


def undecided_parts(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """Parts of the results on which no claim can be decided but those of `ABOUT_THE_REST`."""
    diverged = frame.assign(value=frame["value"].where(frame["seed"] != 3))
    return [diverged, frame[~frame["method"].isin(["BP", "CBP"])], frame.iloc[:0]]


ABOUT_THE_REST = ()
