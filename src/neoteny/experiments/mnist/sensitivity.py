"""Three settings of each method on online permuted MNIST, and continual backpropagation at three replacement rates

Figure A.8 and the right half of Figure 6a of the paper, Appendix A and Sections 5 and 6: ten runs of each setting
(three of online normalisation, thirty of continual backpropagation), 800 tasks. The paper gave twenty more runs to the
best setting of each method, and to dropout at 0.1, for its comparison of methods, not for this figure: `mnist-methods`
has thirty of each, and the claims on best settings say whether it took the right ones. BP runs beside them as the
reference that the text compares with. The `laptop` scale has narrow networks and few, short tasks.
"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from neoteny.experiments.mnist import settings as learners
from neoteny.experiments.mnist.claims.sensitivity import CLAIMS, UNCHECKED
from neoteny.experiments.mnist.sensitivity_sizes import SIZES
from neoteny.experiments.mnist.trends import draw_over_tasks, short
from neoteny.experiments.scales import pick, scale_of
from neoteny.report.chart import Chart
from neoteny.suite.sweep import Chosen, Setting, Sweep

CHOSEN = (
    Chosen(
        "three pairs of decay rates of online normalisation",
        "0.99 and 0.9, 0.999 and 0.99, 0.9999 and 0.999",
        "The paper names two rates and gives no values; the middle pair is the default of online normalisation's own "
        "authors, the others forget ten times sooner and ten times later.",
    ),
)


def sweep(scale: str) -> Sweep:
    """BP, then three settings of each method."""
    size = pick(scale, **SIZES)
    width, step_size = size.width, size.step_size
    settings: list[Setting] = [replace(learners.bp(width, step_size), runs=size.cbp_runs)]
    settings += [learners.l2(width, step_size, strength) for strength in size.l2]
    settings += [learners.shrink_and_perturb(width, step_size, size.best_l2, noise) for noise in size.noise_std]
    settings += [learners.dropout(width, step_size, probability) for probability in size.dropout]
    settings += [replace(learners.online_norm(width, step_size, *pair), runs=size.norm_runs) for pair in size.decay]
    settings += [learners.adam(width, each) for each in size.adam_step_size]
    settings += [replace(learners.cbp(width, step_size, rate), runs=size.cbp_runs) for rate in size.replacement_rate]
    return Sweep(
        problem=size.problem,
        settings=tuple(settings),
        runs=size.runs,
        stack_size=size.stack_size,
        chosen=(*learners.METHODS_CHOSEN, *CHOSEN, *(() if scale == "paper" else (learners.SMALLER,))),
    )


VARIED = {
    "L2": ("L2 regularisation", ("l2",), "L2"),
    "S&P": ("Shrink and perturb", ("noise_std",), "S&P, noise"),
    "Dropout": ("Dropout", ("dropout",), "Dropout"),
    "Online norm": ("Online normalisation", ("forward_decay", "backward_decay"), "Online norm"),
    "Adam": ("Adam", ("step_size",), "Adam"),
    "CBP": ("Continual backpropagation", ("replacement_rate",), "CBP"),
}
"""For each method its panel's title, the columns that vary in it, and what the legend says before their values."""


def figure(frame: pd.DataFrame) -> list[Chart]:
    """One panel for each method: its settings, and BP dashed."""
    order = sweep(scale_of(frame)).settings
    charts = []
    for method, (title, _, _) in VARIED.items():
        mine = frame[frame["method"].isin([method, "BP"])]
        charts.append(
            draw_over_tasks(mine, "accuracy", name_setting, order, title, "Settings of each method", dashed="BP")
        )
    return charts


def name_setting(row: pd.Series) -> str:
    """What the legend says: the method, and the values that vary in it."""
    if row["method"] not in VARIED:
        return str(row["method"])
    _, columns, word = VARIED[str(row["method"])]
    return f"{word} {' and '.join(short(float(row[column])) for column in columns)}"


claims = CLAIMS
unchecked = UNCHECKED
