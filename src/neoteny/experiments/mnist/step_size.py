"""Backpropagation on online permuted MNIST at three step sizes

Figure 2b (left) and Figure 3 of the paper, Sections 3 and 4: online accuracy of plain backpropagation over 800 tasks,
and at the start of each task the share of dead units, the mean absolute weight and the effective rank of the hidden
layers. The `laptop` scale has narrow networks and short tasks, with which all of this happens within minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from neoteny.experiments.mnist.charts import draw_correlates, draw_over_tasks, short
from neoteny.experiments.mnist.settings import CORRELATES, SHARED_CHOSEN, SMALLER, bp
from neoteny.experiments.scales import pick, scale_of
from neoteny.problems import PermutedMNIST
from neoteny.report.chart import Chart
from neoteny.report.claim import Claim, Claims, Unchecked, Verdict, above, all_of, below, for_each, near
from neoteny.report.trends import Trend, trend
from neoteny.suite.sweep import Sweep

STEP_SIZES = (0.01, 0.003, 0.001)


def sweep(scale: str) -> Sweep:
    """BP at three step sizes."""
    problem, width, runs, stack_size = pick(
        scale,
        smoke=(PermutedMNIST(tasks=6, examples_per_task=60, source="synthetic"), 20, 2, 100),
        laptop=(PermutedMNIST(tasks=200, examples_per_task=2000), 20, 8, 12),
        paper=(PermutedMNIST(tasks=800, examples_per_task=60_000), 2000, 30, 30),
    )
    return Sweep(
        problem=problem,
        settings=tuple(bp(width, step_size) for step_size in STEP_SIZES),
        runs=runs,
        measures=CORRELATES,
        probe_examples=200 if scale == "smoke" else 2000,
        stack_size=stack_size,
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


claims = Claims()
claim = claims.add


def claims_at(step_sizes: Sequence[float]) -> tuple[Claim, ...]:
    """The claims about each step size, checked at these."""
    return tuple(
        replace(one, check=partial(one.check, step_sizes=step_sizes)) for one in claims if one.scale != "paper"
    )


def _bp(frame: pd.DataFrame, metric: str, step_size: float) -> Trend:
    return trend(frame, metric, method="BP", step_size=step_size)


@claim("rises-first", "Section 3, Figure 2b (left)")
def rises_first(frame: pd.DataFrame, step_sizes: Sequence[float] = STEP_SIZES) -> Verdict:
    """At each step size accuracy first rises over tasks: some later twentieth of them is better than the first task."""
    what = "best later bin less first task"
    return for_each(
        step_sizes, lambda size: above(_bp(frame, "accuracy", size).rise, what=f"step size {size:g}, {what}")
    )


@claim("falls-after", "Section 3, Figure 2b (left)")
def falls_after(frame: pd.DataFrame, step_sizes: Sequence[float] = STEP_SIZES) -> Verdict:
    """At each step size accuracy ends below its best: plasticity is lost."""
    what = "best bin less last bin"
    return for_each(
        step_sizes, lambda size: above(_bp(frame, "accuracy", size).drop, what=f"step size {size:g}, {what}")
    )


@claim("falls-steadily", "Section 3, Figure 2b (left)")
def falls_steadily(frame: pd.DataFrame, step_sizes: Sequence[float] = STEP_SIZES) -> Verdict:
    """After its best the accuracy falls steadily: still so in the last half of the tasks."""

    def check(step_size: float) -> Verdict:
        accuracy = _bp(frame, "accuracy", step_size)
        last_half = accuracy.slope(len(accuracy.bins) // 2)
        fall = above(accuracy.fall_speed, what=f"step size {step_size:g}, fall a bin from the best bin on")
        return all_of([fall, below(last_half, what=f"step size {step_size:g}, slope over the last half")])

    return for_each(step_sizes, check)


def _moves(metric: str, sign: int, late: bool = False) -> Callable[..., Verdict]:
    """Whether a metric grows (sign 1) or falls (sign -1) over all tasks, or over the second half of them."""

    def check(frame: pd.DataFrame, step_sizes: Sequence[float] = STEP_SIZES) -> Verdict:
        def at(step_size: float) -> Verdict:
            measure = _bp(frame, metric, step_size)
            growth = measure.late_growth if late else measure.growth
            since = "middle" if late else "first"
            return (above if sign > 0 else below)(growth, what=f"step size {step_size:g}, last bin less {since} bin")

        return for_each(step_sizes, at)

    return check


claim("dead-units-grow", "Section 4, Figure 3 (left)", "The share of dead units grows at each step size.")(
    _moves("dead_units", 1)
)
claim("dead-units-keep-growing", "Section 4", "Dead units keep becoming more: also over the second half of the tasks.")(
    _moves("dead_units", 1, late=True)
)


@claim("quarter-of-units-dead", "Section 4", scale="paper")
def quarter_dead(frame: pd.DataFrame) -> Verdict:
    """At step size 0.01 a quarter of the units are dead after 800 tasks."""
    return near(_bp(frame, "dead_units", 0.01).last, 0.25, 0.05, "share of dead units in the last bin")


claim("weights-grow", "Section 4, Figure 3 (centre)", "The mean absolute weight grows at each step size.")(
    _moves("weight_magnitude", 1)
)
claim("weights-keep-growing", "Section 4", "Weights keep growing: also over the second half of the tasks.")(
    _moves("weight_magnitude", 1, late=True)
)
claim("rank-falls", "Section 4, Figure 3 (right)", "The effective rank of the hidden layers falls at each step size.")(
    _moves("effective_rank", -1)
)
claim("rank-keeps-falling", "Section 4", "The effective rank keeps falling: also over the second half of the tasks.")(
    _moves("effective_rank", -1, late=True)
)


def _goes_with_accuracy(metric: str, sign: int) -> Callable[..., Verdict]:
    """Correlation over bins, from the best bin on, of a measure with accuracy, for each run."""

    def check(frame: pd.DataFrame, step_sizes: Sequence[float] = STEP_SIZES) -> Verdict:
        def at(step_size: float) -> Verdict:
            accuracy, measure = _bp(frame, "accuracy", step_size), _bp(frame, metric, step_size)
            start = min(accuracy.peak_bin, len(accuracy.bins) // 2)
            values = {
                seed: _correlate(accuracy.bins[seed].to_numpy()[start:], measure.bins[seed].to_numpy()[start:])
                for seed in accuracy.bins.columns.intersection(measure.bins.columns)
            }
            what = f"step size {step_size:g}, correlation with accuracy"
            return (above if sign > 0 else below)(pd.Series(values, dtype=np.float64), what=what)

        return for_each(step_sizes, at)

    return check


def _correlate(first: np.ndarray, second: np.ndarray) -> float:
    """Pearson's correlation; nan where either does not vary or the lengths differ (tasks left unmeasured)."""
    if len(first) != len(second) or len(first) < 3:
        return float("nan")
    centred, other = first - first.mean(), second - second.mean()
    scale = float(np.sqrt((centred**2).sum() * (other**2).sum()))
    return float((centred * other).sum() / scale) if scale > 0 else float("nan")


for _name, _measure, _sign, _which in (
    ("dead-units-go-with-loss", "dead_units", -1, "more dead units"),
    ("weights-go-with-loss", "weight_magnitude", -1, "larger weights"),
    ("rank-goes-with-loss", "effective_rank", 1, "a lower effective rank"),
):
    claim(_name, "Section 4", f"While accuracy falls, tasks with {_which} are tasks with less accuracy.")(
        _goes_with_accuracy(_measure, _sign)
    )


@claim("middle-step-size-best", "Appendix A", scale="paper")
def middle_step_size_best(frame: pd.DataFrame) -> Verdict:
    """Of the three step sizes 0.003 has the best accuracy over all tasks."""
    mean = {size: _bp(frame, "accuracy", size).mean for size in STEP_SIZES}
    return for_each(
        [0.01, 0.001], lambda size: above(mean[0.003], mean[size], f"mean accuracy at 0.003 less that at {size:g}")
    )


unchecked = (
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
