"""Backpropagation on online permuted MNIST at three step sizes

Figure 2b (left) and Figure 3 of the paper, Sections 3 and 4: online accuracy of plain backpropagation over 800 tasks,
and at the start of each task the share of dead units, the mean absolute weight and the effective rank of the hidden
layers. The `laptop` scale has narrow networks and short tasks, with which all of this happens within minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from neoteny.experiments.mnist.charts import draw_correlates, draw_over_tasks, short
from neoteny.experiments.mnist.settings import CORRELATES, SHARED_CHOSEN, SMALLER, bp
from neoteny.experiments.scales import not_checked, pick, scale_of, split_entries
from neoteny.problems import PermutedMNIST
from neoteny.report.chart import Chart
from neoteny.report.claim import Claim, Claims, Verdict, above, all_of, below, for_each, near
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
    shared = (lambda row: f"step size {short(row['step_size'])}", sweep(scale_of(frame)).settings)
    accuracy = draw_over_tasks(frame, "accuracy", *shared, title="Backpropagation at three step sizes")
    return [accuracy, *draw_correlates(frame, *shared, group="What changes in the network")]


claims = Claims()
claim = claims.add


def claims_at(step_sizes: Sequence[float]) -> tuple[Claim, ...]:
    """The claims about each step size, checked at these."""
    checks = [(one, partial(one.check, step_sizes=step_sizes)) for one in claims if one.scale != "paper"]
    return tuple(replace(one, check=check) for one, check in checks)


def _bp(frame: pd.DataFrame, metric: str, step_size: float) -> Trend:
    return trend(frame, metric, method="BP", step_size=step_size)


def _add_at_each(text: str) -> None:
    """Add claims that something is above or below 0 at each step size: "- name | source | statement | comparison"."""
    for name, source, statement, comparison in split_entries(text):
        claim(name, source, statement)(partial(_compare_at_each, *comparison.split()[:2]))


def _compare_at_each(
    quantity: str, sign: str, frame: pd.DataFrame, step_sizes: Sequence[float] = STEP_SIZES
) -> Verdict:
    metric, statistic = quantity.split(".")

    def check(size: float) -> Verdict:
        if statistic == "correlation":
            value = _correlations(frame, metric, size)
        else:
            value = getattr(_bp(frame, metric, size), statistic)
        return (above if sign == ">" else below)(value, what=f"step size {size:g}, {_EVIDENCE[statistic]}")

    return for_each(step_sizes, check)


_EVIDENCE = {
    "rise": "best later bin less first task",
    "drop": "best bin less last bin",
    "growth": "last bin less first bin",
    "late_growth": "last bin less middle bin",
    "correlation": "correlation with accuracy",
}


def _correlations(frame: pd.DataFrame, metric: str, step_size: float) -> pd.Series:
    """Correlation over bins, from the best bin on, of a measure with accuracy, for each run."""
    accuracy, measure = _bp(frame, "accuracy", step_size), _bp(frame, metric, step_size)
    if len(measure.tasks) < len(accuracy.tasks):  # measured at every n-th task: accuracy at the same ones
        accuracy = Trend(accuracy.tasks[accuracy.tasks.index.isin(measure.tasks.index)])
    start = min(accuracy.peak_bin, len(accuracy.bins) // 2)
    values = {
        seed: _correlate(accuracy.bins[seed].to_numpy()[start:], measure.bins[seed].to_numpy()[start:])
        for seed in accuracy.bins.columns.intersection(measure.bins.columns)
    }
    return pd.Series(values, dtype=np.float64)


def _correlate(first: np.ndarray, second: np.ndarray) -> float:
    """Pearson's correlation; nan where either does not vary."""
    if len(first) < 3:
        return float("nan")
    centred, other = first - first.mean(), second - second.mean()
    scale = float(np.sqrt((centred**2).sum() * (other**2).sum()))
    return float((centred * other).sum() / scale) if scale > 0 else float("nan")


_add_at_each("""
- rises-first | Section 3, Figure 2b (left) | At each step size accuracy first rises over tasks: some later twentieth
  of them is better than the first task. | accuracy.rise > 0
- falls-after | Section 3, Figure 2b (left) | At each step size accuracy ends below its best: plasticity is lost. |
  accuracy.drop > 0
""")


@claim("falls-steadily", "Section 3, Figure 2b (left)")
def falls_steadily(frame: pd.DataFrame, step_sizes: Sequence[float] = STEP_SIZES) -> Verdict:
    """After its best the accuracy falls steadily: still so in the last half of the tasks."""

    def check(step_size: float) -> Verdict:
        accuracy = _bp(frame, "accuracy", step_size)
        last_half = accuracy.slope(len(accuracy.bins) // 2)
        fall = above(accuracy.fall_speed, what=f"step size {step_size:g}, fall per bin from the best bin on")
        return all_of([fall, below(last_half, what=f"step size {step_size:g}, slope over the last half")])

    return for_each(step_sizes, check)


_add_at_each("""
- dead-units-grow | Section 4, Figure 3 (left) | The share of dead units grows at each step size. |
  dead_units.growth > 0
- dead-units-keep-growing | Section 4 | Dead units keep becoming more: also over the second half of the tasks. |
  dead_units.late_growth > 0
""")


@claim("quarter-of-units-dead", "Section 4", scale="paper")
def quarter_dead(frame: pd.DataFrame) -> Verdict:
    """At step size 0.01 a quarter of the units are dead after 800 tasks."""
    return near(_bp(frame, "dead_units", 0.01).last, 0.25, 0.05, "share of dead units in the last bin")


_add_at_each("""
- weights-grow | Section 4, Figure 3 (centre) | The mean absolute weight grows at each step size. |
  weight_magnitude.growth > 0
- weights-keep-growing | Section 4 | Weights keep growing: also over the second half of the tasks. |
  weight_magnitude.late_growth > 0
- rank-falls | Section 4, Figure 3 (right) | The effective rank of the hidden layers falls at each step size. |
  effective_rank.growth < 0
- rank-keeps-falling | Section 4 | The effective rank keeps falling: also over the second half of the tasks. |
  effective_rank.late_growth < 0
- dead-units-go-with-loss | Section 4 | While accuracy falls, tasks with more dead units are tasks with less accuracy. |
  dead_units.correlation < 0
- weights-go-with-loss | Section 4 | While accuracy falls, tasks with larger weights are tasks with less accuracy. |
  weight_magnitude.correlation < 0
- rank-goes-with-loss | Section 4 | While accuracy falls, tasks with a lower effective rank are tasks with less
  accuracy. | effective_rank.correlation > 0
""")


@claim("middle-step-size-best", "Appendix A", scale="paper")
def middle_step_size_best(frame: pd.DataFrame) -> Verdict:
    """Of the three step sizes 0.003 has the best accuracy over all tasks."""
    mean = {size: _bp(frame, "accuracy", size).mean for size in STEP_SIZES}
    return for_each(
        [0.01, 0.001], lambda size: above(mean[0.003], mean[size], f"mean accuracy at 0.003 less that at {size:g}")
    )


unchecked = not_checked("""
- More dead units, larger weights and a lower effective rank each cause a part of the loss. | Section 4 | These runs
  show that they go together; to show a cause one would have to change one of them alone.
- The loss in permuted MNIST is of the same kind as that on Continual ImageNet. | Section 3 | It compares two problems;
  see the claims of imagenet-bp.
- After each task the network has found a solution of low rank, from which the next task starts. | Section 4 | An
  explanation; the rank is measured before each task only, not before and after.
- Accuracy falls dramatically at the moment of a task change. | Section 3 | Accuracy is kept as a mean over each task,
  so that the moment of change is not seen.
""")
