"""Loss of plasticity in Continual ImageNet

Figure 1 and Section 2 of the paper: backpropagation at three step sizes on a long sequence of binary tasks, over the
first ten tasks and over all of them in bins of 50, against a linear baseline. At the paper's scale the step sizes 0.1
and 0.003, which the paper only mentions, run too, so that what it says of them can be checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neoteny.engine.sweep import Chosen, Sweep
from neoteny.experiments.imagenet_settings import (
    BASELINE,
    bin_size,
    choose,
    draw_accuracies,
    make_problem,
    make_setting,
    stack_size,
    window_size,
)
from neoteny.experiments.scales import pick, scale_of
from neoteny.experiments.windows import Line, best_of, binned, peak
from neoteny.report.chart import Chart
from neoteny.report.claim import Claim, Unchecked, Verdict, above, all_of, any_of, below, near
from neoteny.report.statistics import estimate, paired, per_run, select

if TYPE_CHECKING:
    import pandas as pd

MENTIONED = (0.1, 0.003)
"""Step sizes of which the paper speaks without drawing them."""
CHANCE = 0.55
"""Accuracy on two classes below which a network has learned next to nothing."""
SLIGHTLY = 0.05
POINT = 0.01
"""A change by less than one point of accuracy counts as none; the best of several bins is never below the others."""
FIRST_TASKS = 10


def _step_sizes(scale: str) -> tuple[float, ...]:
    """What is drawn, the largest first."""
    return pick(scale, smoke=(0.01, 0.001), laptop=(0.03, 0.01, 0.003), paper=(0.01, 0.001, 0.0001))


def sweep(scale: str) -> Sweep:
    """Backpropagation and the linear baseline over step sizes."""
    shown = (*_step_sizes(scale), *(MENTIONED if scale == "paper" else ()))
    baselines = pick(scale, smoke=(0.001,), laptop=(0.01, 0.003, 0.001), paper=_step_sizes("paper"))
    return Sweep(
        problem=make_problem(scale, paper_tasks=2000),
        settings=(
            *(make_setting(scale, "BP", step_size) for step_size in shown),
            *(make_setting(scale, "Linear", step_size) for step_size in baselines),
        ),
        runs=pick(scale, smoke=2, laptop=5, paper=30),
        stack_size=stack_size(scale),
        chosen=(
            *choose(scale),
            BASELINE,
            Chosen(
                "step sizes 0.1 and 0.003",
                "run at the paper's scale and not drawn",
                "the paper says how they did and leaves them out of its figure",
            ),
        ),
    )


def figure(frame: pd.DataFrame) -> list[Chart]:
    """The first ten tasks, and all tasks in bins."""
    linear = _linear(frame)
    lines: list[Line] = [
        (f"step size {size:g}", _bp(frame, size), {"method": f"step size {size:g}"}) for size in _drawn(frame)
    ]
    lines.append(("linear baseline", linear, {"method": "Linear", "dashed": True}))
    early = [(name, rows[rows["task"] < FIRST_TASKS], options) for name, rows, options in lines]
    group = "Backpropagation on Continual ImageNet"
    charts = [
        draw_accuracies(f"First {FIRST_TASKS} tasks", 1, early, group=group),
        draw_accuracies("All tasks", bin_size(frame), lines, group=group),
    ]
    return [chart for chart in charts if chart]


def _bp(frame: pd.DataFrame, step_size: float) -> pd.DataFrame:
    return select(frame, "accuracy", method="BP", step_size=step_size)


def _linear(frame: pd.DataFrame) -> pd.DataFrame:
    """The best linear baseline."""
    return best_of(select(frame, "accuracy", method="Linear"), "accuracy", higher_is_better=True)


def _drawn(frame: pd.DataFrame) -> tuple[float, ...]:
    """The step sizes of the figure at this scale, the largest first."""
    return _step_sizes(scale_of(frame))


def _largest(frame: pd.DataFrame) -> list[tuple[float, pd.DataFrame]]:
    """The largest step size of the figure with its rows, or nothing."""
    return [(size, _bp(frame, size)) for size in _drawn(frame)[:1]]


def _last(frame: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """Each run's mean over the last tasks (the last bin at the paper's scale)."""
    return per_run(rows, -window_size(frame), None)


def _fall(frame: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """Each run's fall from its best bin to its last."""
    return peak(binned(rows, window_size(frame)).iloc[:-1]) - _last(frame, rows)


def _check_headline(frame: pd.DataFrame) -> Verdict:
    verdicts = []
    for size in _drawn(frame):
        rows = _bp(frame, size)
        early = peak(binned(rows[rows["task"] < FIRST_TASKS], 1))
        verdicts.append(
            all_of(
                [
                    near(estimate(early), 0.89, 0.02, f"{size:g}, best of the first {FIRST_TASKS} tasks"),
                    near(estimate(_last(frame, rows)), 0.77, 0.02, f"{size:g}, last bin"),
                ]
            )
        )
    return any_of(verdicts)


def _check_linear_headline(frame: pd.DataFrame) -> Verdict:
    return near(estimate(_last(frame, _linear(frame))), 0.77, 0.02, "linear baseline, last bin")


def _check_falls(frame: pd.DataFrame) -> Verdict:
    return all_of(
        [
            above(estimate(_fall(frame, _bp(frame, size))), POINT, f"{size:g}, best bin less last bin")
            for size in _drawn(frame)
        ]
    )


def _check_extensive(frame: pd.DataFrame) -> Verdict:
    linear = _last(frame, _linear(frame))
    verdicts = []
    for size in _drawn(frame):
        last = _last(frame, _bp(frame, size))
        best = last + _fall(frame, _bp(frame, size))
        # Of the lead at the best bin, more than half must be gone.
        verdicts.append(
            above(paired((best + linear) / 2, last), what=f"{size:g}, half of the best lead less the last lead")
        )
    return all_of(verdicts)


def _check_largest_first(frame: pd.DataFrame) -> Verdict:
    sizes = _drawn(frame)
    return all_of(
        [
            above(
                paired(per_run(_bp(frame, sizes[0]), 0, 2), per_run(_bp(frame, size), 0, 2)),
                what=f"first two tasks, {sizes[0]:g} less {size:g}",
            )
            for size in sizes[1:]
        ]
    )


def _check_largest_falls(frame: pd.DataFrame) -> Verdict:
    return all_of(
        [
            above(paired(per_run(rows, 0, 2), _last(frame, rows)), what=f"{size:g}, first two tasks less the last ones")
            for size, rows in _largest(frame)
        ]
    )


def _check_largest_below_linear(frame: pd.DataFrame) -> Verdict:
    linear = _last(frame, _linear(frame))
    return all_of(
        [
            below(paired(_last(frame, rows), linear), what=f"last tasks, {size:g} less linear baseline")
            for size, rows in _largest(frame)
        ]
    )


def _check_small_rise(frame: pd.DataFrame) -> Verdict:
    verdicts = []
    for size in _drawn(frame)[1:]:
        rows = _bp(frame, size)
        rise = paired(peak(binned(rows, window_size(frame)).iloc[1:]), per_run(rows, 0, window_size(frame)))
        verdicts.append(above(rise, POINT, f"{size:g}, best bin less first bin"))
        verdicts.append(above(estimate(_fall(frame, rows)), POINT, f"{size:g}, best bin less last bin"))
    return all_of(verdicts)


def _check_small_end(frame: pd.DataFrame) -> Verdict:
    verdicts = []
    for size in _drawn(frame)[1:]:
        lead = paired(_last(frame, _bp(frame, size)), _last(frame, _linear(frame)))
        verdicts += [above(lead, what=f"last bin, {size:g} less linear baseline"), below(lead, SLIGHTLY)]
    return all_of(verdicts)


def _check_first_tasks(frame: pd.DataFrame) -> Verdict:
    verdicts = []
    for size in _drawn(frame):
        rows = _bp(frame, size)
        best = peak(binned(rows[rows["task"] < FIRST_TASKS], 1))
        verdicts.append(
            above(paired(best, per_run(rows, 0, 1)), POINT, f"{size:g}, best of the first ten less the first")
        )
    return any_of(verdicts)


def _check_diverges(frame: pd.DataFrame) -> Verdict:
    last = _last(frame, _bp(frame, 0.1))
    broken = (~(last > CHANCE)).astype(float)
    return above(estimate(broken), 0.5, "share of the runs at 0.1 that diverged or are at chance in the last bin")


def _check_intermediate(frame: pd.DataFrame) -> Verdict:
    rows = _bp(frame, 0.003)
    lead = paired(_last(frame, rows), _last(frame, _linear(frame)))
    return all_of(
        [
            above(estimate(_fall(frame, rows)), POINT, "0.003, best bin less last bin"),
            below(lead, SLIGHTLY, "last bin, 0.003 less linear baseline"),
        ]
    )


claims: tuple[Claim, ...] = (
    Claim(
        "from-89-to-77-percent",
        "Test accuracy drops from 89% on an early task to 77% on the 2000th (at one of the step sizes, within two "
        "points; the end is the mean of the last 50 tasks).",
        "Abstract",
        _check_headline,
        scale="paper",
    ),
    Claim(
        "linear-network-at-77-percent",
        "A linear network has about 77% (within two points).",
        "Abstract",
        _check_linear_headline,
        scale="paper",
    ),
    Claim(
        "accuracy-falls-at-every-step-size",
        "At every step size shown, accuracy in the last bin is below that of the best bin by more than a point.",
        "Figure 1 right, Section 2",
        _check_falls,
        scale="paper",
    ),
    Claim(
        "the-loss-is-extensive",
        "At every step size shown, more than half of the best lead over the linear baseline is gone at the end.",
        "Figure 1 right, Section 2",
        _check_extensive,
        scale="paper",
    ),
    Claim(
        "largest-step-size-starts-best",
        "The largest step size (0.01 in the paper) is the best on the first two tasks.",
        "Figure 1 left, Section 2",
        _check_largest_first,
    ),
    Claim(
        "largest-step-size-falls",
        "At the largest step size (0.01 in the paper) accuracy ends below that of the first two tasks.",
        "Figure 1, Section 2",
        _check_largest_falls,
    ),
    Claim(
        "largest-step-size-ends-below-linear",
        "At the largest step size (0.01 in the paper) accuracy ends below the linear baseline.",
        "Figure 1 right, Section 2",
        _check_largest_below_linear,
    ),
    Claim(
        "small-step-sizes-rise-then-fall",
        "At the smaller step sizes (0.001 and 0.0001 in the paper) accuracy first rises and then falls.",
        "Figure 1, Section 2",
        _check_small_rise,
        scale="paper",
    ),
    Claim(
        "small-step-sizes-end-near-linear",
        f"At step sizes 0.001 and 0.0001 accuracy ends slightly above the linear baseline (by at most {SLIGHTLY:.0%}).",
        "Figure 1 right, Section 2",
        _check_small_end,
        scale="paper",
    ),
    Claim(
        "first-tasks-sometimes-improve",
        "At some step size accuracy improves within the first ten tasks.",
        "Figure 1 left",
        _check_first_tasks,
    ),
    Claim(
        "step-size-0.1-diverges",
        "At step size 0.1 the network breaks down: most runs diverge or end at chance.",
        "Section 2",
        _check_diverges,
        scale="paper",
    ),
    Claim(
        "intermediate-step-size-follows",
        "Step size 0.003 follows the trend of the others: it falls from its best bin and ends near the linear "
        "baseline or below.",
        "Section 2",
        _check_intermediate,
        scale="paper",
    ),
)

unchecked: tuple[Unchecked, ...] = (
    Unchecked(
        "The same pattern appears with many network architectures, hyperparameters and optimizers.",
        "Section 2",
        "the paper does not say which; here one network and one optimizer run, at several step sizes",
    ),
    Unchecked(
        "Architecture, hyperparameters and optimizer change when the drop begins.",
        "Section 2",
        "only the step size varies here",
    ),
    Unchecked(
        "One of the authors reproduced the result independently.",
        "Section 2",
        "about how the paper was made, not about results",
    ),
    Unchecked(
        "Networks learned ImageNet's 1000 classes with errors far below those of earlier methods.",
        "Section 2",
        "about the classical train-once problem, which is not run here",
    ),
)
