"""Eight hundred tasks of online permuted MNIST, backpropagation against continual backpropagation

The paper's longest supervised run, 48 million examples one at a time, with networks of three layers of 100 units:
three to six minutes on one core each. `docs/results.md` shows what came out.

    neoteny run eight-hundred-tasks --scale paper
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.mnist.charts import draw_correlates, draw_over_tasks
from neoteny.experiments.mnist.settings import CORRELATES, bp, cbp
from neoteny.problems import PermutedMNIST
from neoteny.report.chart import Chart
from neoteny.report.claim import Claims, Verdict, above
from neoteny.report.statistics import per_run, select
from neoteny.suite.sweep import Sweep

WIDTH, STEP_SIZE, REPLACEMENT_RATE = 100, 0.003, 1e-4


def sweep(scale: str) -> Sweep:
    """One setting of each method."""
    problem = {
        "smoke": PermutedMNIST(tasks=4, examples_per_task=40, source="synthetic"),
        "laptop": PermutedMNIST(tasks=20, examples_per_task=60_000),
        "paper": PermutedMNIST(tasks=800, examples_per_task=60_000),
    }[scale]
    return Sweep(
        problem=problem,
        settings=(bp(WIDTH, STEP_SIZE), cbp(WIDTH, STEP_SIZE, REPLACEMENT_RATE)),
        runs=2 if scale == "smoke" else 1,
        measures=CORRELATES,
        probe_examples=200 if scale == "smoke" else 2000,
    )


def _name(row: pd.Series) -> str:
    return str(row["method"])


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Online accuracy over tasks, and what changes in the networks."""
    order = sweep("paper").settings
    return [
        draw_over_tasks(frame, "accuracy", _name, order, title="Online accuracy"),
        *draw_correlates(frame, _name, order, group="What changes in the networks"),
    ]


claims = Claims()


@claims.add("higher-at-the-end", "Section 6")
def higher_at_the_end(frame: pd.DataFrame) -> Verdict:
    """Continual backpropagation ends with a higher accuracy than backpropagation."""

    def end(method: str) -> pd.Series:
        rows = select(frame, "accuracy", method=method)
        return per_run(rows, start=-(rows["task"].nunique() // 10 or 1))

    return above(end("CBP"), end("BP"), "accuracy of CBP minus BP, last tenth of tasks")
