"""Backpropagation on online permuted MNIST with networks of three widths

Figure 2b (middle) of the paper, Section 3: 100, 1,000 and 10,000 units in each of three hidden layers, 150 tasks. The
paper took a good step size for each width without naming it; we take one for all. The `laptop` scale has narrower
networks, of which the widest is the paper's narrowest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd

from neoteny.experiments.mnist.settings import RUNS_CHOSEN, SHARED_CHOSEN, SMALLER, bp
from neoteny.experiments.mnist.trends import (
    Trend,
    draw_over_tasks,
    for_each,
    is_above,
    is_positive,
    short,
    trend,
)
from neoteny.experiments.scales import pick, scale_of
from neoteny.problems import PermutedMNIST
from neoteny.report.chart import Chart
from neoteny.report.claim import Claim, Unchecked, Verdict, all_of
from neoteny.suite.sweep import Chosen, Sweep


@dataclass(frozen=True)
class Size:
    """What differs between scales."""

    problem: PermutedMNIST
    widths: tuple[int, ...]
    step_size: float
    runs: int
    stack_size: int = 100


SIZES = {
    "smoke": Size(PermutedMNIST(tasks=6, examples_per_task=60, source="synthetic"), (5, 10, 20), 0.01, runs=2),
    "laptop": Size(PermutedMNIST(tasks=100, examples_per_task=2000), (10, 30, 100), 0.01, runs=8),
    "paper": Size(PermutedMNIST(tasks=150), (100, 1000, 10_000), 0.003, runs=30, stack_size=10),
}

STEP_SIZE_CHOSEN = Chosen(
    "step size at each width",
    "0.003 for all three",
    "The paper speaks of good step sizes for each width and names none; 0.003 is its best at 2,000 units, and one "
    "value for all leaves width as the only difference.",
)


def sweep(scale: str) -> Sweep:
    """BP at three widths."""
    size = pick(scale, **SIZES)
    settings = []
    for width in size.widths:
        setting = bp(width, size.step_size)
        settings.append(replace(setting, details={**setting.details, "width": width}))
    return Sweep(
        problem=size.problem,
        settings=tuple(settings),
        runs=size.runs,
        stack_size=size.stack_size,
        chosen=(*SHARED_CHOSEN, *((STEP_SIZE_CHOSEN, RUNS_CHOSEN) if scale == "paper" else (SMALLER,))),
    )


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Accuracy over tasks for each width."""

    def name(row: pd.Series) -> str:
        return f"{short(row['width'])} units a layer"

    order = sweep(scale_of(frame)).settings
    return [draw_over_tasks(frame, "accuracy", name, order, title="Backpropagation at three network widths")]


def _accuracy(frame: pd.DataFrame, width: int) -> Trend:
    return trend(frame, "accuracy", method="BP", width=width)


def _widths(frame: pd.DataFrame) -> tuple[int, ...]:
    return SIZES[scale_of(frame)].widths


def _all_lose(frame: pd.DataFrame) -> Verdict:
    def check(width: int) -> Verdict:
        return is_positive(_accuracy(frame, width).drop, f"{width} units, best bin less last bin")

    return for_each(_widths(frame), check)


def _widest_loses(frame: pd.DataFrame) -> Verdict:
    width = _widths(frame)[-1]
    return is_positive(_accuracy(frame, width).drop, f"{width} units, best bin less last bin")


def _narrow_lose_most(frame: pd.DataFrame) -> Verdict:
    *narrower, widest = _widths(frame)
    least = _accuracy(frame, widest).drop
    return all_of(
        [
            is_above(_accuracy(frame, width).drop, least, f"loss with {width} units less that with {widest}")
            for width in narrower
        ]
    )


claims: tuple[Claim, ...] = (
    Claim(
        "every-width-loses",
        "Accuracy ends below its best at every width.",
        "Section 3, Figure 2b (middle)",
        _all_lose,
    ),
    Claim(
        "widest-loses-too",
        "Even the widest network loses some plasticity.",
        "Section 3",
        _widest_loses,
    ),
    Claim(
        "narrow-networks-lose-most",
        "The narrower networks lose more than the widest.",
        "Section 3, Figure 2b (middle)",
        _narrow_lose_most,
    ),
)

unchecked: tuple[Unchecked, ...] = (
    Unchecked(
        "Loss of plasticity happens to networks with fewer and with more parameters than the problem needs.",
        "Section 3",
        "How many parameters the problem needs is not measured; the claims on each width say what can be said.",
    ),
)
