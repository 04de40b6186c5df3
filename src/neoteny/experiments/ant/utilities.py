"""Which utility Continual PPO needs on Slippery Ant

Figure D.13 and Appendix D of the paper: Continual PPO that ranks units by the overall utility or by mean-corrected
contribution, the best two of `scr-utilities`, beside PPO. The problem is that of `ant-methods`.
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.ant.methods import check_better, check_small_loss
from neoteny.experiments.ant.settings import FIXED, choose_fixed, make_setting, make_sweep
from neoteny.experiments.ant.trends import draw_trends, take_early, take_late
from neoteny.experiments.scales import pick
from neoteny.report.chart import Chart
from neoteny.report.claim import Claim, Verdict, above, all_of
from neoteny.report.statistics import paired, select
from neoteny.report.trends import Line, compare, subtract
from neoteny.suite.sweep import Chosen, Sweep

UTILITIES = {"overall": "overall utility", "mean_corrected_contribution": "mean-corrected contribution"}
"""As settings name them and as figures print them."""
SAME = Chosen(
    "hyperparameters of both utilities",
    "the same replacement rate and maturity threshold",
    "the paper does not say whether it searched for each; so only the utility differs",
)
RUNS = Chosen("runs", "100", "as in the paper's comparison of methods on this problem")


def sweep(scale: str) -> Sweep:
    """Continual PPO with both utilities, and PPO."""
    pair = pick(scale, **FIXED).pair
    settings = (make_setting(scale), *(make_setting(scale, pair=pair, utility=utility) for utility in UTILITIES))
    chosen = (SAME, *((RUNS,) if scale == "paper" else ()), *choose_fixed(scale))
    return make_sweep(scale, settings, pick(scale, smoke=2, laptop=3, paper=100), chosen)


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Everything over tasks, one line a utility, and PPO."""
    lines: list[Line] = [("PPO", frame[frame["method"] == "PPO"], {"method": "PPO"})]
    for utility, label in UTILITIES.items():
        mine = frame[frame["utility"] == utility] if "utility" in frame.columns else frame.iloc[:0]
        lines.append((label, mine, {"method": label}))
    return draw_trends(frame, lines)


def _returns(frame: pd.DataFrame, utility: str) -> pd.DataFrame:
    return select(frame, "return", utility=utility)


def _check_both(frame: pd.DataFrame) -> Verdict:
    ppo = select(frame, "return", method="PPO")
    return all_of(
        [check_better(_returns(frame, utility), ppo, f"{label} less PPO") for utility, label in UTILITIES.items()]
    )


def _check_overall(frame: pd.DataFrame) -> Verdict:
    overall, corrected = (_returns(frame, utility) for utility in UTILITIES)
    return above(compare(overall, corrected), what="mean over all tasks, overall less mean-corrected contribution")


def _check_end(frame: pd.DataFrame) -> Verdict:
    overall, corrected = (_returns(frame, utility) for utility in UTILITIES)
    late = subtract(take_late(overall), take_late(corrected))
    early = subtract(take_early(overall), take_early(corrected))
    return all_of(
        [
            above(paired(late, early), what="overall less mean-corrected contribution, last tasks less early tasks"),
            above(paired(take_late(overall), take_late(corrected)), what="the same in the last tasks"),
        ]
    )


claims: tuple[Claim, ...] = (
    Claim(
        "both-utilities-beat-ppo",
        "Continual PPO has a higher return than PPO with either utility, over all tasks and in the last ones.",
        "Figure D.13, Appendix D",
        _check_both,
    ),
    Claim(
        "overall-beats-mean-corrected-contribution",
        "The overall utility has a higher return than mean-corrected contribution, over all tasks.",
        "Figure D.13, Appendix D",
        _check_overall,
    ),
    Claim(
        "above-all-near-the-end",
        "The overall utility's advantage is larger near the end: in the last tasks, and more than in the early ones.",
        "Figure D.13, Appendix D",
        _check_end,
    ),
    Claim(
        "overall-almost-keeps-its-performance",
        "With the overall utility the last tasks are almost as good as the early ones: less than a tenth is lost.",
        "Appendix D",
        lambda frame: check_small_loss(_returns(frame, "overall"), "overall utility"),
    ),
)
