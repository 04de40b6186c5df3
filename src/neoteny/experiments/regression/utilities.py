"""Which part of the utility matters: six utilities over replacement rates in slowly-changing regression

Figure D.12 and Appendix D of the paper: continual backpropagation that ranks units by the overall utility, by its
parts, by the magnitude of outgoing weights, or at random; tanh and Adam with step size 0.01. Each point is the mean
error over all examples. Backpropagation, which has no utility, is drawn as a level for comparison. The best two
utilities go on to reinforcement learning in `ant-utilities`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neoteny.experiments.regression.settings import (
    choose,
    draw_errors,
    make_learner,
    make_optimizer,
    make_problem,
)
from neoteny.experiments.scales import CBP_COUNT, CBP_MATURITY, pick, scale_of
from neoteny.methods import ContinualBackprop
from neoteny.problems import SlowlyChangingRegression
from neoteny.report.chart import Chart, Series
from neoteny.report.claim import Claim, Verdict, all_of, below
from neoteny.report.statistics import estimate, per_run, select
from neoteny.report.trends import Line, best_of, compare, count_runs
from neoteny.suite.sweep import Chosen, Setting, Sweep

if TYPE_CHECKING:
    import pandas as pd

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
RUNS = Chosen("runs", "100", "as in the paper's other results on this problem")


def sweep(scale: str) -> Sweep:
    """Six utilities over replacement rates, and backpropagation."""
    rates = pick(
        scale,
        smoke=(1e-4, 1e-3),
        laptop=(1e-5, 1e-4, 1e-3, 1e-2),
        paper=(1e-6, 1e-5, 1e-4, 1e-3, 1e-2),
    )
    learner, optimizer = make_learner("tanh"), make_optimizer("Adam", STEP_SIZE)
    shared = {"activation": "tanh", "optimizer": "Adam", "step_size": STEP_SIZE}
    settings = [
        Setting(
            "CBP",
            learner,
            (optimizer, ContinualBackprop(rate, utility=utility)),
            {**shared, "utility": utility, "replacement_rate": rate},
        )
        for utility in UTILITIES
        for rate in rates
    ]
    return Sweep(
        problem=_problem(scale),
        settings=(*settings, Setting("BP", learner, (optimizer,), shared)),
        runs=pick(scale, smoke=2, laptop=30, paper=100),
        stack_size=300,
        chosen=(
            Chosen(
                "replacement rates",
                f"{min(rates):g} to {max(rates):g} in steps of ten",
                "the text does not give those of the figure; the published code searches from 1e-6 to 1e-2",
            ),
            *((RUNS,) if scale == "paper" else ()),
            CBP_MATURITY,
            CBP_COUNT,
            *choose(_problem(scale), scale, ("tanh",)),
        ),
    )


def _problem(scale: str) -> SlowlyChangingRegression:
    return make_problem(scale, laptop_tasks=50)


def figure(frame: pd.DataFrame) -> list[Chart]:
    """The mean error over replacement rates, and the error over time of each utility at its best rate."""
    charts = [_draw_rates(frame)] if len(select(frame, "error", method="CBP")) else []
    problem = _problem(scale_of(frame))
    lines: list[Line] = []
    for utility, label in UTILITIES.items():
        rows = _best(frame, utility)
        if len(rows):
            lines.append((f"{label}, {float(rows['replacement_rate'].iloc[0]):g}", rows, {"method": label}))
    lines.append(("BP", select(frame, "error", method="BP"), {"method": "BP", "dashed": True}))
    chart = draw_errors(frame, problem, "Each utility at its best replacement rate", "", lines)
    return charts + ([chart] if chart else [])


def _draw_rates(frame: pd.DataFrame) -> Chart:
    errors = select(frame, "error", method="CBP")
    series = []
    for utility, label in UTILITIES.items():
        rows = select(errors, "error", utility=utility)
        rates = sorted(float(rate) for rate in rows["replacement_rate"].dropna().unique()) if len(rows) else []
        points = [estimate(per_run(select(rows, "error", replacement_rate=rate))) for rate in rates]
        if points:
            spreads = [point.spread if point.runs > 1 else 0.0 for point in points]
            means = [point.mean for point in points]
            low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
            high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
            series.append(Series(label, rates, means, low, high, method=label))
    level = select(frame, "error", method="BP")
    if len(level) and series:
        ends = [min(min(one.x) for one in series), max(max(one.x) for one in series)]
        mean = estimate(per_run(level)).mean
        series.append(Series("BP", ends, [mean, mean], method="BP", dashed=True))
    caption = (
        f"Squared error before each update, mean over all examples and {count_runs(errors)}; bars: one standard error. "
        "tanh, Adam with step size 0.01. Dashed: backpropagation."
    )
    return Chart(
        "Utilities over replacement rates",
        "replacement rate",
        "squared error",
        tuple(series),
        caption,
        log_x=True,
        markers=True,
    )


def _best(frame: pd.DataFrame, utility: str) -> pd.DataFrame:
    return best_of(select(frame, "error", method="CBP", utility=utility), "error", higher_is_better=False)


def _check_lower(frame: pd.DataFrame, utility: str, others: tuple[str, ...]) -> Verdict:
    """Whether a utility at its best rate has a lower mean error than each of the others at theirs."""
    best = _best(frame, utility)
    return all_of(
        [
            below(compare(best, _best(frame, other)), what=f"{UTILITIES[utility]} less {UTILITIES[other]}")
            for other in others
        ]
    )


claims: tuple[Claim, ...] = (
    Claim(
        "overall-is-best",
        "At its best replacement rate the overall utility has a lower error than every other utility at its best.",
        "Figure D.12",
        lambda frame: _check_lower(frame, "overall", tuple(UTILITIES)[1:]),
    ),
    Claim(
        "every-part-is-needed",
        "Leaving out a part makes it worse: the overall utility beats contribution without adaptation, adaptation "
        "without contribution, and contribution without mean correction.",
        "Section 6, Appendix D",
        lambda frame: _check_lower(frame, "overall", ("mean_corrected_contribution", "adaptation", "contribution")),
    ),
    Claim(
        "overall-beats-random-and-weight-magnitude",
        "The overall utility beats choosing units at random and choosing them by the magnitude of outgoing weights.",
        "Figure D.12, Appendix D",
        lambda frame: _check_lower(frame, "overall", ("random", "weight_magnitude")),
    ),
    Claim(
        "mean-corrected-contribution-is-second",
        "Mean-corrected contribution is the best of the utilities after the overall one.",
        "Appendix D",
        lambda frame: _check_lower(
            frame, "mean_corrected_contribution", ("contribution", "adaptation", "weight_magnitude", "random")
        ),
    ),
)
