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
    tasks, runs = (6, 3) if scale == "smoke" else (45, 20)
    settings = []
    for activation in ACTIVATIONS:
        net = network(MLP, hidden=(5,), activation=activation)
        details = {"activation": activation}
        settings.append(Setting("BP", net, (Adam(STEP_SIZE),), details))
        settings.append(Setting("CBP", net, (Adam(STEP_SIZE), ContinualBackprop(1e-3)), details))
    return Sweep(SlowlyChangingRegression(tasks=tasks, examples_per_task=300), tuple(settings), runs)


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


def end(frame: pd.DataFrame, method: str, activation: str) -> pd.Series:
    """Each run's error over the last quarter of the tasks."""
    rows = select(frame, "error", method=method, activation=activation)
    return per_run(rows, start=-(rows["task"].nunique() // 4 or 1))


def lower_at_the_end(frame: pd.DataFrame) -> Verdict:
    """Whether CBP ends with a lower error, with both activations."""
    return all_of(
        [
            above(paired(end(frame, "BP", each), end(frame, "CBP", each)), what=f"{each}: error of BP minus CBP")
            for each in ACTIVATIONS
        ]
    )


claims = (
    Claim(
        "lower-at-the-end",
        "Continual backpropagation ends with a lower error than backpropagation, with ReLU and with tanh.",
        "Section 6",
        lower_at_the_end,
    ),
)
