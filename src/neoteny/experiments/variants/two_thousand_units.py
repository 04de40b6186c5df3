"""The beginning of online permuted MNIST with the paper's network, three layers of 2,000 units

Backpropagation at two step sizes, L2 regularisation and continual backpropagation with the paper's own network, step
sizes and strengths, for the first tasks of its 800. The claims are those of `mnist-step-size` and `mnist-methods` that
speak of the beginning, or of these four learners alone. `docs/results.md` shows what came out.

    neoteny run two-thousand-units --scale paper
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.mnist import settings as learners
from neoteny.experiments.mnist import step_size as mnist_step_size
from neoteny.experiments.mnist.charts import draw_correlates, draw_over_tasks
from neoteny.experiments.mnist.claims import compare
from neoteny.experiments.variants.reuse import as_paper, reuse
from neoteny.problems import PermutedMNIST
from neoteny.report.chart import Chart
from neoteny.report.claim import Claims, Verdict
from neoteny.suite.sweep import Assumption, Sweep

WIDTH, TASKS, RUNS = 2000, 50, 3
STEP_SIZES = (0.01, 0.003)
STEP_SIZE = 0.003
"""Of all methods where they are compared."""

SHORTER = Assumption(
    "number of tasks and of runs",
    f"{TASKS} tasks, {RUNS} runs of each setting",
    "The paper's 800 tasks and 30 runs of this network would take a day on one GPU.",
)


def sweep(scale: str) -> Sweep:
    """Two step sizes of BP, and one setting of L2 and of CBP; `laptop` and `paper` are the same here."""
    smoke = scale == "smoke"
    width = 10 if smoke else WIDTH
    return Sweep(
        problem=PermutedMNIST(4, 40, source="synthetic") if smoke else PermutedMNIST(TASKS, 60_000),
        settings=(
            *(learners.bp(width, step_size) for step_size in sorted(STEP_SIZES)),
            learners.l2(width, STEP_SIZE, 1e-4),
            learners.cbp(width, STEP_SIZE, 1e-4),
        ),
        runs=2 if smoke else RUNS,
        measures=learners.CORRELATES,
        measure_every=1 if smoke else 4,
        probe_examples=200 if smoke else 2000,
        chosen=(*learners.METHODS_CHOSEN, SHORTER),
    )


def compare_methods(frame: pd.DataFrame) -> pd.DataFrame:
    """One setting of each method."""
    return as_paper(frame[frame["step_size"] == STEP_SIZE])


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Online accuracy over tasks, and what changes in the networks."""

    def name(row: pd.Series) -> str:
        return f"BP, step size {row['step_size']:g}" if row["method"] == "BP" else str(row["method"])

    order = sweep("paper").settings
    return [
        draw_over_tasks(frame, "accuracy", name, order, title="Online accuracy"),
        *draw_correlates(frame, name, order, group="What changes in the networks"),
    ]


claims = Claims(
    (
        *reuse(
            "mnist-step-size",
            only=["rises-first", "dead-units-grow", "weights-grow", "rank-falls"],
            claims=mnist_step_size.claims_at(STEP_SIZES),
            here="at step sizes 0.01 and 0.003, of the paper's three",
        ),
        *reuse(
            "mnist-methods",
            compare_methods,
            only=[
                "cbp-keeps-its-level",
                "cbp-does-not-degrade",
                "cbp-has-no-dead-units",
                "cbp-holds-weights",
                "one-unit-every-five-examples",
                "l2-trades-correlates",
            ],
            decides=["one-unit-every-five-examples"],
        ),
    )
)


@claims.add("cbp-ahead-of-bp-and-l2", "Section 6, Figure 6a")
def cbp_leads(frame: pd.DataFrame) -> Verdict:
    """Over the last twentieth of these tasks CBP is more accurate than BP and L2."""
    return compare(compare_methods(frame), "accuracy.last: CBP > BP, L2")


@claims.add("cbp-fewer-dead-than-bp-and-l2", "Section 6, Figure 6b (centre)")
def cbp_has_fewest_dead(frame: pd.DataFrame) -> Verdict:
    """Over the last twentieth of these tasks CBP has fewer dead units than BP and L2."""
    return compare(compare_methods(frame), "dead_units.last: BP, L2 > CBP")
