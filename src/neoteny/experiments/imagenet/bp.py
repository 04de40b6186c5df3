"""Loss of plasticity in Continual ImageNet

Figure 1 and Section 2 of the paper: backpropagation at three step sizes on a long sequence of binary tasks, over the
first ten tasks and over all of them in bins of 50, against a linear baseline. At the paper's scale the step sizes 0.1
and 0.003, which the paper only mentions, run too, so that what it says of them can be checked.
"""

from __future__ import annotations

import math
from itertools import permutations

import pandas as pd

from neoteny.experiments.imagenet import settings
from neoteny.experiments.imagenet.settings import draw_accuracies, make_setting, window_size
from neoteny.experiments.scales import not_checked, pick, scale_of
from neoteny.report.chart import Chart
from neoteny.report.claim import Claims, Verdict, above, all_of, any_of, below, for_each, near
from neoteny.report.statistics import estimate_share, per_run, select
from neoteny.report.trends import Line, average, best_of, binned, fall, finished, peak
from neoteny.suite.sweep import Assumption, Sweep

MENTIONED = (0.1, 0.003)
"""Step sizes that the paper mentions and does not draw."""
CHANCE = 0.55
"""Accuracy on two classes below which a network has learned next to nothing."""
SLIGHTLY = 0.05
POINT = 0.01
"""A change by less than one point of accuracy counts as none; the best of several bins is never below the others."""
FIRST_TASKS = 10
SOON = (10, 50)
"""The tasks that come after the first few."""
NOT_DRAWN = Assumption(
    "step sizes 0.1 and 0.003", "run and not drawn", "the paper says how they did and leaves them out of its figure"
)


def step_sizes(scale: str) -> tuple[float, ...]:
    """What is drawn, the largest first."""
    return pick(scale, smoke=(0.01, 0.001), laptop=(0.03, 0.01, 0.003), paper=(0.01, 0.001, 0.0001))


def sweep(scale: str) -> Sweep:
    """Backpropagation and the linear baseline over step sizes."""
    shown = (*step_sizes(scale), *(MENTIONED if scale == "paper" else ()))
    baselines = pick(scale, smoke=(0.001,), laptop=(0.01, 0.003, 0.001), paper=step_sizes("paper"))
    not_drawn = (NOT_DRAWN,) if scale == "paper" else ()
    return Sweep(
        problem=settings.make_problem(scale, paper_tasks=2000),
        settings=(
            *(make_setting(scale, "BP", step_size) for step_size in shown),
            *(make_setting(scale, "Linear", step_size) for step_size in baselines),
        ),
        runs=pick(scale, smoke=2, laptop=10, paper=30),
        stack_size=settings.stack_size(scale),
        chosen=(*settings.choose(scale), settings.choose_for_baseline(baselines), *not_drawn),
    )


def figure(frame: pd.DataFrame) -> list[Chart]:
    """The first ten tasks, and all tasks in bins."""
    return draw_bp(frame, _drawn(frame), settings.bin_size(frame), "Backpropagation on Continual ImageNet")


def draw_bp(frame: pd.DataFrame, sizes: tuple[float, ...], bin_tasks: int, group: str) -> list[Chart]:
    """Backpropagation at these step sizes and the linear baseline, over the first tasks and over all."""
    lines: list[Line] = [
        (f"step size {size:g}", select_bp(frame, size), {"method": f"step size {size:g}"}) for size in sizes
    ]
    lines.append(("linear baseline", select_linear(frame), {"method": "Linear", "dashed": True}))
    early = [(name, rows[rows["task"] < FIRST_TASKS], options) for name, rows, options in lines]
    charts = [
        draw_accuracies(f"First {FIRST_TASKS} tasks", 1, early, group=group),
        draw_accuracies("All tasks", bin_tasks, lines, group=group),
    ]
    return [chart for chart in charts if chart]


def select_bp(frame: pd.DataFrame, step_size: float) -> pd.DataFrame:
    """The accuracies of backpropagation at a step size."""
    return select(frame, "accuracy", method="BP", step_size=step_size)


def select_linear(frame: pd.DataFrame, by_others: bool = False) -> pd.DataFrame:
    """The best linear baseline; `by_others` as of `best_of`."""
    return best_of(select(frame, "accuracy", method="Linear"), "accuracy", True, by_others)


def _drawn(frame: pd.DataFrame) -> tuple[float, ...]:
    """The step sizes of the figure at this scale, the largest first."""
    return step_sizes(scale_of(frame))


def _last(frame: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """Each run's mean over the last tasks (the last bin at the paper's scale)."""
    return per_run(rows, -window_size(frame), None)


def _linear(frame: pd.DataFrame) -> pd.Series:
    return _last(frame, select_linear(frame, by_others=True))


def _best_bin(frame: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """Each run's accuracy in its best bin but the last."""
    return peak(binned(finished(rows), window_size(frame)).iloc[:-1])


def _falls(frame: pd.DataFrame, size: float) -> Verdict:
    loss = fall(select_bp(frame, size), window_size(frame))
    return above(loss, POINT, f"{size:g}, best bin less last bin")


claims = Claims()
claim = claims.add


@claim("from-89-to-77-percent", "Abstract", scale="paper")
def from_89_to_77_percent(frame: pd.DataFrame) -> Verdict:
    """Test accuracy drops from 89% on an early task to 77% on the 2000th (at one of the step sizes, within two points;
    the end is the mean of the last 50 tasks)."""
    verdicts = []
    for size in _drawn(frame):
        rows = select_bp(frame, size)
        early = peak(binned(finished(rows[rows["task"] < FIRST_TASKS]), 1))
        first = near(early, 0.89, 0.02, f"{size:g}, best of the first {FIRST_TASKS} tasks")
        verdicts.append(all_of([first, near(_last(frame, rows), 0.77, 0.02, f"{size:g}, last bin")]))
    return any_of(verdicts)


@claim("linear-network-at-77-percent", "Abstract", scale="paper")
def linear_network_at_77_percent(frame: pd.DataFrame) -> Verdict:
    """A linear network has about 77% (within two points)."""
    return near(_linear(frame), 0.77, 0.02, "linear baseline, last bin")


@claim("accuracy-falls-at-every-step-size", "Figure 1 right, Section 2", scale="paper")
def accuracy_falls(frame: pd.DataFrame) -> Verdict:
    """At every step size shown, accuracy in the last bin is below that of the best bin by more than a point."""
    return for_each(_drawn(frame), lambda size: _falls(frame, size))


@claim("the-loss-is-extensive", "Figure 1 right, Section 2", scale="paper")
def loss_is_extensive(frame: pd.DataFrame) -> Verdict:
    """At every step size shown, accuracy is above the linear baseline in its best bin (by more than a point), and more
    than half of that lead is gone at the end."""
    linear = _linear(frame)

    def check(size: float) -> Verdict:
        rows = select_bp(frame, size)
        best = _best_bin(frame, rows)
        lead = above(best, linear, f"{size:g}, best bin less linear baseline", margin=POINT)
        what = f"{size:g}, half of the best lead less the last lead"
        return all_of([lead, above(average([best, linear]), _last(frame, rows), what)])

    return for_each(_drawn(frame), check)


@claim("largest-step-size-starts-best", "Figure 1 left, Section 2")
def largest_starts_best(frame: pd.DataFrame) -> Verdict:
    """In the first two tasks no step size does as well as the largest (0.01 in the paper)."""
    first = {size: per_run(select_bp(frame, size), 0, 2) for size in _drawn(frame)}
    largest, *others = first
    return for_each(
        others, lambda size: above(first[largest], first[size], f"first two tasks, {largest:g} less {size:g}")
    )


@claim("largest-step-size-falls", "Figure 1, Section 2")
def largest_falls(frame: pd.DataFrame) -> Verdict:
    """At the largest step size (0.01 in the paper) accuracy ends below that of the first two tasks."""
    size = _drawn(frame)[0]
    rows = select_bp(frame, size)
    return above(per_run(rows, 0, 2), _last(frame, rows), f"{size:g}, first two tasks less the last ones")


@claim("largest-step-size-ends-below-linear", "Figure 1 right, Section 2")
def largest_ends_below_linear(frame: pd.DataFrame) -> Verdict:
    """At the largest step size (0.01 in the paper) accuracy ends below the linear baseline."""
    size = _drawn(frame)[0]
    last = _last(frame, select_bp(frame, size))
    return below(last, _linear(frame), f"last tasks, {size:g} less linear baseline")


@claim("small-step-sizes-rise-then-fall", "Figure 1, Section 2", scale="paper")
def small_rise_then_fall(frame: pd.DataFrame) -> Verdict:
    """At the smaller step sizes (0.001 and 0.0001 in the paper) accuracy rises above that of the first two tasks, and
    later falls from its best bin (each by more than a point)."""

    def check(size: float) -> Verdict:
        rows = select_bp(frame, size)
        what = f"{size:g}, best bin less first two tasks"
        return all_of([above(_best_bin(frame, rows), per_run(rows, 0, 2), what, POINT), _falls(frame, size)])

    return for_each(_drawn(frame)[1:], check)


@claim("small-step-sizes-end-near-linear", "Figure 1 right, Section 2", scale="paper")
def small_end_near_linear(frame: pd.DataFrame) -> Verdict:
    """At step sizes 0.001 and 0.0001 accuracy ends slightly above the linear baseline (by at most 5 points)."""
    linear = _linear(frame)

    def check(size: float) -> Verdict:
        last = _last(frame, select_bp(frame, size))
        lead = above(last, linear, f"last bin, {size:g} less linear baseline")
        return all_of([lead, below(last, linear, margin=SLIGHTLY)])

    return for_each(_drawn(frame)[1:], check)


@claim("first-tasks-sometimes-improve", "Figure 1 left")
def first_tasks_sometimes_improve(frame: pd.DataFrame) -> Verdict:
    """At some step size accuracy improves within the first ten tasks."""
    verdicts = []
    for size in _drawn(frame):
        rows = select_bp(frame, size)
        best = peak(binned(finished(rows[rows["task"] < FIRST_TASKS]), 1).iloc[1:])
        verdicts.append(above(best, per_run(rows, 0, 1), f"{size:g}, best of the first ten less the first", POINT))
    return any_of(verdicts)


@claim("step-size-0.1-diverges", "Section 2", scale="paper")
def largest_mentioned_diverges(frame: pd.DataFrame) -> Verdict:
    """At step size 0.1 the network breaks down soon: most runs have diverged or are at chance in tasks 11 to 50, and at
    the end."""
    rows = select_bp(frame, 0.1)
    whens = {f"tasks {SOON[0] + 1} to {SOON[1]}": per_run(rows, *SOON), "the last bin": _last(frame, rows)}
    what = "share of the runs at 0.1 that have diverged or are at chance in"
    return for_each(whens.items(), lambda item: above(estimate_share(~(item[1] > CHANCE)), 0.5, f"{what} {item[0]}"))


@claim("intermediate-step-size-follows", "Section 2", scale="paper")
def intermediate_follows(frame: pd.DataFrame) -> Verdict:
    """Step size 0.003 follows the trend of the others: it falls from its best bin and ends near the linear baseline or
    below."""
    last = _last(frame, select_bp(frame, 0.003))
    lead = below(last, _linear(frame), "last bin, 0.003 less linear baseline", margin=SLIGHTLY)
    return all_of([_falls(frame, 0.003), lead])


@claim("every-step-size-ends-poorly", "Section 2", scale="paper")
def every_step_size_ends_poorly(frame: pd.DataFrame) -> Verdict:
    """At every step size run, 0.1 and 0.003 too, accuracy ends less than 5 points above the linear baseline, or below
    it."""
    linear = _linear(frame)

    def check(size: float) -> Verdict:
        # A run that diverged can only guess, which is right for one half of the images.
        last = _last(frame, select_bp(frame, size)).fillna(0.5)
        return below(last, linear, f"last bin, {size:g} less linear baseline", margin=SLIGHTLY)

    return for_each((*_drawn(frame), *MENTIONED), check)


@claim("step-size-changes-when-the-drop-begins", "Section 2", scale="paper")
def step_size_changes_when(frame: pd.DataFrame) -> Verdict:
    """When the drop begins depends on the step size: at the largest and at the smallest shown, the best bins are more
    than half a bin apart."""
    ends = (_drawn(frame)[0], _drawn(frame)[-1])
    number = {size: _number_best_bin(frame, select_bp(frame, size)) for size in ends}
    return any_of(
        [
            above(number[later], number[sooner], f"number of the best bin, {later:g} less {sooner:g}", margin=0.5)
            for later, sooner in permutations(ends, 2)
        ]
    )


def _number_best_bin(frame: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """Each finished run's number of its best bin, nan for one that diverged."""
    bins = binned(finished(rows), window_size(frame))
    if bins.empty:
        return per_run(rows)
    return bins.reset_index(drop=True).fillna(-math.inf).idxmax().astype(float).where(bins.notna().all())


unchecked = not_checked("""
- Other networks and other ways of training them behave alike: better at first, then much worse. | Section 2 | the
  paper does not say which; here one network and one optimizer run, at several step sizes
- When the drop begins depends on the network and on the optimizer, too. | Section 2 | only the step size varies here,
  and for it there is a claim
- One of the authors reproduced the result independently. | Section 2 | about how the paper was made, not about results
- Networks learned ImageNet's 1000 classes with errors far below those of earlier methods. | Section 2 | about the
  classical train-once problem, which is not run here
""")
