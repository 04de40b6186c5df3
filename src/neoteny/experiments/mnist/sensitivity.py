"""Three settings of each method on online permuted MNIST, and continual backpropagation at three replacement rates

Figure A.8 and the right half of Figure 6a of the paper, Appendix A and Sections 5 and 6: ten runs of each setting
(three of online normalisation, thirty of continual backpropagation), 800 tasks. The paper gave twenty more runs to the
best setting of each method, and to dropout at 0.1, for its comparison of methods, not for this figure: `mnist-methods`
has thirty of each. BP runs beside them as the reference that the text compares with. The `laptop` scale has narrow
networks and few, short tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import pandas as pd

from neoteny.experiments.mnist import settings as learners
from neoteny.experiments.mnist.charts import draw_over_tasks, short
from neoteny.experiments.scales import assume, not_checked, pick, scale_of
from neoteny.problems import PermutedMNIST
from neoteny.report.chart import Chart
from neoteny.report.claim import Claims, Verdict, above, agrees, all_of, any_of, below, below_share, differs, for_each
from neoteny.report.trends import Trend, trend
from neoteny.suite.sweep import Setting, Sweep

POINT = 0.01
"""A percentage point of accuracy."""
VALUES = (0.01, 0.03, 0.1)
"""Probabilities of dropout, the same at every scale."""


@dataclass(frozen=True)
class Size:
    """What differs between scales; values ascend."""

    problem: PermutedMNIST
    width: int
    runs: int
    norm_runs: int
    cbp_runs: int
    step_size: float = 0.003
    l2: tuple[float, ...] = (1e-5, 1e-4, 1e-3)
    best_l2: float = 1e-4
    noise_std: tuple[float, ...] = (1e-6, 1e-5, 1e-4)
    dropout: tuple[float, ...] = VALUES
    decay: tuple[tuple[float, float], ...] = ((0.99, 0.9), (0.999, 0.99), (0.9999, 0.999))
    adam_step_size: tuple[float, ...] = (3e-5, 5e-5, 1e-4)
    replacement_rate: tuple[float, ...] = (1e-6, 1e-5, 1e-4)
    stack_size: int = 100


SIZES = {
    "smoke": Size(PermutedMNIST(tasks=3, examples_per_task=25, source="synthetic"), 10, 2, norm_runs=2, cbp_runs=2),
    "laptop": Size(
        *(PermutedMNIST(tasks=40, examples_per_task=1000), 20, 30, 30, 30, 0.01),
        l2=(1e-4, 1e-3, 1e-2),
        best_l2=1e-3,
        noise_std=(1e-5, 1e-4, 1e-3),
        adam_step_size=(3e-4, 1e-3, 3e-3),
        replacement_rate=(1e-4, 1e-3, 1e-2),
    ),
    "paper": Size(PermutedMNIST(), 2000, 10, norm_runs=3, cbp_runs=30, stack_size=30),
}
CHOSEN = assume("""
- three pairs of decay rates of online normalisation | 0.99 and 0.9, 0.999 and 0.99, 0.9999 and 0.999 | The paper names
  two rates and gives no values; the middle pair is the default of online normalisation's own authors, the others
  forget ten times sooner and ten times later.
""")


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
    "L2": ("L2 regularisation", "l2", ("l2",), "L2"),
    "S&P": ("Shrink and perturb", "noise_std", ("noise_std",), "S&P, noise"),
    "Dropout": ("Dropout", "dropout", ("dropout",), "Dropout"),
    "Online norm": ("Online normalisation", "decay", ("forward_decay", "backward_decay"), "Online norm"),
    "Adam": ("Adam", "adam_step_size", ("step_size",), "Adam"),
    "CBP": ("Continual backpropagation", "replacement_rate", ("replacement_rate",), "CBP"),
}
"""Each method's title, the values of `Size` that it tries, their columns, and what the legend says before them."""


def figure(frame: pd.DataFrame) -> list[Chart]:
    """One panel per method: its settings, and BP dashed."""
    order, group = sweep(scale_of(frame)).settings, "Settings of each method"
    return [
        draw_over_tasks(
            frame[frame["method"].isin([method, "BP"])], "accuracy", name_setting, order, title, group, dashed="BP"
        )
        for method, (title, *_) in VARIED.items()
    ]


def name_setting(row: pd.Series) -> str:
    """What the legend says: the method, and the values that vary in it."""
    if row["method"] not in VARIED:
        return str(row["method"])
    *_, columns, word = VARIED[str(row["method"])]
    return f"{word} {' and '.join(short(float(row[column])) for column in columns)}"


claims = Claims()
claim = claims.add


def _trends(frame: pd.DataFrame, method: str) -> list[Trend]:
    """Accuracy of a method's settings in ascending order; empty trends for those without results."""
    _, values, columns, _ = VARIED[method]
    tried = getattr(SIZES[scale_of(frame)], values)
    pairs = (value if isinstance(value, tuple) else (value,) for value in tried)
    return [trend(frame, "accuracy", method=method, **dict(zip(columns, pair, strict=True))) for pair in pairs]


def _bp(frame: pd.DataFrame) -> Trend:
    return trend(frame, "accuracy", method="BP")


@claim("settings-matter", "Section 5, Figure A.8")
def settings_matter(frame: pd.DataFrame) -> Verdict:
    """With every method but CBP two of its settings differ in mean accuracy, by more than half a point."""

    def check(method: str) -> Verdict:
        pairs = combinations([each.mean for each in _trends(frame, method)], 2)
        return any_of([differs(*pair, 0.5 * POINT, f"{method}, mean of two settings") for pair in pairs])

    return for_each(["L2", "S&P", "Dropout", "Online norm", "Adam"], check)


@claim("adam-step-size-sets-speed", "Section 5, Figure A.8")
def adam_step_size_sets_speed(frame: pd.DataFrame) -> Verdict:
    """Adam's step size changes how fast accuracy falls: by more than a tenth between the smallest and the largest."""
    slowest, _, fastest = (each.fall_speed for each in _trends(frame, "Adam"))
    tolerance = 0.1 * max((abs(float(speed.mean())) for speed in (slowest, fastest) if len(speed)), default=0.0)
    return differs(fastest, slowest, tolerance, "fall per bin at the largest step size less the smallest")


def _grows_with_dropout(frame: pd.DataFrame, what: str, value_of: Callable[[Trend], pd.Series]) -> Verdict:
    low, middle, high = (value_of(each) for each in _trends(frame, "Dropout"))
    lower = above(middle, low, f"{what} at the middle probability less the lowest")
    return all_of([lower, above(high, middle, f"{what} at the highest probability less the middle")])


@claim("more-dropout-falls-more", "Section 5, Figure A.8")
def more_dropout_falls_more(frame: pd.DataFrame) -> Verdict:
    """The higher the probability of dropout, the larger the loss."""
    return _grows_with_dropout(frame, "loss", lambda accuracy: accuracy.drop)


@claim("more-dropout-falls-faster", "Section 5")
def more_dropout_falls_faster(frame: pd.DataFrame) -> Verdict:
    """The higher the probability of dropout, the more accuracy is lost with each twentieth of the tasks after the best
    ones."""
    return _grows_with_dropout(frame, "fall per bin", lambda accuracy: accuracy.fall_speed)


@claim("lower-dropout-best-and-like-bp", "Section 5, Appendix A", scale="paper")
def lower_dropout_best(frame: pd.DataFrame) -> Verdict:
    """Dropout is best at one of its two lower probabilities (Section 5 names 0.01, Appendix A 0.03), and ends there as
    BP does, within a point."""
    *lower, high = _trends(frame, "Dropout")
    plain = _bp(frame).last
    return any_of(
        [
            all_of(
                [
                    above(one.mean, high.mean, f"mean of Dropout {probability:g} less {VALUES[-1]:g}"),
                    agrees(one.last, plain, POINT, f"Dropout {probability:g} less BP in the last bin"),
                ]
            )
            for probability, one in zip(VALUES[:-1], lower, strict=True)
        ]
    )


@claim("norm-rates-move-peak", "Section 5, Figure A.8")
def norm_rates_move_peak(frame: pd.DataFrame) -> Verdict:
    """The decay rates of online normalisation move its best tasks: by more than a twentieth of all tasks."""

    def best_bin(accuracy: Trend) -> pd.Series:
        return accuracy.bins.fillna(-1.0).idxmax(axis=0) if len(accuracy.bins) else accuracy.last

    peaks = [best_bin(each) for each in _trends(frame, "Online norm")]
    return any_of([differs(*pair, 1.0, "number of the best bin, two settings") for pair in combinations(peaks, 2)])


@claim("l2-sets-peak-and-fall", "Section 5, Figure A.8")
def l2_sets_peak_and_fall(frame: pd.DataFrame) -> Verdict:
    """The strength of L2 changes the best accuracy and the fall after it, each by more than half a point."""
    pairs = list(combinations(_trends(frame, "L2"), 2))
    best = any_of([differs(a.peak, b.peak, 0.5 * POINT, "best bin, two strengths") for a, b in pairs])
    return all_of([best, any_of([differs(a.drop, b.drop, 0.5 * POINT, "loss, two strengths") for a, b in pairs])])


@claim("too-much-noise-harms", "Section 5, Figure A.8")
def too_much_noise_harms(frame: pd.DataFrame) -> Verdict:
    """S&P with too much noise loses more plasticity."""
    _, middle, high = (each.drop for each in _trends(frame, "S&P"))
    return above(high, middle, "loss with the most noise less that with the middle amount")


@claim("too-little-noise-does-nothing", "Section 5, Figure A.8")
def too_little_noise_does_nothing(frame: pd.DataFrame) -> Verdict:
    """S&P with too little noise ends as L2 alone does, within half a point."""
    shrunk = trend(frame, "accuracy", method="L2", l2=SIZES[scale_of(frame)].best_l2).last
    what = "S&P with the least noise less L2 alone in the last bin"
    return agrees(_trends(frame, "S&P")[0].last, shrunk, 0.5 * POINT, what)


def _narrow_range(frame: pd.DataFrame, method: str) -> Verdict:
    plain, drops = _bp(frame).drop, [each.drop for each in _trends(frame, method)]
    less = any_of([above(plain, drop, f"loss of BP less {method}") for drop in drops])
    return all_of([less, any_of([above(drop, plain, f"loss of {method} less BP") for drop in drops])])


for _name, _method, _words in (
    ("l2", "L2", "L2 loses less than BP at some strength and more than BP at another."),
    ("sp", "S&P", "S&P loses less than BP with some noise and more than BP with another."),
):
    claim(f"{_name}-narrow-range", "Section 5", _words)(partial(_narrow_range, method=_method))


@claim("cbp-good-at-all-rates", "Section 6, Figure 6a")
def cbp_good_at_all_rates(frame: pd.DataFrame) -> Verdict:
    """At each of three replacement rates CBP ends above BP and loses less than half of what BP loses."""
    plain, verdicts = _bp(frame), []
    for rate, accuracy in zip(SIZES[scale_of(frame)].replacement_rate, _trends(frame, "CBP"), strict=True):
        verdicts.append(above(accuracy.last, plain.last, f"CBP at {rate:g} less BP in the last bin"))
        verdicts.append(below_share(accuracy.drop, plain.drop, 0.5, f"loss of CBP at {rate:g}"))
    return all_of(verdicts)


def _spread(trends: list[Trend]) -> pd.Series:
    """For each run the accuracy in the last bin of its best setting less that of its worst; empty if one is missing."""
    table = pd.concat([each.last for each in trends], axis=1, join="inner")
    if any(not len(each.tasks) for each in trends):
        return pd.Series(dtype=float)
    return table.max(axis=1, skipna=False) - table.min(axis=1, skipna=False)


@claim("cbp-least-sensitive", "Section 6")
def cbp_least_sensitive(frame: pd.DataFrame) -> Verdict:
    """The final accuracy of CBP depends less on its setting than that of L2 and of S&P; a method with a setting that
    diverges depends more than one without."""
    spread = {method: _spread(_trends(frame, method)) for method in ("CBP", "L2", "S&P")}

    def check(method: str) -> Verdict:
        what = f"spread over settings of CBP less that of {method}"
        return below(spread["CBP"], spread[method], what, divergence_loses=True)

    return for_each(["L2", "S&P"], check)


unchecked = not_checked("""
- Other values of the hyperparameters follow a similar trend. | Appendix A | The paper names no others; these are the
  three that it shows.
- The setting that the comparison shows has the best mean accuracy of all tried, with each method but dropout. |
  Section 5, Appendix A | The text names neither what was tried nor what is shown; that mnist-methods takes the middle
  of three is a choice of ours.
- With other decay rates online normalisation gets to its best slightly sooner or later. | Section 5 | Where the best
  lies is checked (norm-rates-move-peak); how fast it is reached has no other measure.
""")
