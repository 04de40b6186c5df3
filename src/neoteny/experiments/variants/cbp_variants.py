"""Continual backpropagation as the paper's text has it, as its public code has it, and beside L2, on permuted MNIST

With 100 units per layer, L2 regularisation at its best strength ends above continual backpropagation
(`hundred-units`), which the paper's networks of 2,000 units do not show. This asks whether that hangs on what the
paper's text and its public code do differently: the correction of the biases when a unit leaves, what the replacement
rate is a share of, the maturity threshold, the utility, or on the ends of the paper's grids; and what the two do
together. Levels, not losses: both have settled after a few tasks, so that forty will do.

    neoteny run cbp-variants --scale laptop
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.mnist import settings as learners
from neoteny.experiments.mnist.charts import draw_over_tasks
from neoteny.methods import L2, SGD, ContinualBackprop
from neoteny.problems import PermutedMNIST
from neoteny.report.chart import Chart
from neoteny.report.claim import Claims, Verdict, above, for_each
from neoteny.report.trends import Trend, trend
from neoteny.suite.sweep import Assumption, Setting, Sweep

WIDTH, TASKS, RUNS = 100, 40, 3
STEP_SIZE, RATE, STRENGTH = 0.003, 1e-4, 1e-3
VARIANTS = {
    "as in the text": {},
    "biases not corrected": {"compensate": False},
    "rate of all units": {"count": "layer"},
    "maturity threshold 1000": {"maturity_threshold": 1000},
    "mean-corrected contribution": {"utility": "mean_corrected_contribution"},
    "rate 1e-3": {"replacement_rate": 10 * RATE},
}
"""Of continual backpropagation; the second is what the public code does, whose correction has no effect."""
BOTH, ALONE, STRONGER = "CBP and L2", "L2", "L2 of strength 3e-3"

FEWER = Assumption(
    "tasks and runs",
    f"{TASKS} tasks, {RUNS} runs",
    "the levels of these methods change little after the first tasks; the differences asked for are of half a point",
)


def sweep(scale: str) -> Sweep:
    """Variants of CBP, L2 at the best strength of the paper's grid for this width and beyond it, and both together."""
    smoke = scale == "smoke"
    layers = learners.layers(10 if smoke else WIDTH)
    optimizer, shrinking = SGD(STEP_SIZE), L2(STRENGTH)
    settings = [
        Setting(
            "CBP", layers, (optimizer, ContinualBackprop(**{"replacement_rate": RATE, **options})), {"variant": name}
        )
        for name, options in VARIANTS.items()
    ]
    settings.append(Setting(BOTH, layers, (optimizer, shrinking, ContinualBackprop(RATE)), {"variant": BOTH}))
    settings.append(Setting(ALONE, layers, (optimizer, shrinking), {"variant": ALONE}))
    settings.append(Setting(ALONE, layers, (optimizer, L2(3 * STRENGTH)), {"variant": STRONGER}))
    return Sweep(
        problem=PermutedMNIST(4, 40, source="synthetic") if smoke else PermutedMNIST(TASKS),
        settings=tuple(settings),
        runs=2 if smoke else RUNS,
        measures=learners.CORRELATES,
        measure_every=1 if smoke else 10,
        probe_examples=200 if smoke else 2000,
        chosen=(*learners.METHODS_CHOSEN, FEWER),
    )


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Accuracy over tasks, one line a variant."""
    return [
        draw_over_tasks(
            frame, "accuracy", lambda row: str(row["variant"]), sweep("laptop").settings, title="Variants, and L2"
        )
    ]


claims = Claims()
claim = claims.add


def _settled(frame: pd.DataFrame, variant: str) -> pd.Series:
    """Each run's mean accuracy over the second half of the tasks."""
    tasks = trend(frame, "accuracy", variant=variant).tasks
    return Trend(tasks[tasks.index >= len(tasks) // 2]).mean


def _is_better(frame: pd.DataFrame, first: str, second: str) -> Verdict:
    return above(_settled(frame, first), _settled(frame, second), f"accuracy of {first} less {second}")


@claim("no-variant-reaches-l2", "Section 6")
def no_variant_reaches_l2(frame: pd.DataFrame) -> Verdict:
    """With 100 units a layer every variant of CBP is below L2 at its best strength, over the later half of tasks."""
    return for_each(VARIANTS, lambda name: _is_better(frame, ALONE, name))


@claim("correction-helps", "Section 6")
def correction_helps(frame: pd.DataFrame) -> Verdict:
    """CBP is better with its correction of the biases than without."""
    return _is_better(frame, "as in the text", "biases not corrected")


@claim("both-beat-l2", "Section 6")
def both_beat_l2(frame: pd.DataFrame) -> Verdict:
    """CBP and L2 together are better than L2 alone."""
    return _is_better(frame, BOTH, ALONE)
