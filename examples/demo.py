"""Backpropagation against continual backpropagation on a slowly changing stream

`make demo` runs this file: slowly-changing regression, in which one of fifteen slow bits of the input flips from time
to time, learned by networks of five hidden units with two activations. Both methods see the same streams, so that their
difference is taken run by run. It is also a template for an experiment of your own: `sweep`, `figure` and `claims` are
all there is to one.
"""

from __future__ import annotations

import pandas as pd

from neoteny.methods import Adam, ContinualBackprop
from neoteny.nets import MLP
from neoteny.problems import SlowlyChangingRegression
from neoteny.report.chart import Chart
from neoteny.report.claim import Claim, Verdict, above, all_of
from neoteny.report.statistics import curve, paired, per_run, select
from neoteny.suite.sweep import Setting, Sweep, network

ACTIVATIONS = ("relu", "tanh")
STEP_SIZE = 0.01


def sweep(scale: str) -> Sweep:
    """Two methods with two activations."""
    tasks, examples, runs = (6, 300, 3) if scale == "smoke" else (100, 10_000, 20)
    settings = []
    for activation in ACTIVATIONS:
        net = network(MLP, hidden=(5,), activation=activation)
        details = {"activation": activation}
        settings.append(Setting("BP", net, (Adam(STEP_SIZE),), details))
        settings.append(Setting("CBP", net, (Adam(STEP_SIZE), ContinualBackprop(1e-3)), details))
    return Sweep(SlowlyChangingRegression(tasks=tasks, examples_per_task=examples), tuple(settings), runs)


def figure(frame: pd.DataFrame) -> list[Chart]:
    """The error over tasks, one panel for each activation."""
    charts = []
    for activation in ACTIVATIONS:
        rows = select(frame, "error", activation=activation)
        series = [
            curve(rows[rows["method"] == method], method, bin_tasks=max(1, rows["task"].nunique() // 20), method=method)
            for method in rows["method"].unique()
        ]
        charts.append(Chart(activation, "flips", "squared error", series, "mean and one standard error", "Error"))
    return charts


def ends(frame: pd.DataFrame, method: str, activation: str) -> tuple[pd.Series, pd.Series]:
    """Each run's error over the first tenth and over the last quarter of the tasks."""
    rows = select(frame, "error", method=method, activation=activation)
    tasks = rows["task"].nunique()
    return per_run(rows, stop=tasks // 10 or 1), per_run(rows, start=-(tasks // 4 or 1))


def worse_and_worse(frame: pd.DataFrame) -> Verdict:
    """Whether BP ends with a higher error than it began with, with both activations."""
    found = {each: ends(frame, "BP", each) for each in ACTIVATIONS}
    return all_of(
        [
            above(paired(late, early), what=f"{each}: error of BP, late minus early")
            for each, (early, late) in found.items()
        ]
    )


def lower_at_the_end(frame: pd.DataFrame) -> Verdict:
    """Whether CBP ends with a lower error, with both activations."""
    return all_of(
        [
            above(
                paired(ends(frame, "BP", each)[1], ends(frame, "CBP", each)[1]), what=f"{each}: error of BP minus CBP"
            )
            for each in ACTIVATIONS
        ]
    )


claims = (
    Claim(
        "worse-and-worse",
        "Backpropagation learns the later tasks less well than the first, with ReLU and with tanh.",
        "Section 5",
        worse_and_worse,
    ),
    Claim(
        "lower-at-the-end",
        "Continual backpropagation ends with a lower error than backpropagation, with ReLU and with tanh.",
        "Section 6",
        lower_at_the_end,
    ),
)
