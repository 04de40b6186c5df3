"""Made-up worlds for the experiments on online permuted MNIST: one in which every claim holds, and one change for each
claim that makes it fail.

A curve is a tuple of knots, equally spaced over the tasks. `test_experiments_mnist` demands a `Case` for every claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from support.frames import Curve, make_frame

Knots = tuple[float, ...]
Changes = Mapping[tuple[str, str], Knots]
"""(setting's key in its world, metric) to its curve."""

QUIET = {"accuracy": 0.001, "dead_units": 0.0005, "weight_magnitude": 0.0002, "effective_rank": 0.5, "replaced": 10.0}
LOUD = {"accuracy": 0.6, "dead_units": 0.6, "weight_magnitude": 0.1, "effective_rank": 500.0, "replaced": 20_000.0}


@dataclass(frozen=True)
class World:
    """An experiment's settings (key to method and details) and their curves."""

    settings: Mapping[str, tuple[str, Mapping[str, float]]]
    curves: Changes

    def frame(
        self,
        changes: Changes | None = None,
        runs: int = 5,
        tasks: int = 40,
        noise: Mapping[str, float] | None = None,
        scale: str = "paper",
        seed: int = 0,
    ) -> pd.DataFrame:
        """Results of this world with some curves changed."""
        curves = {**self.curves, **(changes or {})}
        made = [self._curve(name, curves, tasks) for name in self.settings]
        return make_frame(made, runs=runs, tasks=tasks, noise=noise or QUIET, scale=scale, seed=seed)

    def change(self, frame: pd.DataFrame, changes: Changes, tasks: int) -> pd.DataFrame:
        """A frame of this world with some curves exchanged: as `frame` makes it, but sooner."""
        parts = [frame]
        for (name, metric), knots in changes.items():
            curve = self._curve(name, {(name, metric): knots}, tasks)
            parts[0] = parts[0][(parts[0]["setting"] != curve.label) | (parts[0]["metric"] != metric)]
            parts.append(make_frame([curve], runs=5, tasks=tasks, noise=QUIET))
        return pd.concat(parts, ignore_index=True)

    def _curve(self, name: str, curves: Changes, tasks: int) -> Curve:
        method, details = self.settings[name]
        mine = {metric: _line(knots, tasks) for (key, metric), knots in curves.items() if key == name}
        return Curve(method, details, mine)


def _line(knots: Knots, tasks: int) -> np.ndarray:
    return np.interp(np.linspace(0, 1, tasks), np.linspace(0, 1, len(knots)), knots)


@dataclass(frozen=True)
class Case:
    """What makes a claim fail.

    Args:
        fails: the changes.
        holds: what to change for the claim to hold, where the world itself does not do.
        tasks: tasks of its frames.
    """

    fails: Changes
    holds: Changes = field(default_factory=dict)
    tasks: int = 40


STEP_SIZE = World(
    {name: ("BP", {"step_size": float(name)}) for name in ("0.01", "0.003", "0.001")},
    {
        ("0.01", "accuracy"): (0.90, 0.95, 0.90, 0.85, 0.80),
        ("0.003", "accuracy"): (0.91, 0.955, 0.94, 0.92, 0.90),
        ("0.001", "accuracy"): (0.88, 0.92, 0.91, 0.90, 0.88),
        ("0.01", "dead_units"): (0.0, 0.1, 0.25),
        ("0.003", "dead_units"): (0.0, 0.05, 0.15),
        ("0.001", "dead_units"): (0.0, 0.02, 0.08),
        ("0.01", "weight_magnitude"): (0.02, 0.05, 0.08),
        ("0.003", "weight_magnitude"): (0.02, 0.035, 0.05),
        ("0.001", "weight_magnitude"): (0.02, 0.03, 0.04),
        ("0.01", "effective_rank"): (500, 300, 150),
        ("0.003", "effective_rank"): (500, 400, 250),
        ("0.001", "effective_rank"): (500, 450, 350),
    },
)
RISING = (0.80, 0.85, 0.90, 0.92, 0.95)
FALLING = (0.95, 0.90, 0.85, 0.80, 0.75)
STEP_SIZE_CASES = {
    "rises-first": Case({("0.001", "accuracy"): FALLING}),
    "falls-after": Case({("0.003", "accuracy"): RISING}),
    "falls-steadily": Case({("0.01", "accuracy"): (0.90, 0.95, 0.80, 0.85, 0.90)}),
    "dead-units-grow": Case({("0.001", "dead_units"): (0.1, 0.05, 0.02)}),
    "dead-units-keep-growing": Case({("0.001", "dead_units"): (0.0, 0.3, 0.1)}),
    "quarter-of-units-dead": Case({("0.01", "dead_units"): (0.0, 0.05, 0.1)}),
    "weights-grow": Case({("0.01", "weight_magnitude"): (0.05, 0.04, 0.03)}),
    "weights-keep-growing": Case({("0.01", "weight_magnitude"): (0.02, 0.08, 0.06)}),
    "rank-falls": Case({("0.003", "effective_rank"): (300, 400, 500)}),
    "rank-keeps-falling": Case({("0.003", "effective_rank"): (500, 200, 300)}),
    "dead-units-go-with-loss": Case({("0.01", "dead_units"): (0.3, 0.2, 0.1)}),
    "weights-go-with-loss": Case({("0.01", "weight_magnitude"): (0.09, 0.06, 0.02)}),
    "rank-goes-with-loss": Case({("0.01", "effective_rank"): (150, 300, 500)}),
    "middle-step-size-best": Case({("0.001", "accuracy"): (0.96, 0.97, 0.96)}),
}

WIDTH = World(
    {name: ("BP", {"step_size": 0.003, "width": int(name)}) for name in ("100", "1000", "10000")},
    {
        ("100", "accuracy"): (0.88, 0.91, 0.87, 0.84),
        ("1000", "accuracy"): (0.90, 0.95, 0.93, 0.91),
        ("10000", "accuracy"): (0.92, 0.96, 0.955, 0.95),
    },
)
WIDTH_CASES = {
    "every-width-loses": Case({("1000", "accuracy"): RISING}),
    "narrow-networks-lose-most": Case({("10000", "accuracy"): (0.92, 0.96, 0.80, 0.70)}),
}

CHANGE_RATE = World(
    {name: ("BP", {"step_size": 0.003, "change_every": int(name)}) for name in ("10000", "100000", "1000000")},
    {
        ("10000", "accuracy"): (0.85, 0.88, 0.80, 0.75),
        ("100000", "accuracy"): (0.93, 0.95, 0.94, 0.92),
        ("1000000", "accuracy"): (0.97, 0.98, 0.975, 0.97),
    },
)
CHANGE_RATE_CASES = {
    "every-rate-loses": Case({("10000", "accuracy"): RISING}),
}

METHODS = World(
    {
        "BP": ("BP", {"step_size": 0.003}),
        "L2": ("L2", {"step_size": 0.003, "l2": 1e-4}),
        "S&P": ("S&P", {"step_size": 0.003, "l2": 1e-4, "noise_std": 1e-5}),
        "Dropout": ("Dropout", {"step_size": 0.003, "dropout": 0.1}),
        "Online norm": ("Online norm", {"step_size": 0.003, "forward_decay": 0.999, "backward_decay": 0.99}),
        "Adam": ("Adam", {"step_size": 5e-5}),
        "CBP": ("CBP", {"step_size": 0.003, "replacement_rate": 1e-4}),
    },
    {
        ("BP", "accuracy"): (0.90, 0.95, 0.93, 0.90, 0.87),
        ("L2", "accuracy"): (0.90, 0.95, 0.945, 0.94, 0.93),
        ("S&P", "accuracy"): (0.90, 0.95, 0.95, 0.945, 0.937),
        ("Dropout", "accuracy"): (0.88, 0.92, 0.89, 0.85, 0.80),
        ("Online norm", "accuracy"): (0.93, 0.96, 0.92, 0.87, 0.82),
        ("Adam", "accuracy"): (0.91, 0.94, 0.80, 0.65, 0.50),
        ("CBP", "accuracy"): (0.91, 0.955, 0.955, 0.955, 0.956),
        ("BP", "dead_units"): (0.02, 0.05, 0.08, 0.12, 0.16),
        ("L2", "dead_units"): (0.01, 0.08, 0.15, 0.20, 0.25),
        ("S&P", "dead_units"): (0.01, 0.03, 0.04, 0.05, 0.06),
        ("Dropout", "dead_units"): (0.02, 0.05, 0.08, 0.12, 0.165),
        ("Online norm", "dead_units"): (0.0, 0.0, 0.0, 0.0, 0.02, 0.10, 0.20, 0.30, 0.35),
        ("Adam", "dead_units"): (0.02, 0.20, 0.30, 0.35, 0.40),
        ("CBP", "dead_units"): (0.002,),
        ("BP", "weight_magnitude"): (0.02, 0.03, 0.04, 0.05, 0.06),
        ("L2", "weight_magnitude"): (0.02, 0.022, 0.022, 0.022, 0.022),
        ("S&P", "weight_magnitude"): (0.02, 0.021, 0.021, 0.021, 0.021),
        ("Dropout", "weight_magnitude"): (0.02, 0.031, 0.041, 0.051, 0.061),
        ("Online norm", "weight_magnitude"): (0.02, 0.03, 0.035, 0.04, 0.045),
        ("Adam", "weight_magnitude"): (0.02, 0.05, 0.08, 0.10, 0.12),
        ("CBP", "weight_magnitude"): (0.02, 0.023, 0.024, 0.024, 0.024),
        ("BP", "effective_rank"): (500, 450, 400, 350, 300),
        ("L2", "effective_rank"): (500, 300, 200, 180, 150),
        ("S&P", "effective_rank"): (500, 350, 250, 245, 245),
        ("Dropout", "effective_rank"): (500, 350, 300, 300, 300),
        ("Online norm", "effective_rank"): (600, 500, 350, 250, 200),
        ("Adam", "effective_rank"): (500, 80, 40, 20, 10),
        ("CBP", "effective_rank"): (500, 480, 470, 460, 450),
        ("CBP", "replaced"): (36_000,),
    },
)
METHODS_CASES = {
    "l2-and-sp-end-above-bp": Case({("L2", "accuracy"): FALLING}),
    "dropout-norm-adam-end-below-bp": Case({("Dropout", "accuracy"): RISING}),
    "sp-best-of-known-methods": Case({("S&P", "accuracy"): (0.90, 0.95, 0.90)}),
    "sp-loses-almost-nothing": Case({("S&P", "accuracy"): (0.90, 0.95, 0.93, 0.91, 0.89)}),
    "sp-loses-something": Case({("S&P", "accuracy"): RISING}),
    "small-weights-lose-less": Case({("L2", "accuracy"): FALLING}),
    "no-known-method-keeps-plasticity": Case({("L2", "accuracy"): RISING}),
    "dropout-norm-adam-lose-more": Case({("Dropout", "accuracy"): (0.88, 0.90, 0.90, 0.89, 0.885)}),
    "adam-loses-most": Case({("Adam", "accuracy"): (0.91, 0.94, 0.93, 0.92, 0.91)}),
    "weights-grow-unless-held": Case({("BP", "weight_magnitude"): (0.03, 0.02)}),
    "l2-and-sp-hold-weights": Case({("L2", "weight_magnitude"): (0.02, 0.05)}),
    "dead-units-grow": Case({("S&P", "dead_units"): (0.05, 0.01)}),
    "sp-fewer-dead-than-bp": Case({("S&P", "dead_units"): (0.01, 0.30)}),
    "rank-falls": Case({("CBP", "effective_rank"): (450, 500)}),
    "dropout-and-sp-rank-settles": Case({("Dropout", "effective_rank"): (500, 400, 300)}, tasks=400),
    "l2-trades-correlates": Case({("L2", "dead_units"): (0.01, 0.05)}),
    "sp-rank-between-l2-and-bp": Case({("S&P", "effective_rank"): (500, 350)}),
    "dropout-correlates-like-bp": Case({("Dropout", "effective_rank"): (500, 450)}),
    # Worse than BP at the end, but better over all.
    "dropout-only-harms": Case({("Dropout", "accuracy"): (0.97, 0.97, 0.95, 0.90, 0.80)}),
    "norm-starts-better": Case({("Online norm", "accuracy"): (0.80, 0.96, 0.92, 0.87, 0.82)}),
    # A larger fall than BP's, but a slower one.
    "norm-drops-more-sharply": Case({("Online norm", "accuracy"): (0.97, 0.885)}),
    "norm-correlates-better-at-first": Case({("Online norm", "dead_units"): (0.1, 0.3)}),
    "norm-correlates-worse-at-last": Case({("Online norm", "dead_units"): (0.0, 0.1)}),
    "norm-dies-after-200-tasks": Case({("Online norm", "dead_units"): (0.0, 0.1, 0.3)}, tasks=400),
    "adam-scores-poorly": Case({("Adam", "weight_magnitude"): (0.02, 0.03)}),
    "adam-rank-falls-furthest": Case({("Adam", "effective_rank"): (500, 350)}),
    "adam-loses-diversity-quickly": Case({("Adam", "effective_rank"): (500, 250, 10)}, tasks=400),
    # It ends above its first task, but far below what it had reached ten tasks later.
    "cbp-keeps-its-level": Case({("CBP", "accuracy"): (0.80, *np.linspace(0.96, 0.88, 40))}, tasks=400),
    "cbp-does-not-degrade": Case({("CBP", "accuracy"): (0.91, 0.955, 0.93)}),
    "cbp-best": Case({("CBP", "accuracy"): (0.91, 0.955, 0.93)}),
    "randomness-helps": Case({("S&P", "dead_units"): (0.01, 0.30)}),
    "cbp-has-no-dead-units": Case({("CBP", "dead_units"): (0.0, 0.05, 0.0)}),
    "cbp-fewest-dead-units": Case({("CBP", "dead_units"): (0.0, 0.10)}),
    "cbp-holds-weights": Case({("CBP", "weight_magnitude"): (0.02, 0.05)}),
    "cbp-higher-rank": Case({("CBP", "effective_rank"): (500, 270)}),
    "one-unit-every-five-examples": Case({("CBP", "replaced"): (30_000,)}),
}

_BP = (0.90, 0.95, 0.92, 0.90, 0.87)
SENSITIVITY = World(
    {
        "BP": ("BP", {"step_size": 0.003}),
        **{f"L2 {value:g}": ("L2", {"step_size": 0.003, "l2": value}) for value in (1e-5, 1e-4, 1e-3)},
        **{
            f"S&P {value:g}": ("S&P", {"step_size": 0.003, "l2": 1e-4, "noise_std": value})
            for value in (1e-6, 1e-5, 1e-4)
        },
        **{f"Dropout {value:g}": ("Dropout", {"step_size": 0.003, "dropout": value}) for value in (0.01, 0.03, 0.1)},
        **{
            f"Norm {forward:g}": (
                "Online norm",
                {"step_size": 0.003, "forward_decay": forward, "backward_decay": backward},
            )
            for forward, backward in ((0.99, 0.9), (0.999, 0.99), (0.9999, 0.999))
        },
        **{f"Adam {value:g}": ("Adam", {"step_size": value}) for value in (3e-5, 5e-5, 1e-4)},
        **{f"CBP {value:g}": ("CBP", {"step_size": 0.003, "replacement_rate": value}) for value in (1e-6, 1e-5, 1e-4)},
    },
    {
        (name, "accuracy"): knots
        for name, knots in {
            "BP": _BP,
            "L2 1e-05": (0.90, 0.95, 0.925, 0.905, 0.88),
            "L2 0.0001": (0.90, 0.95, 0.945, 0.94, 0.93),
            "L2 0.001": (0.88, 0.92, 0.88, 0.84, 0.80),
            "S&P 1e-06": (0.90, 0.95, 0.945, 0.94, 0.93),
            "S&P 1e-05": (0.90, 0.95, 0.95, 0.95, 0.945),
            "S&P 0.0001": (0.85, 0.90, 0.85, 0.80, 0.75),
            "Dropout 0.01": _BP,
            "Dropout 0.03": (0.89, 0.945, 0.912, 0.889, 0.862),
            "Dropout 0.1": (0.88, 0.93, 0.88, 0.83, 0.78),
            "Norm 0.99": (0.93, 0.96, 0.92, 0.91, 0.90, 0.88, 0.86),
            "Norm 0.999": (0.93, 0.95, 0.96, 0.94, 0.92, 0.90, 0.88),
            "Norm 0.9999": (0.93, 0.94, 0.95, 0.96, 0.95, 0.94, 0.93),
            "Adam 3e-05": (0.90, 0.93, 0.90, 0.87, 0.84),
            "Adam 5e-05": (0.91, 0.94, 0.88, 0.80, 0.72),
            "Adam 0.0001": (0.91, 0.94, 0.80, 0.65, 0.50),
            "CBP 1e-06": (0.91, 0.95, 0.945, 0.945, 0.944),
            "CBP 1e-05": (0.91, 0.955, 0.955, 0.955, 0.955),
            "CBP 0.0001": (0.91, 0.955, 0.955, 0.955, 0.956),
        }.items()
    },
)


def _all(*names: str, knots: Knots = _BP) -> Changes:
    return {(name, "accuracy"): knots for name in names}


SENSITIVITY_CASES = {
    "settings-matter": Case(_all("L2 1e-05", "L2 0.0001", "L2 0.001")),
    "adam-step-size-sets-speed": Case(_all("Adam 3e-05", "Adam 0.0001")),
    "more-dropout-falls-more": Case(_all("Dropout 0.1", knots=(0.88, 0.90, 0.89))),
    # A larger fall than at the middle probability, but a slower one.
    "more-dropout-falls-faster": Case(_all("Dropout 0.1", knots=(0.96, 0.862))),
    "lower-dropout-best-and-like-bp": Case(_all("Dropout 0.01", "Dropout 0.03", knots=(0.90, 0.95, 0.75))),
    "norm-rates-move-peak": Case(_all("Norm 0.99", "Norm 0.999", "Norm 0.9999")),
    "l2-sets-peak-and-fall": Case(_all("L2 1e-05", "L2 0.0001", "L2 0.001")),
    "too-much-noise-harms": Case(_all("S&P 0.0001", knots=(0.85, 0.90, 0.91))),
    "too-little-noise-does-nothing": Case(_all("S&P 1e-06", knots=(0.90, 0.95, 0.85))),
    "l2-narrow-range": Case(_all("L2 0.001", knots=(0.90, 0.95, 0.94))),
    "sp-narrow-range": Case(_all("S&P 0.0001", knots=(0.90, 0.95, 0.94))),
    "cbp-good-at-all-rates": Case(_all("CBP 1e-06")),
    "cbp-least-sensitive": Case(_all("CBP 1e-06", knots=(0.91, 0.90, 0.60))),
}

WORLDS = {
    "mnist-step-size": (STEP_SIZE, STEP_SIZE_CASES),
    "mnist-width": (WIDTH, WIDTH_CASES),
    "mnist-change-rate": (CHANGE_RATE, CHANGE_RATE_CASES),
    "mnist-methods": (METHODS, METHODS_CASES),
    "mnist-sensitivity": (SENSITIVITY, SENSITIVITY_CASES),
}
