"""PPO and three remedies on Slippery Ant

Figure C.11 and Appendix C of the paper: PPO, PPO with L2 regularisation, PPO with shrink and perturb and Continual PPO
on PyBullet's Ant, the friction of whose ground changes after every ten million steps; ten tasks, a hundred runs. Each
method has one setting here; `ant-sweep` searches the paper's grids. All methods meet the same frictions: run k has
the same sequence in each.

At the `laptop` scale tasks are fifty times shorter. Agents then still learn to walk while the friction changes, and
what the paper reports of converged agents may not show.
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.ant.settings import FIXED, METHODS, choose_fixed, make_setting, make_sweep, points_per_task
from neoteny.experiments.ant.trends import draw_trends, find_drops, find_loss, take_early, take_first, take_late
from neoteny.experiments.scales import pick, scale_of
from neoteny.report.chart import Chart
from neoteny.report.claim import Claim, Outcome, Unchecked, Verdict, above, all_of, below
from neoteny.report.statistics import estimate, paired, select
from neoteny.report.trends import Line, compare
from neoteny.suite.sweep import Sweep

SMALL_LOSS = 0.1
"""A loss below this share of the early return counts as small."""


def sweep(scale: str) -> Sweep:
    """One setting of each method."""
    fixed = pick(scale, **FIXED)
    settings = (
        make_setting(scale),
        make_setting(scale, l2=fixed.l2),
        make_setting(scale, l2=fixed.l2, noise_std=fixed.noise_std),
        make_setting(scale, pair=fixed.pair),
    )
    return make_sweep(scale, settings, pick(scale, smoke=2, laptop=3, paper=100), choose_fixed(scale))


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Everything over tasks, one line a method."""
    lines: list[Line] = [(method, frame[frame["method"] == method], {"method": method}) for method in METHODS]
    return draw_trends(frame, lines)


def _returns(frame: pd.DataFrame, method: str) -> pd.DataFrame:
    return select(frame, "return", method=method)


def _check_below_first(frame: pd.DataFrame) -> Verdict:
    rows = _returns(frame, "PPO")
    return below(paired(take_late(rows), take_first(rows)), what="PPO, last tasks less first task")


def _check_falls(frame: pd.DataFrame) -> Verdict:
    return above(estimate(find_loss(_returns(frame, "PPO"))), what="PPO, early tasks less last tasks")


def check_better(better: pd.DataFrame, worse: pd.DataFrame, what: str) -> Verdict:
    """Whether one setting's return is above another's, over all tasks and over the last ones."""
    return all_of(
        [
            above(compare(better, worse), what=f"mean over all tasks, {what}"),
            above(paired(take_late(better), take_late(worse)), what=f"last tasks, {what}"),
        ]
    )


def _check_better_than_ppo(frame: pd.DataFrame, method: str) -> Verdict:
    return check_better(_returns(frame, method), _returns(frame, "PPO"), f"{method} less PPO")


def _check_best(frame: pd.DataFrame) -> Verdict:
    best = _returns(frame, "Continual PPO")
    return all_of(
        [
            above(compare(best, _returns(frame, other)), what=f"mean over all tasks, Continual PPO less {other}")
            for other in METHODS[:-1]
        ]
    )


def check_small_loss(rows: pd.DataFrame, what: str) -> Verdict:
    """Whether less than a tenth of the early return is lost; unanswered while that may be zero or less."""
    early, loss = take_early(rows), find_loss(rows)
    share = f"{SMALL_LOSS:g} of the early {estimate(early)}"
    verdict = below(paired(loss, SMALL_LOSS * early), what=f"{what}, early tasks less last tasks less {share}")
    if above(estimate(early)).outcome is Outcome.HOLDS:
        return verdict
    evidence = f"{what}, early tasks: {estimate(early)}; a share of it means something above 0 only"
    return Verdict(Outcome.INCONCLUSIVE, evidence, verdict.coverage)


def _check_loses_less(frame: pd.DataFrame) -> Verdict:
    losses = [find_loss(_returns(frame, method)) for method in ("Continual PPO", "PPO")]
    return below(paired(*losses), what="early tasks less last tasks, Continual PPO less PPO")


def _check_drops(frame: pd.DataFrame) -> Verdict:
    points = points_per_task(scale_of(frame))
    return all_of(
        [
            above(
                estimate(find_drops(select(frame, "return.curve", method=method), points)),
                what=f"{method}, just before a change less just after it",
            )
            for method in ("PPO", "Continual PPO")
        ]
    )


claims: tuple[Claim, ...] = (
    Claim(
        "ppo-ends-below-its-first-task",
        "PPO begins well and gets worse: its last tasks are below its first.",
        "Figure C.11, Appendix C",
        _check_below_first,
    ),
    Claim(
        "ppo-falls-over-tasks",
        "PPO's return falls from task to task: over runs, whose frictions average out, the last third of the tasks "
        "with drawn frictions is below the first third of them.",
        "Figure C.11, Appendix C",
        _check_falls,
    ),
    Claim(
        "l2-is-better-than-ppo",
        "PPO with L2 regularisation has a higher return than PPO, over all tasks and in the last ones.",
        "Figure C.11, Appendix C",
        lambda frame: _check_better_than_ppo(frame, "PPO+L2"),
    ),
    Claim(
        "sp-is-better-than-ppo",
        "PPO with shrink and perturb has a higher return than PPO, over all tasks and in the last ones.",
        "Figure C.11, Appendix C",
        lambda frame: _check_better_than_ppo(frame, "PPO+S&P"),
    ),
    Claim(
        "continual-ppo-is-better-than-ppo",
        "Continual PPO has a higher return than PPO, over all tasks and in the last ones.",
        "Figure C.11, Appendix C",
        lambda frame: _check_better_than_ppo(frame, "Continual PPO"),
    ),
    Claim(
        "continual-ppo-is-best",
        "Continual PPO has the highest return of the four over all tasks.",
        "Figure C.11, Appendix C",
        _check_best,
    ),
    Claim(
        "continual-ppo-almost-keeps-its-performance",
        "Continual PPO performs almost as well at the end as at the beginning: it loses less than a tenth.",
        "Figure C.11, Appendix C",
        lambda frame: check_small_loss(_returns(frame, "Continual PPO"), "Continual PPO"),
    ),
    Claim(
        "continual-ppo-loses-a-little",
        "Continual PPO does not keep all of its performance: there is still a small drop.",
        "Figure C.11, Appendix C",
        lambda frame: above(
            estimate(find_loss(_returns(frame, "Continual PPO"))), what="Continual PPO, early tasks less last tasks"
        ),
    ),
    Claim(
        "continual-ppo-loses-less-than-ppo",
        "Over the same frictions, Continual PPO loses less of its return than PPO.",
        "Figure C.11, Appendix C",
        _check_loses_less,
    ),
    Claim(
        "returns-drop-at-changes",
        "The return drops whenever the friction changes, for PPO and for Continual PPO: it looks like the teeth of a "
        "saw.",
        "Figure C.11, Appendix C",
        _check_drops,
    ),
)

unchecked: tuple[Unchecked, ...] = (
    Unchecked(
        "PPO degrades as backpropagation does in supervised learning, on which it rests.",
        "Appendix C",
        "a comparison of problems whose performances have no common measure; see mnist-methods and imagenet-methods",
    ),
    Unchecked(
        "What Continual PPO still loses may come from the many other parts of PPO.",
        "Appendix C",
        "a conjecture; nothing here tells these parts from each other",
    ),
    Unchecked(
        "Networks of tanh units do best with algorithms like PPO.",
        "Appendix C",
        "the paper cites this from elsewhere; no other activation runs here",
    ),
)
