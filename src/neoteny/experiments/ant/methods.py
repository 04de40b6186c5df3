"""PPO and three remedies on Slippery Ant

Figure C.11 and Appendix C of the paper: PPO, PPO with L2 regularisation, PPO with shrink and perturb and Continual PPO
on PyBullet's Ant, the friction of whose ground changes after every ten million steps; ten tasks, a hundred runs. Each
method has one setting here; `ant-sweep` searches the paper's grids. All methods meet the same frictions: run k has
the same sequence in each.

At the `laptop` scale tasks are fifty times shorter. Agents then still learn to walk while the friction changes, and
what the paper reports of converged agents may not show.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from neoteny.experiments.ant.charts import draw_trends
from neoteny.experiments.ant.settings import FIXED, METHODS, choose_fixed, make_setting, make_sweep, points_per_task
from neoteny.experiments.scales import not_checked, pick, scale_of
from neoteny.report.chart import Chart
from neoteny.report.claim import Claims, Outcome, Verdict, above, all_of, below, for_each
from neoteny.report.statistics import estimate, per_run, select
from neoteny.report.trends import find_drops, find_loss, take_early, take_first, take_late
from neoteny.suite.sweep import Sweep

SMALL_LOSS = 0.1
"""A loss below this share of the early return counts as small."""
SOURCE = "Figure C.11, Appendix C"


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
    """Everything over tasks, one line per method."""
    return draw_trends(frame, [(method, frame[frame["method"] == method], {"method": method}) for method in METHODS])


def _returns(frame: pd.DataFrame, method: str) -> pd.DataFrame:
    return select(frame, "return", method=method)


def is_better(better: pd.DataFrame, worse: pd.DataFrame, what: str) -> Verdict:
    """Whether one setting's return is above another's, over all tasks and over the last ones."""
    overall = above(per_run(better), per_run(worse), f"mean over all tasks, {what}")
    return all_of([overall, above(take_late(better), take_late(worse), f"last tasks, {what}")])


def continual_ppo_is_best(frame: pd.DataFrame, returns: Callable[..., pd.DataFrame] = _returns) -> Verdict:
    """Whether Continual PPO has the highest return over all tasks; `returns` are those of a method in a frame."""
    mean = {method: per_run(returns(frame, method)) for method in METHODS}
    what = "mean over all tasks, Continual PPO less"
    return for_each(METHODS[:-1], lambda other: above(mean["Continual PPO"], mean[other], f"{what} {other}"))


def loses_little(rows: pd.DataFrame, what: str) -> Verdict:
    """Whether less than a tenth of the early return is lost; inconclusive while that may be zero or less."""
    early, loss = take_early(rows), find_loss(rows)
    share = f"{SMALL_LOSS:g} of the early {estimate(early)}"
    verdict = below(loss, SMALL_LOSS * early, f"{what}, early tasks less last tasks less {share}")
    if above(early).outcome is Outcome.HOLDS:
        return verdict
    evidence = f"{what}, early tasks: {estimate(early)}; a share of it means something above 0 only"
    return Verdict(Outcome.INCONCLUSIVE, evidence, verdict.coverage)


claims = Claims()
claim = claims.add


@claim("ppo-ends-below-its-first-task", SOURCE)
def ppo_ends_below_its_first_task(frame: pd.DataFrame) -> Verdict:
    """PPO begins well and gets worse: its last tasks are below its first."""
    rows = _returns(frame, "PPO")
    return below(take_late(rows), take_first(rows), "PPO, last tasks less first task")


@claim("ppo-falls-over-tasks", SOURCE)
def ppo_falls_over_tasks(frame: pd.DataFrame) -> Verdict:
    """PPO's return falls from task to task: over runs, whose frictions average out, the last third of the tasks with
    drawn frictions is below the first third of them."""
    return above(find_loss(_returns(frame, "PPO")), what="PPO, early tasks less last tasks")


for _name, _words, _method in (
    ("l2-is-better-than-ppo", "PPO with L2 regularisation", "PPO+L2"),
    ("sp-is-better-than-ppo", "PPO with shrink and perturb", "PPO+S&P"),
    ("continual-ppo-is-better-than-ppo", "Continual PPO", "Continual PPO"),
):

    @claim(_name, SOURCE, f"{_words} has a higher return than PPO, over all tasks and in the last ones.")
    def is_better_than_ppo(frame: pd.DataFrame, method: str = _method) -> Verdict:
        """Whether a method's return is above PPO's."""
        return is_better(_returns(frame, method), _returns(frame, "PPO"), f"{method} less PPO")


claim("continual-ppo-is-best", SOURCE, "Continual PPO has the highest return of the four over all tasks.")(
    continual_ppo_is_best
)


@claim("continual-ppo-almost-keeps-its-performance", SOURCE)
def continual_ppo_loses_little(frame: pd.DataFrame) -> Verdict:
    """Continual PPO performs almost as well at the end as at the beginning: it loses less than a tenth."""
    return loses_little(_returns(frame, "Continual PPO"), "Continual PPO")


@claim("continual-ppo-loses-a-little", SOURCE)
def continual_ppo_loses_some(frame: pd.DataFrame) -> Verdict:
    """Continual PPO does not keep all of its performance: there is still a small drop."""
    return above(find_loss(_returns(frame, "Continual PPO")), what="Continual PPO, early tasks less last tasks")


@claim("continual-ppo-loses-less-than-ppo", SOURCE)
def continual_ppo_loses_less(frame: pd.DataFrame) -> Verdict:
    """Over the same frictions, Continual PPO loses less of its return than PPO."""
    losses = (find_loss(_returns(frame, method)) for method in ("Continual PPO", "PPO"))
    return below(*losses, what="early tasks less last tasks, Continual PPO less PPO")


@claim("returns-drop-at-changes", SOURCE)
def returns_drop_at_changes(frame: pd.DataFrame) -> Verdict:
    """The return drops whenever the friction changes, for PPO and for Continual PPO: it looks like the teeth of a
    saw."""

    def check(method: str) -> Verdict:
        drops = find_drops(select(frame, "return.curve", method=method), points_per_task(scale_of(frame)))
        return above(drops, what=f"{method}, just before a change less just after it")

    return for_each(["PPO", "Continual PPO"], check)


unchecked = not_checked("""
- PPO degrades as backpropagation does in supervised learning, on which it rests. | Appendix C | a comparison of
  problems whose performances have no common measure; see mnist-methods and imagenet-methods
- What Continual PPO still loses may come from the many other parts of PPO. | Appendix C | a conjecture; nothing here
  tells these parts from each other
- Networks of tanh units do best with algorithms like PPO. | Appendix C | the paper cites this from elsewhere; no other
  activation runs here
""")
