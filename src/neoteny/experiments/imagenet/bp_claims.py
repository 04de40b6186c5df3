"""What the paper says about backpropagation on Continual ImageNet, as claims on the results of imagenet-bp.

Before this: `imagenet_settings`. After it: `imagenet_bp`, which runs and draws what is judged here.
"""

from __future__ import annotations

import math
from itertools import permutations
from typing import TYPE_CHECKING

from neoteny.experiments.imagenet.settings import window_size
from neoteny.experiments.scales import pick, scale_of
from neoteny.report.claim import Claim, Unchecked, Verdict, above, all_of, any_of, below, near
from neoteny.report.statistics import estimate, paired, per_run, select
from neoteny.report.trends import average, best_of, binned, fall, finished, peak

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
SOON = (10, 50)
"""The tasks that come after the first few."""


def step_sizes(scale: str) -> tuple[float, ...]:
    """What is drawn, the largest first."""
    return pick(scale, smoke=(0.01, 0.001), laptop=(0.03, 0.01, 0.003), paper=(0.01, 0.001, 0.0001))


def select_bp(frame: pd.DataFrame, step_size: float) -> pd.DataFrame:
    """The accuracies of backpropagation at a step size."""
    return select(frame, "accuracy", method="BP", step_size=step_size)


def select_linear(frame: pd.DataFrame) -> pd.DataFrame:
    """The best linear baseline."""
    return best_of(select(frame, "accuracy", method="Linear"), "accuracy", higher_is_better=True)


def drawn_step_sizes(frame: pd.DataFrame) -> tuple[float, ...]:
    """The step sizes of the figure at this scale, the largest first."""
    return step_sizes(scale_of(frame))


def _largest(frame: pd.DataFrame) -> list[tuple[float, pd.DataFrame]]:
    """The largest step size of the figure with its rows, or nothing."""
    return [(size, select_bp(frame, size)) for size in drawn_step_sizes(frame)[:1]]


def _last(frame: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """Each run's mean over the last tasks (the last bin at the paper's scale)."""
    return per_run(rows, -window_size(frame), None)


def _fall(frame: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """Each run's fall from its best bin to its last."""
    return fall(rows, window_size(frame))


def _best_bin(frame: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """Each run's accuracy in its best bin but the last."""
    return peak(binned(finished(rows), window_size(frame)).iloc[:-1])


def _check_headline(frame: pd.DataFrame) -> Verdict:
    verdicts = []
    for size in drawn_step_sizes(frame):
        rows = select_bp(frame, size)
        early = peak(binned(finished(rows[rows["task"] < FIRST_TASKS]), 1))
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
    return near(estimate(_last(frame, select_linear(frame))), 0.77, 0.02, "linear baseline, last bin")


def _check_falls(frame: pd.DataFrame) -> Verdict:
    return all_of(
        [
            above(estimate(_fall(frame, select_bp(frame, size))), POINT, f"{size:g}, best bin less last bin")
            for size in drawn_step_sizes(frame)
        ]
    )


def _check_extensive(frame: pd.DataFrame) -> Verdict:
    linear = _last(frame, select_linear(frame))
    verdicts = []
    for size in drawn_step_sizes(frame):
        best = _best_bin(frame, select_bp(frame, size))
        halfway = average([best, linear])
        verdicts += [
            above(paired(best, linear), POINT, f"{size:g}, best bin less linear baseline"),
            above(
                paired(halfway, _last(frame, select_bp(frame, size))),
                what=f"{size:g}, half of the best lead less the last lead",
            ),
        ]
    return all_of(verdicts)


def _check_largest_first(frame: pd.DataFrame) -> Verdict:
    sizes = drawn_step_sizes(frame)
    return all_of(
        [
            above(
                paired(per_run(select_bp(frame, sizes[0]), 0, 2), per_run(select_bp(frame, size), 0, 2)),
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
    linear = _last(frame, select_linear(frame))
    return all_of(
        [
            below(paired(_last(frame, rows), linear), what=f"last tasks, {size:g} less linear baseline")
            for size, rows in _largest(frame)
        ]
    )


def _check_small_rise(frame: pd.DataFrame) -> Verdict:
    verdicts = []
    for size in drawn_step_sizes(frame)[1:]:
        rows = select_bp(frame, size)
        rise = paired(_best_bin(frame, rows), per_run(rows, 0, 2))
        verdicts.append(above(rise, POINT, f"{size:g}, best bin less first two tasks"))
        verdicts.append(above(estimate(_fall(frame, rows)), POINT, f"{size:g}, best bin less last bin"))
    return all_of(verdicts)


def _check_small_end(frame: pd.DataFrame) -> Verdict:
    verdicts = []
    for size in drawn_step_sizes(frame)[1:]:
        lead = paired(_last(frame, select_bp(frame, size)), _last(frame, select_linear(frame)))
        verdicts += [above(lead, what=f"last bin, {size:g} less linear baseline"), below(lead, SLIGHTLY)]
    return all_of(verdicts)


def _check_first_tasks(frame: pd.DataFrame) -> Verdict:
    verdicts = []
    for size in drawn_step_sizes(frame):
        rows = select_bp(frame, size)
        best = peak(binned(finished(rows[rows["task"] < FIRST_TASKS]), 1).iloc[1:])
        verdicts.append(
            above(paired(best, per_run(rows, 0, 1)), POINT, f"{size:g}, best of the first ten less the first")
        )
    return any_of(verdicts)


def _check_diverges(frame: pd.DataFrame) -> Verdict:
    rows = select_bp(frame, 0.1)
    whens = {f"tasks {SOON[0] + 1} to {SOON[1]}": per_run(rows, *SOON), "the last bin": _last(frame, rows)}
    return all_of(
        [
            above(
                estimate((~(values > CHANCE)).astype(float)),
                0.5,
                f"share of the runs at 0.1 that have diverged or are at chance in {when}",
            )
            for when, values in whens.items()
        ]
    )


def _check_poor_end(frame: pd.DataFrame) -> Verdict:
    linear = _last(frame, select_linear(frame))
    verdicts = []
    for size in (*drawn_step_sizes(frame), *MENTIONED):
        last = _last(frame, select_bp(frame, size))
        # A run that diverged can only guess, which is right for one half of the images.
        lead = paired(last.fillna(0.5), linear)
        verdicts.append(below(lead, SLIGHTLY, f"last bin, {size:g} less linear baseline"))
    return all_of(verdicts)


def _check_when(frame: pd.DataFrame) -> Verdict:
    """Whether the best bins of the largest and the smallest step size are apart, whichever comes first."""
    ends = (drawn_step_sizes(frame)[0], drawn_step_sizes(frame)[-1])
    numbers = {size: _number_best_bin(frame, select_bp(frame, size)) for size in ends}
    return any_of(
        [
            above(paired(numbers[later], numbers[sooner]), 0.5, f"number of the best bin, {later:g} less {sooner:g}")
            for later, sooner in permutations(numbers, 2)
        ]
    )


def _number_best_bin(frame: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """Each finished run's number of its best bin, nan for one that diverged."""
    bins = binned(finished(rows), window_size(frame))
    if bins.empty:
        return per_run(rows)
    return bins.reset_index(drop=True).fillna(-math.inf).idxmax().astype(float).where(bins.notna().all())


def _check_intermediate(frame: pd.DataFrame) -> Verdict:
    rows = select_bp(frame, 0.003)
    lead = paired(_last(frame, rows), _last(frame, select_linear(frame)))
    return all_of(
        [
            above(estimate(_fall(frame, rows)), POINT, "0.003, best bin less last bin"),
            below(lead, SLIGHTLY, "last bin, 0.003 less linear baseline"),
        ]
    )


CLAIMS: tuple[Claim, ...] = (
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
        "At every step size shown, accuracy is above the linear baseline in its best bin (by more than a point), and "
        "more than half of that lead is gone at the end.",
        "Figure 1 right, Section 2",
        _check_extensive,
        scale="paper",
    ),
    Claim(
        "largest-step-size-starts-best",
        "In the first two tasks no step size does as well as the largest (0.01 in the paper).",
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
        "At the smaller step sizes (0.001 and 0.0001 in the paper) accuracy rises above that of the first two tasks, "
        "and later falls from its best bin (each by more than a point).",
        "Figure 1, Section 2",
        _check_small_rise,
        scale="paper",
    ),
    Claim(
        "small-step-sizes-end-near-linear",
        "At step sizes 0.001 and 0.0001 accuracy ends slightly above the linear baseline (by at most "
        f"{100 * SLIGHTLY:g} points).",
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
        f"At step size 0.1 the network breaks down soon: most runs have diverged or are at chance in tasks "
        f"{SOON[0] + 1} to {SOON[1]}, and at the end.",
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
    Claim(
        "every-step-size-ends-poorly",
        f"At every step size run, 0.1 and 0.003 too, accuracy ends less than {100 * SLIGHTLY:g} points above the "
        "linear baseline, or below it.",
        "Section 2",
        _check_poor_end,
        scale="paper",
    ),
    Claim(
        "step-size-changes-when-the-drop-begins",
        "When the drop begins depends on the step size: at the largest and at the smallest shown, the best bins are "
        "more than half a bin apart.",
        "Section 2",
        _check_when,
        scale="paper",
    ),
)

UNCHECKED: tuple[Unchecked, ...] = (
    Unchecked(
        "Other networks and other ways of training them behave alike: better at first, then much worse.",
        "Section 2",
        "the paper does not say which; here one network and one optimizer run, at several step sizes",
    ),
    Unchecked(
        "When the drop begins depends on the network and on the optimizer, too.",
        "Section 2",
        "only the step size varies here, and for it there is a claim",
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
