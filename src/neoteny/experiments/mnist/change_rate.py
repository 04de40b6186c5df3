"""Backpropagation on online permuted MNIST when the task changes often, seldom, or very seldom

Figure 2b (right) of the paper, Section 3: a new permutation after every 10,000, 100,000 or 1,000,000 examples, drawn
with replacement, for 48 million examples in all. Each rate of change is a problem of its own; accuracy is drawn over
examples. The `laptop` scale has a narrow network, and changes every 1,000, 5,000 or 25,000 examples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd

from neoteny.experiments.mnist.settings import RUNS_CHOSEN, SHARED_CHOSEN, SMALLER, bp
from neoteny.experiments.mnist.trends import Trend, draw_over_tasks, for_each, is_positive, short, trend
from neoteny.experiments.scales import pick, scale_of
from neoteny.problems import PermutedMNIST
from neoteny.report.chart import Chart
from neoteny.report.claim import Claim, Unchecked, Verdict
from neoteny.suite.sweep import Chosen, Setting, Sweep


@dataclass(frozen=True)
class Size:
    """What differs between scales."""

    change_every: tuple[int, ...]
    examples: int
    width: int
    step_size: float
    runs: int
    source: str = "mnist"
    stack_size: int = 100

    def problem(self, change_every: int) -> PermutedMNIST:
        """Tasks of this length, as many as the examples allow."""
        return PermutedMNIST(self.examples // change_every, change_every, replacement=True, source=self.source)


SIZES = {
    "smoke": Size((20, 60, 180), 360, width=20, step_size=0.01, runs=2, source="synthetic"),
    "laptop": Size((1000, 5000, 25_000), 400_000, width=20, step_size=0.01, runs=8),
    "paper": Size((10_000, 100_000, 1_000_000), 48_000_000, width=2000, step_size=0.003, runs=30, stack_size=30),
}

STEP_SIZE_CHOSEN = Chosen(
    "step size at each rate of change",
    "0.003 for all three",
    "The paper names none here; 0.003 is its best for this network when the task changes every 60,000 examples.",
)


def sweep(scale: str) -> Sweep:
    """BP at three rates of change."""
    size = pick(scale, **SIZES)

    def setting(change_every: int) -> Setting:
        learner = bp(size.width, size.step_size)
        details = {**learner.details, "change_every": change_every}
        return replace(learner, details=details, problem=size.problem(change_every))

    return Sweep(
        problem=size.problem(size.change_every[0]),
        settings=tuple(setting(change_every) for change_every in size.change_every),
        runs=size.runs,
        stack_size=size.stack_size,
        chosen=(*SHARED_CHOSEN, *((STEP_SIZE_CHOSEN, RUNS_CHOSEN) if scale == "paper" else (SMALLER,))),
    )


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Accuracy over examples for each rate of change."""

    def name(row: pd.Series) -> str:
        return f"change every {short(row['change_every'])}"

    return [
        draw_over_tasks(
            frame,
            "accuracy",
            name,
            sweep(scale_of(frame)).settings,
            title="Backpropagation at three rates of change",
            examples_of=lambda row: float(row["change_every"]),
        )
    ]


def _accuracy(frame: pd.DataFrame, change_every: int) -> Trend:
    return trend(frame, "accuracy", method="BP", change_every=change_every)


def _falls(frame: pd.DataFrame, change_every: int) -> Verdict:
    return is_positive(_accuracy(frame, change_every).drop, f"change every {change_every:,}, best bin less last bin")


def _every_rate_loses(frame: pd.DataFrame) -> Verdict:
    return for_each(SIZES[scale_of(frame)].change_every, lambda change_every: _falls(frame, change_every))


def _slowest_loses(frame: pd.DataFrame) -> Verdict:
    return _falls(frame, SIZES[scale_of(frame)].change_every[-1])


claims: tuple[Claim, ...] = (
    Claim(
        "every-rate-loses",
        "Accuracy ends below its best whether the task changes often or seldom.",
        "Section 3, Figure 2b (right)",
        _every_rate_loses,
    ),
    Claim(
        "seldom-loses-too",
        "Accuracy falls over tasks even where the task changes most seldom.",
        "Section 3",
        _slowest_loses,
    ),
)

unchecked: tuple[Unchecked, ...] = (
    Unchecked(
        "There are 48 points at the slowest rate and 4,800 at the fastest.",
        "Section 3",
        "It follows from the sweep itself (48 million examples at each rate), whatever the runs give; the figure draws "
        "at most 200 points a line.",
    ),
)
