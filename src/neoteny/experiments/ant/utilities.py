"""Which utility Continual PPO needs on Slippery Ant

Figure D.13 and Appendix D of the paper: Continual PPO that ranks units by the overall utility or by mean-corrected
contribution, the best two of `scr-utilities`, beside PPO. The problem is that of `ant-methods`.
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.ant.charts import draw_trends
from neoteny.experiments.ant.methods import is_better, loses_little
from neoteny.experiments.ant.settings import FIXED, choose_fixed, make_setting, make_sweep
from neoteny.experiments.scales import assume, pick
from neoteny.report.chart import Chart
from neoteny.report.claim import Claims, Verdict, above, all_of, for_each
from neoteny.report.statistics import per_run, select
from neoteny.report.trends import Line, subtract, take_early, take_late
from neoteny.suite.sweep import Sweep

UTILITIES = {"overall": "overall utility", "mean_corrected_contribution": "mean-corrected contribution"}
"""As settings name them and as figures print them."""
SAME, RUNS = assume("""
- hyperparameters of both utilities | the same replacement rate and maturity threshold | the paper does not say whether
  it searched for each; so only the utility differs
- runs | 100 | as in the paper's comparison of methods on this problem
""")


def sweep(scale: str) -> Sweep:
    """Continual PPO with both utilities, and PPO."""
    pair = pick(scale, **FIXED).pair
    settings = (make_setting(scale), *(make_setting(scale, pair=pair, utility=utility) for utility in UTILITIES))
    chosen = (SAME, *((RUNS,) if scale == "paper" else ()), *choose_fixed(scale))
    return make_sweep(scale, settings, pick(scale, smoke=2, laptop=3, paper=100), chosen)


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Everything over tasks, one line per utility, and PPO."""
    lines: list[Line] = [("PPO", frame[frame["method"] == "PPO"], {"method": "PPO"})]
    for utility, label in UTILITIES.items():
        mine = frame[frame["utility"] == utility] if "utility" in frame.columns else frame.iloc[:0]
        lines.append((label, mine, {"method": label}))
    return draw_trends(frame, lines)


def _returns(frame: pd.DataFrame, utility: str) -> pd.DataFrame:
    return select(frame, "return", utility=utility)


claims = Claims()
claim = claims.add
SOURCE = "Figure D.13, Appendix D"


@claim("both-utilities-beat-ppo", SOURCE)
def both_utilities_beat_ppo(frame: pd.DataFrame) -> Verdict:
    """Continual PPO has a higher return than PPO with either utility, over all tasks and in the last ones."""
    ppo = select(frame, "return", method="PPO")
    return for_each(UTILITIES, lambda name: is_better(_returns(frame, name), ppo, f"{UTILITIES[name]} less PPO"))


@claim("overall-beats-mean-corrected-contribution", SOURCE)
def overall_is_better(frame: pd.DataFrame) -> Verdict:
    """The overall utility has a higher return than mean-corrected contribution, over all tasks."""
    means = (per_run(_returns(frame, utility)) for utility in UTILITIES)
    return above(*means, what="mean over all tasks, overall less mean-corrected contribution")


@claim("above-all-near-the-end", SOURCE)
def overall_is_better_near_the_end(frame: pd.DataFrame) -> Verdict:
    """The overall utility's advantage is larger near the end: in the last tasks, and more than in the early ones."""
    overall, corrected = (_returns(frame, utility) for utility in UTILITIES)
    late = subtract(take_late(overall), take_late(corrected))
    early = subtract(take_early(overall), take_early(corrected))
    larger = above(late, early, "overall less mean-corrected contribution, last tasks less early tasks")
    return all_of([larger, above(take_late(overall), take_late(corrected), "the same in the last tasks")])


@claim("overall-almost-keeps-its-performance", "Appendix D")
def overall_loses_little(frame: pd.DataFrame) -> Verdict:
    """With the overall utility the last tasks are almost as good as the early ones: less than a tenth is lost."""
    return loses_little(_returns(frame, "overall"), "overall utility")
