"""Which part of the utility matters: six utilities over replacement rates in slowly-changing regression

Figure D.12 and Appendix D of the paper: continual backpropagation that ranks units by the overall utility, by its
parts, by the magnitude of outgoing weights, or at random; tanh and Adam with step size 0.01. Each point is the mean
error over all examples. Backpropagation, which has no utility, is drawn as a level for comparison. The best two
utilities go on to reinforcement learning in `ant-utilities`.
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.regression import settings
from neoteny.experiments.scales import CBP_COUNT, CBP_MATURITY, pick, scale_of
from neoteny.methods import ContinualBackprop
from neoteny.problems import SlowlyChangingRegression
from neoteny.report.chart import Chart
from neoteny.report.claim import Claims, Verdict, below, for_each
from neoteny.report.statistics import curve_over_values, level_under, per_run, select
from neoteny.report.trends import Line, best_of, count_runs
from neoteny.suite.sweep import Assumption, Setting, Sweep

UTILITIES = {
    "overall": "overall",
    "mean_corrected_contribution": "mean-corrected contribution",
    "contribution": "contribution",
    "adaptation": "adaptation",
    "weight_magnitude": "weight magnitude",
    "random": "random",
}
"""As settings name them and as figures print them."""
STEP_SIZE = 0.01
RUNS = Assumption("runs", "100", "as in the paper's other results on this problem")


def sweep(scale: str) -> Sweep:
    """Six utilities over replacement rates, and backpropagation."""
    rates = pick(scale, smoke=(1e-4, 1e-3), laptop=(1e-5, 1e-4, 1e-3, 1e-2), paper=(1e-6, 1e-5, 1e-4, 1e-3, 1e-2))
    tried = Assumption(
        "replacement rates",
        f"{min(rates):g} to {max(rates):g} in steps of ten",
        "the text does not give those of the figure; the published code searches from 1e-6 to 1e-2",
    )
    learner, optimizer = settings.make_learner("tanh"), settings.make_optimizer("Adam", STEP_SIZE)
    shared = {"activation": "tanh", "optimizer": "Adam", "step_size": STEP_SIZE}
    ranked = [
        Setting(
            "CBP",
            learner,
            (optimizer, ContinualBackprop(rate, utility=utility)),
            {**shared, "utility": utility, "replacement_rate": rate},
        )
        for utility in UTILITIES
        for rate in rates
    ]
    runs = (RUNS,) if scale == "paper" else ()
    return Sweep(
        problem=_problem(scale),
        settings=(*ranked, Setting("BP", learner, (optimizer,), shared)),
        runs=pick(scale, smoke=2, laptop=100, paper=100),
        stack_size=300,
        chosen=(tried, *runs, CBP_MATURITY, CBP_COUNT, *settings.choose(_problem(scale), scale, ("tanh",))),
    )


def _problem(scale: str) -> SlowlyChangingRegression:
    return settings.make_problem(scale, laptop_tasks=50)


def figure(frame: pd.DataFrame) -> list[Chart]:
    """The mean error over replacement rates, and the error over time of each utility at its best rate."""
    charts = [_draw_rates(frame)] if len(select(frame, "error", method="CBP")) else []
    lines: list[Line] = []
    for utility, label in UTILITIES.items():
        rows = _best(frame, utility, by_others=False)
        if len(rows):
            lines.append((f"{label}, {float(rows['replacement_rate'].iloc[0]):g}", rows, {"method": label}))
    lines.append(("BP", select(frame, "error", method="BP"), {"method": "BP", "dashed": True}))
    title = "Each utility at its best replacement rate"
    return [*charts, *settings.draw_errors(frame, _problem(scale_of(frame)), title, "", lines)]


def _draw_rates(frame: pd.DataFrame) -> Chart:
    errors = select(frame, "error", method="CBP")
    series = []
    for utility, label in UTILITIES.items():
        by_rate = select(errors, "error", utility=utility).groupby("replacement_rate")
        points = [(float(rate), rows) for rate, rows in by_rate]  # type: ignore[arg-type]
        series += [curve_over_values(label, points, method=label)] if points else []
    level = level_under(series, "BP", select(frame, "error", method="BP"))
    caption = (
        f"Squared error before each update, mean over all examples and {count_runs(errors)}; bars: one standard error. "
        "tanh, Adam with step size 0.01. Dashed: backpropagation."
    )
    title, axes = "Utilities over replacement rates", ("replacement rate", "squared error")
    return Chart(title, *axes, (*series, *level), caption, log_x=True, markers=True)


def _best(frame: pd.DataFrame, utility: str, by_others: bool = True) -> pd.DataFrame:
    """The errors of a utility at its best rate; `by_others` as of `best_of`."""
    return best_of(select(frame, "error", method="CBP", utility=utility), "error", False, by_others)


claims = Claims()
claim = claims.add


def _has_lower_error(frame: pd.DataFrame, utility: str, *others: str) -> Verdict:
    """Whether a utility at its best rate has a lower mean error than each of the others at theirs."""
    mean = {name: per_run(_best(frame, name)) for name in (utility, *others)}
    return for_each(
        others, lambda name: below(mean[utility], mean[name], f"{UTILITIES[utility]} less {UTILITIES[name]}")
    )


@claim("overall-is-best", "Section 6, Figure D.12, Appendix D")
def overall_is_best(frame: pd.DataFrame) -> Verdict:
    """At its best replacement rate the overall utility has a lower error than every other utility at its best."""
    return _has_lower_error(frame, *UTILITIES)


@claim("mean-corrected-contribution-is-second", "Appendix D")
def mean_corrected_contribution_is_second(frame: pd.DataFrame) -> Verdict:
    """Mean-corrected contribution is the best of the utilities after the overall one."""
    others = ("contribution", "adaptation", "weight_magnitude", "random")
    return _has_lower_error(frame, "mean_corrected_contribution", *others)
