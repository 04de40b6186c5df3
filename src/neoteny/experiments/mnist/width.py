"""Backpropagation on online permuted MNIST with networks of three widths

Figure 2b (middle) of the paper, Section 3: 100, 1,000 and 10,000 units in each of three hidden layers, 150 tasks. The
paper took a good step size for each width without naming it; we take one for all. The `laptop` scale has narrower
networks, of which the widest is the paper's narrowest.
"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from neoteny.experiments.mnist.charts import draw_over_tasks, short
from neoteny.experiments.mnist.settings import RUNS_CHOSEN, SHARED_CHOSEN, SMALLER, bp
from neoteny.experiments.scales import not_checked, pick, scale_of
from neoteny.problems import PermutedMNIST
from neoteny.report.chart import Chart
from neoteny.report.claim import Claims, Verdict, above, for_each
from neoteny.report.trends import trend
from neoteny.suite.sweep import Assumption, Sweep

WIDTHS = {"smoke": (5, 10, 20), "laptop": (10, 30, 100), "paper": (100, 1000, 10_000)}
STEP_SIZE_CHOSEN = Assumption(
    "step size at each width",
    "0.003 for all three",
    "The paper speaks of good step sizes for each width and names none; 0.003 is its best at 2,000 units, and one "
    "value for all leaves width as the only difference.",
)


def sweep(scale: str) -> Sweep:
    """BP at three widths."""
    problem, step_size, runs, stack_size = pick(
        scale,
        smoke=(PermutedMNIST(tasks=6, examples_per_task=60, source="synthetic"), 0.01, 2, 100),
        laptop=(PermutedMNIST(tasks=100, examples_per_task=2000), 0.01, 8, 100),
        paper=(PermutedMNIST(tasks=150), 0.003, 30, 10),
    )
    learners = [(width, bp(width, step_size)) for width in WIDTHS[scale]]
    return Sweep(
        problem=problem,
        settings=tuple(replace(one, details={**one.details, "width": width}) for width, one in learners),
        runs=runs,
        stack_size=stack_size,
        chosen=(*SHARED_CHOSEN, *((STEP_SIZE_CHOSEN, RUNS_CHOSEN) if scale == "paper" else (SMALLER,))),
    )


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Accuracy over tasks for each width."""
    shared = (lambda row: f"{short(row['width'])} units per layer", sweep(scale_of(frame)).settings)
    return [draw_over_tasks(frame, "accuracy", *shared, title="Backpropagation at three network widths")]


claims = Claims()
claim = claims.add


def _loss(frame: pd.DataFrame, width: int) -> pd.Series:
    return trend(frame, "accuracy", method="BP", width=width).drop


@claim("every-width-loses", "Section 3, Figure 2b (middle)")
def every_width_loses(frame: pd.DataFrame) -> Verdict:
    """Accuracy ends below its best at every width, the widest included."""
    return for_each(
        WIDTHS[scale_of(frame)], lambda width: above(_loss(frame, width), what=f"{width} units, best bin less last bin")
    )


@claim("narrow-networks-lose-most", "Section 3, Figure 2b (middle)")
def narrow_networks_lose_most(frame: pd.DataFrame) -> Verdict:
    """The narrower networks lose more than the widest."""
    *narrower, widest = WIDTHS[scale_of(frame)]
    least = _loss(frame, widest)
    return for_each(
        narrower, lambda width: above(_loss(frame, width), least, f"loss with {width} units less that with {widest}")
    )


unchecked = not_checked("""
- Loss of plasticity happens to networks with fewer and with more parameters than the problem needs. | Section 3 | How
  many parameters the problem needs is not measured; the claims on each width say what can be said.
""")
