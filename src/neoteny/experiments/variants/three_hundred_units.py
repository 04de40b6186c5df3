"""Online permuted MNIST with three layers of 300 units: continual backpropagation and L2 as networks get wider

With 100 units per layer L2 at its best strength is more accurate than continual backpropagation, which the paper does
not find with its 2,000. This is a width between the two, with everything else as in the paper: two settings of
continual backpropagation, and four of L2, so that no strength between or beyond the two best ones is missed.
`docs/results.md` shows what came out.

    neoteny run three-hundred-units --scale paper
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd

from neoteny.experiments.mnist import settings as learners
from neoteny.experiments.mnist.charts import draw_correlates, draw_over_tasks
from neoteny.experiments.mnist.claims import compare
from neoteny.problems import PermutedMNIST
from neoteny.report.chart import Chart
from neoteny.report.claim import Claims, Verdict
from neoteny.report.statistics import best_setting
from neoteny.report.trends import best_by_others
from neoteny.suite.sweep import Assumption, Setting, Sweep

WIDTH, TASKS, RUNS = 300, 200, 6
STEP_SIZE = 0.003
STRENGTHS = (1e-4, 1e-3)
"""Of L2: the paper's best, and the best with 100 units per layer."""
OTHER_STRENGTHS, OTHER_RUNS = (3e-4, 3e-3), 3
"""Between the two and beyond, in fewer runs."""
REPLACEMENT_RATES = (1e-5, 1e-4)

Choose = Callable[[pd.DataFrame, str, bool], pd.DataFrame]

NARROWER = Assumption(
    "width, number of tasks and of runs",
    f"{WIDTH} units per layer, {TASKS} tasks, {RUNS} runs of each setting; {OTHER_RUNS} of L2 at 3e-4 and 3e-3",
    "An hour and a half on two cores; the paper's 2,000 units, 800 tasks and 30 runs are days on one GPU.",
)


def sweep(scale: str) -> Sweep:
    """BP, four settings of L2 and two of CBP; `laptop` and `paper` are the same here."""
    smoke = scale == "smoke"
    width = 10 if smoke else WIDTH
    more = [learners.l2(width, STEP_SIZE, each) for each in OTHER_STRENGTHS]
    return Sweep(
        problem=PermutedMNIST(4, 40, source="synthetic") if smoke else PermutedMNIST(TASKS, 60_000),
        settings=(
            learners.bp(width, STEP_SIZE),
            *(learners.l2(width, STEP_SIZE, each) for each in STRENGTHS),
            *(replace(setting, runs=2 if smoke else OTHER_RUNS) for setting in more),
            *(learners.cbp(width, STEP_SIZE, each) for each in REPLACEMENT_RATES),
        ),
        runs=2 if smoke else RUNS,
        measures=learners.CORRELATES,
        measure_every=1 if smoke else 10,
        probe_examples=200 if smoke else 2000,
        chosen=(*learners.METHODS_CHOSEN, NARROWER),
    )


def compare_methods(frame: pd.DataFrame, choose: Choose = best_by_others) -> pd.DataFrame:
    """One setting of each method: that of the best mean accuracy, for each half of the runs chosen by the other."""
    return pd.concat([choose(rows, "accuracy", True) for _, rows in frame.groupby("method", sort=False)])


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Online accuracy over tasks, and what changes in the networks, each method at its best setting."""
    return draw(frame, sweep("paper").settings)


def draw(frame: pd.DataFrame, order: Sequence[Setting]) -> list[Chart]:
    """The charts of `figure`, with the methods in the order of these settings."""

    def name(row: pd.Series) -> str:
        return str(row["method"])

    best = compare_methods(frame, best_setting)
    return [
        draw_over_tasks(best, "accuracy", name, order, title="Online accuracy"),
        *draw_correlates(best, name, order, group="What changes in the networks"),
    ]


claims = Claims()


@claims.add("cbp-ahead-of-bp", "Section 6, Figure 6a")
def cbp_leads_bp(frame: pd.DataFrame) -> Verdict:
    """Over the last twentieth of these tasks CBP is more accurate than BP."""
    return compare(compare_methods(frame), "accuracy.last: CBP > BP")


@claims.add("cbp-ahead-of-l2", "Section 6, Figure 6a")
def cbp_leads_l2(frame: pd.DataFrame) -> Verdict:
    """Over the last twentieth of these tasks CBP is more accurate than L2."""
    return compare(compare_methods(frame), "accuracy.last: CBP > L2")
