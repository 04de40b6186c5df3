"""Loss of plasticity in Continual ImageNet

Figure 1 and Section 2 of the paper: backpropagation at three step sizes on a long sequence of binary tasks, over the
first ten tasks and over all of them in bins of 50, against a linear baseline. At the paper's scale the step sizes 0.1
and 0.003, which the paper only mentions, run too, so that what it says of them can be checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neoteny.experiments.imagenet.bp_claims import (
    CLAIMS,
    FIRST_TASKS,
    MENTIONED,
    UNCHECKED,
    drawn_step_sizes,
    select_bp,
    select_linear,
    step_sizes,
)
from neoteny.experiments.imagenet.settings import (
    bin_size,
    choose,
    choose_for_baseline,
    draw_accuracies,
    make_problem,
    make_setting,
    stack_size,
)
from neoteny.experiments.scales import pick
from neoteny.report.chart import Chart
from neoteny.report.trends import Line
from neoteny.suite.sweep import Chosen, Sweep

if TYPE_CHECKING:
    import pandas as pd

NOT_DRAWN = Chosen(
    "step sizes 0.1 and 0.003",
    "run and not drawn",
    "the paper says how they did and leaves them out of its figure",
)


def sweep(scale: str) -> Sweep:
    """Backpropagation and the linear baseline over step sizes."""
    shown = (*step_sizes(scale), *(MENTIONED if scale == "paper" else ()))
    baselines = pick(scale, smoke=(0.001,), laptop=(0.01, 0.003, 0.001), paper=step_sizes("paper"))
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
            choose_for_baseline(baselines),
            *((NOT_DRAWN,) if scale == "paper" else ()),
        ),
    )


def figure(frame: pd.DataFrame) -> list[Chart]:
    """The first ten tasks, and all tasks in bins."""
    linear = select_linear(frame)
    lines: list[Line] = [
        (f"step size {size:g}", select_bp(frame, size), {"method": f"step size {size:g}"})
        for size in drawn_step_sizes(frame)
    ]
    lines.append(("linear baseline", linear, {"method": "Linear", "dashed": True}))
    early = [(name, rows[rows["task"] < FIRST_TASKS], options) for name, rows, options in lines]
    group = "Backpropagation on Continual ImageNet"
    charts = [
        draw_accuracies(f"First {FIRST_TASKS} tasks", 1, early, group=group),
        draw_accuracies("All tasks", bin_size(frame), lines, group=group),
    ]
    return [chart for chart in charts if chart]


claims = CLAIMS
unchecked = UNCHECKED
