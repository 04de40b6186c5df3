"""Backpropagation on online permuted MNIST at three step sizes

Figure 2b (left) and Figure 3 of the paper, Sections 3 and 4: online accuracy of plain backpropagation over 800 tasks,
and at the start of each task the share of dead units, the mean absolute weight and the effective rank of the hidden
layers. The `laptop` scale has narrow networks and short tasks, with which all of this happens within minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from neoteny.experiments.mnist.settings import CORRELATES, SHARED_CHOSEN, SMALLER, bp
from neoteny.experiments.mnist.trends import (
    Trend,
    draw_correlates,
    draw_over_tasks,
    for_each,
    is_above,
    is_negative,
    is_positive,
    short,
    trend,
)
from neoteny.experiments.scales import pick, scale_of
from neoteny.problems import PermutedMNIST
from neoteny.report.chart import Chart
from neoteny.report.claim import Claim, Unchecked, Verdict, all_of, near
from neoteny.report.statistics import estimate
from neoteny.suite.sweep import Sweep

STEP_SIZES = (0.01, 0.003, 0.001)


@dataclass(frozen=True)
class Size:
    """What differs between scales."""

    problem: PermutedMNIST
    width: int
    runs: int
    stack_size: int = 100


SIZES = {
    "smoke": Size(PermutedMNIST(tasks=6, examples_per_task=60, source="synthetic"), width=20, runs=2),
    "laptop": Size(PermutedMNIST(tasks=200, examples_per_task=2000), width=20, runs=8, stack_size=12),
    "paper": Size(PermutedMNIST(tasks=800, examples_per_task=60_000), width=2000, runs=30, stack_size=30),
}


def sweep(scale: str) -> Sweep:
    """BP at three step sizes."""
    size = pick(scale, **SIZES)
    return Sweep(
        problem=size.problem,
        settings=tuple(bp(size.width, step_size) for step_size in STEP_SIZES),
        runs=size.runs,
        measures=CORRELATES,
        probe_examples=200 if scale == "smoke" else 2000,
        stack_size=size.stack_size,
        chosen=SHARED_CHOSEN if scale == "paper" else (*SHARED_CHOSEN, SMALLER),
    )


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Accuracy over tasks, then the three correlates."""

    def name(row: pd.Series) -> str:
        return f"step size {short(row['step_size'])}"

    order = sweep(scale_of(frame)).settings
    return [
        draw_over_tasks(frame, "accuracy", name, order, title="Backpropagation at three step sizes"),
        *draw_correlates(frame, name, order, group="What changes in the network"),
    ]


def _bp(frame: pd.DataFrame, metric: str, step_size: float) -> Trend:
    return trend(frame, metric, method="BP", step_size=step_size)


def _rises(frame: pd.DataFrame, step_sizes: Sequence[float]) -> Verdict:
    def check(step_size: float) -> Verdict:
        rise = _bp(frame, "accuracy", step_size).rise
        return is_positive(rise, f"step size {step_size:g}, best later bin less first task")

    return for_each(step_sizes, check)


def _falls(frame: pd.DataFrame, step_sizes: Sequence[float]) -> Verdict:
    def check(step_size: float) -> Verdict:
        return is_positive(_bp(frame, "accuracy", step_size).drop, f"step size {step_size:g}, best bin less last bin")

    return for_each(step_sizes, check)


def _falls_steadily(frame: pd.DataFrame, step_sizes: Sequence[float]) -> Verdict:
    def check(step_size: float) -> Verdict:
        accuracy = _bp(frame, "accuracy", step_size)
        last_half = accuracy.slope(len(accuracy.bins) // 2)
        return all_of(
            [
                is_positive(accuracy.fall_speed, f"step size {step_size:g}, fall a bin from the best bin on"),
                is_negative(last_half, f"step size {step_size:g}, slope over the last half"),
            ]
        )

    return for_each(step_sizes, check)


def _grows(frame: pd.DataFrame, step_sizes: Sequence[float], metric: str, sign: int) -> Verdict:
    def check(step_size: float) -> Verdict:
        measure = _bp(frame, metric, step_size)
        verdict = is_positive if sign > 0 else is_negative
        return verdict(measure.growth, f"step size {step_size:g}, last bin less first bin")

    return for_each(step_sizes, check)


def _keeps_growing(frame: pd.DataFrame, step_sizes: Sequence[float], metric: str, sign: int) -> Verdict:
    def check(step_size: float) -> Verdict:
        measure = _bp(frame, metric, step_size)
        verdict = is_positive if sign > 0 else is_negative
        return verdict(measure.late_growth, f"step size {step_size:g}, last bin less middle bin")

    return for_each(step_sizes, check)


def _quarter_dead(frame: pd.DataFrame) -> Verdict:
    return near(estimate(_bp(frame, "dead_units", 0.01).last), 0.25, 0.05, "share of dead units in the last bin")


def _best_is_middle(frame: pd.DataFrame) -> Verdict:
    best = _bp(frame, "accuracy", 0.003).mean

    def check(step_size: float) -> Verdict:
        other = _bp(frame, "accuracy", step_size).mean
        return is_above(best, other, f"mean accuracy at 0.003 less that at {step_size:g}")

    return for_each([0.01, 0.001], check)


def _goes_with_accuracy(frame: pd.DataFrame, step_sizes: Sequence[float], metric: str, sign: int) -> Verdict:
    """Correlation over bins, from the best bin on, of a measure with accuracy, for each run."""

    def check(step_size: float) -> Verdict:
        accuracy, measure = _bp(frame, "accuracy", step_size), _bp(frame, metric, step_size)
        start = min(accuracy.peak_bin, len(accuracy.bins) // 2)
        values = {
            seed: _correlate(accuracy.bins[seed].to_numpy()[start:], measure.bins[seed].to_numpy()[start:])
            for seed in accuracy.bins.columns.intersection(measure.bins.columns)
        }
        verdict = is_positive if sign > 0 else is_negative
        return verdict(pd.Series(values, dtype=np.float64), f"step size {step_size:g}, correlation with accuracy")

    return for_each(step_sizes, check)


def _correlate(first: np.ndarray, second: np.ndarray) -> float:
    """Pearson's correlation; nan where either does not vary or the lengths differ (tasks left unmeasured)."""
    if len(first) != len(second) or len(first) < 3:
        return float("nan")
    centred, other = first - first.mean(), second - second.mean()
    scale = float(np.sqrt((centred**2).sum() * (other**2).sum()))
    return float((centred * other).sum() / scale) if scale > 0 else float("nan")


def claims_at(step_sizes: Sequence[float]) -> tuple[Claim, ...]:
    """The claims, judged at these step sizes; all three in the paper."""
    return (
        Claim(
            "rises-first",
            "At each step size accuracy first rises over tasks: some later twentieth of them is better than the "
            "first task.",
            "Section 3, Figure 2b (left)",
            lambda frame: _rises(frame, step_sizes),
        ),
        Claim(
            "falls-after",
            "At each step size accuracy ends below its best: plasticity is lost.",
            "Section 3, Figure 2b (left)",
            lambda frame: _falls(frame, step_sizes),
        ),
        Claim(
            "falls-steadily",
            "After its best the accuracy falls steadily: still so in the last half of the tasks.",
            "Section 3, Figure 2b (left)",
            lambda frame: _falls_steadily(frame, step_sizes),
        ),
        Claim(
            "dead-units-grow",
            "The share of dead units grows at each step size.",
            "Section 4, Figure 3 (left)",
            lambda frame: _grows(frame, step_sizes, "dead_units", 1),
        ),
        Claim(
            "dead-units-keep-growing",
            "Dead units keep becoming more: also over the second half of the tasks.",
            "Section 4",
            lambda frame: _keeps_growing(frame, step_sizes, "dead_units", 1),
        ),
        Claim(
            "quarter-of-units-dead",
            "At step size 0.01 a quarter of the units are dead after 800 tasks.",
            "Section 4",
            _quarter_dead,
            scale="paper",
        ),
        Claim(
            "weights-grow",
            "The mean absolute weight grows at each step size.",
            "Section 4, Figure 3 (centre)",
            lambda frame: _grows(frame, step_sizes, "weight_magnitude", 1),
        ),
        Claim(
            "weights-keep-growing",
            "Weights keep growing: also over the second half of the tasks.",
            "Section 4",
            lambda frame: _keeps_growing(frame, step_sizes, "weight_magnitude", 1),
        ),
        Claim(
            "rank-falls",
            "The effective rank of the hidden layers falls at each step size.",
            "Section 4, Figure 3 (right)",
            lambda frame: _grows(frame, step_sizes, "effective_rank", -1),
        ),
        Claim(
            "rank-keeps-falling",
            "The effective rank keeps falling: also over the second half of the tasks.",
            "Section 4",
            lambda frame: _keeps_growing(frame, step_sizes, "effective_rank", -1),
        ),
        Claim(
            "dead-units-go-with-loss",
            "While accuracy falls, tasks with more dead units are tasks with less accuracy.",
            "Section 4",
            lambda frame: _goes_with_accuracy(frame, step_sizes, "dead_units", -1),
        ),
        Claim(
            "weights-go-with-loss",
            "While accuracy falls, tasks with larger weights are tasks with less accuracy.",
            "Section 4",
            lambda frame: _goes_with_accuracy(frame, step_sizes, "weight_magnitude", -1),
        ),
        Claim(
            "rank-goes-with-loss",
            "While accuracy falls, tasks with a lower effective rank are tasks with less accuracy.",
            "Section 4",
            lambda frame: _goes_with_accuracy(frame, step_sizes, "effective_rank", 1),
        ),
        Claim(
            "middle-step-size-best",
            "Of the three step sizes 0.003 has the best accuracy over all tasks.",
            "Appendix A",
            _best_is_middle,
            scale="paper",
        ),
    )


claims = claims_at(STEP_SIZES)

unchecked: tuple[Unchecked, ...] = (
    Unchecked(
        "More dead units, larger weights and a lower effective rank each cause a part of the loss.",
        "Section 4",
        "These runs show that they go together; to show a cause one would have to change one of them alone.",
    ),
    Unchecked(
        "The loss in permuted MNIST is of the same kind as that on Continual ImageNet.",
        "Section 3",
        "It compares two problems; see the claims of imagenet-bp.",
    ),
    Unchecked(
        "After each task the network has found a solution of low rank, from which the next task starts.",
        "Section 4",
        "An explanation; the rank is measured before each task only, not before and after.",
    ),
    Unchecked(
        "Accuracy falls dramatically at the moment of a task change.",
        "Section 3",
        "Accuracy is kept as a mean over each task, so that the moment of change is not seen.",
    ),
)
