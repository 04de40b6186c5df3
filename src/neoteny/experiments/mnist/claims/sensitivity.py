"""What the paper says about the settings of each method on online permuted MNIST, as claims of mnist-sensitivity.

Before this: `mnist_sensitivity_sizes`. After it: `mnist_sensitivity`, which runs and draws what is judged here.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pandas as pd

from neoteny.experiments.mnist.sensitivity_sizes import SIZES
from neoteny.experiments.mnist.trends import Trend, agrees, differs, for_each, is_above, is_small_share, trend
from neoteny.experiments.scales import scale_of
from neoteny.report.claim import Claim, Unchecked, Verdict, all_of, any_of
from neoteny.report.statistics import paired

POINT = 0.01
"""A percentage point of accuracy."""


def _trends(frame: pd.DataFrame, method: str) -> list[Trend]:
    """Accuracy of a method's settings in ascending order; empty trends for those without results."""
    size = SIZES[scale_of(frame)]
    values: dict[str, list[dict[str, float]]] = {
        "L2": [{"l2": strength} for strength in size.l2],
        "S&P": [{"noise_std": noise} for noise in size.noise_std],
        "Dropout": [{"dropout": probability} for probability in size.dropout],
        "Online norm": [{"forward_decay": pair[0], "backward_decay": pair[1]} for pair in size.decay],
        "Adam": [{"step_size": step_size} for step_size in size.adam_step_size],
        "CBP": [{"replacement_rate": rate} for rate in size.replacement_rate],
    }
    return [trend(frame, "accuracy", method=method, **details) for details in values[method]]


def _bp(frame: pd.DataFrame) -> Trend:
    return trend(frame, "accuracy", method="BP")


def _settings_matter(frame: pd.DataFrame) -> Verdict:
    def check(method: str) -> Verdict:
        pairs = combinations(_trends(frame, method), 2)
        return any_of(
            [differs(paired(a.mean, b.mean), 0.5 * POINT, f"{method}, mean of two settings") for a, b in pairs]
        )

    return for_each(["L2", "S&P", "Dropout", "Online norm", "Adam"], check)


def _adam_speed(frame: pd.DataFrame) -> Verdict:
    slowest, _, fastest = _trends(frame, "Adam")
    speeds = [each.fall_speed for each in (slowest, fastest)]
    tolerance = 0.1 * max((abs(float(speed.mean())) for speed in speeds if len(speed)), default=0.0)
    return differs(paired(speeds[1], speeds[0]), tolerance, "fall a bin at the largest step size less the smallest")


def _grows_with_dropout(frame: pd.DataFrame, what: str, value_of: Callable[[Trend], pd.Series]) -> Verdict:
    low, middle, high = (value_of(each) for each in _trends(frame, "Dropout"))
    return all_of(
        [
            is_above(middle, low, f"{what} at the middle probability less the lowest"),
            is_above(high, middle, f"{what} at the highest probability less the middle"),
        ]
    )


def _is_best(frame: pd.DataFrame, method: str, best: int = 1) -> Verdict:
    """Whether one of a method's three settings (0 the lowest) has the best mean accuracy."""
    means = [each.mean for each in _trends(frame, method)]
    names = ("lowest", "middle", "highest")
    others = [number for number in range(3) if number != best]
    return for_each(
        others,
        lambda other: is_above(means[best], means[other], f"{method}, mean of {names[best]} less {names[other]}"),
    )


def _dropout_like_bp(frame: pd.DataFrame, level: int) -> Verdict:
    end = _trends(frame, "Dropout")[level].last
    return agrees(paired(end, _bp(frame).last), POINT, "Dropout less BP in the last bin")


def _norm_peak_moves(frame: pd.DataFrame) -> Verdict:
    def best_bin(accuracy: Trend) -> pd.Series:
        return accuracy.bins.fillna(-1.0).idxmax(axis=0) if len(accuracy.bins) else accuracy.last

    peaks = [best_bin(each) for each in _trends(frame, "Online norm")]
    return any_of(
        [differs(paired(a, b), 1.0, "number of the best bin, two settings") for a, b in combinations(peaks, 2)]
    )


def _l2_sets_peak_and_fall(frame: pd.DataFrame) -> Verdict:
    pairs = list(combinations(_trends(frame, "L2"), 2))
    return all_of(
        [
            any_of([differs(paired(a.peak, b.peak), 0.5 * POINT, "best bin, two strengths") for a, b in pairs]),
            any_of([differs(paired(a.drop, b.drop), 0.5 * POINT, "loss, two strengths") for a, b in pairs]),
        ]
    )


def _too_much_noise(frame: pd.DataFrame) -> Verdict:
    _, middle, high = (each.drop for each in _trends(frame, "S&P"))
    return is_above(high, middle, "loss with the most noise less that with the middle amount")


def _too_little_noise(frame: pd.DataFrame) -> Verdict:
    least = _trends(frame, "S&P")[0].last
    shrunk = trend(frame, "accuracy", method="L2", l2=SIZES[scale_of(frame)].best_l2).last
    return agrees(paired(least, shrunk), 0.5 * POINT, "S&P with the least noise less L2 alone in the last bin")


def _narrow_range(frame: pd.DataFrame, method: str) -> Verdict:
    plain = _bp(frame).drop
    drops = [each.drop for each in _trends(frame, method)]
    return all_of(
        [
            any_of([is_above(plain, drop, f"loss of BP less {method}") for drop in drops]),
            any_of([is_above(drop, plain, f"loss of {method} less BP") for drop in drops]),
        ]
    )


def _cbp_wide_range(frame: pd.DataFrame) -> Verdict:
    plain = _bp(frame)
    rates = SIZES[scale_of(frame)].replacement_rate
    verdicts = []
    for rate, accuracy in zip(rates, _trends(frame, "CBP"), strict=True):
        verdicts.append(is_above(accuracy.last, plain.last, f"CBP at {rate:g} less BP in the last bin"))
        verdicts.append(is_small_share(accuracy.drop, plain.drop, 0.5, f"loss of CBP at {rate:g}"))
    return all_of(verdicts)


def _spread(trends: list[Trend]) -> pd.Series:
    """For each run the accuracy in the last bin of its best setting less that of its worst; empty if one is missing."""
    table = pd.concat([each.last for each in trends], axis=1, join="inner")
    if any(not len(each.tasks) for each in trends):
        return pd.Series(dtype=float)
    return table.max(axis=1, skipna=False) - table.min(axis=1, skipna=False)


def _cbp_least_sensitive(frame: pd.DataFrame) -> Verdict:
    mine = _spread(_trends(frame, "CBP"))
    return for_each(
        ["L2", "S&P"],
        lambda method: is_above(
            _spread(_trends(frame, method)), mine, f"spread over settings of {method} less that of CBP"
        ),
    )


def _middle_is_best(name: str, method: str, what: str) -> Claim:
    return Claim(
        name,
        f"The middle {what}, which the comparison of methods takes, has the best mean accuracy.",
        "Section 5, Appendix A",
        lambda frame: _is_best(frame, method),
        scale="paper",
    )


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "settings-matter",
        "With every method but CBP two of its settings differ in mean accuracy, by more than half a point.",
        "Section 5, Figure A.8",
        _settings_matter,
    ),
    Claim(
        "adam-step-size-sets-speed",
        "Adam's step size changes how fast accuracy falls: by more than a tenth between the smallest and the largest.",
        "Section 5, Figure A.8",
        _adam_speed,
    ),
    Claim(
        "more-dropout-falls-more",
        "The higher the probability of dropout, the larger the loss.",
        "Section 5, Figure A.8",
        lambda frame: _grows_with_dropout(frame, "loss", lambda accuracy: accuracy.drop),
    ),
    Claim(
        "more-dropout-falls-faster",
        "The higher the probability of dropout, the more accuracy is lost with each twentieth of the tasks after the "
        "best ones.",
        "Section 5",
        lambda frame: _grows_with_dropout(frame, "fall a bin", lambda accuracy: accuracy.fall_speed),
    ),
    Claim(
        "least-dropout-best",
        "Dropout is best at the lowest of the three probabilities, 0.01.",
        "Section 5",
        lambda frame: _is_best(frame, "Dropout", 0),
        scale="paper",
    ),
    Claim(
        "middle-dropout-best",
        "Dropout is best at the middle one of the three probabilities, 0.03.",
        "Appendix A",
        lambda frame: _is_best(frame, "Dropout"),
        scale="paper",
    ),
    Claim(
        "least-dropout-like-bp",
        "With probability 0.01 dropout ends as BP does, within a point.",
        "Section 5",
        lambda frame: _dropout_like_bp(frame, 0),
        scale="paper",
    ),
    Claim(
        "middle-dropout-like-bp",
        "With probability 0.03 dropout ends as BP does, within a point.",
        "Appendix A",
        lambda frame: _dropout_like_bp(frame, 1),
        scale="paper",
    ),
    Claim(
        "norm-rates-move-peak",
        "The decay rates of online normalisation move its best tasks: by more than a twentieth of all tasks.",
        "Section 5, Figure A.8",
        _norm_peak_moves,
    ),
    Claim(
        "l2-sets-peak-and-fall",
        "The strength of L2 changes the best accuracy and the fall after it, each by more than half a point.",
        "Section 5, Figure A.8",
        _l2_sets_peak_and_fall,
    ),
    Claim(
        "too-much-noise-harms",
        "S&P with too much noise loses more plasticity.",
        "Section 5, Figure A.8",
        _too_much_noise,
    ),
    Claim(
        "too-little-noise-does-nothing",
        "S&P with too little noise ends as L2 alone does, within half a point.",
        "Section 5, Figure A.8",
        _too_little_noise,
    ),
    Claim(
        "l2-narrow-range",
        "L2 loses less than BP at some strength and more than BP at another.",
        "Section 5",
        lambda frame: _narrow_range(frame, "L2"),
    ),
    Claim(
        "sp-narrow-range",
        "S&P loses less than BP with some noise and more than BP with another.",
        "Section 5",
        lambda frame: _narrow_range(frame, "S&P"),
    ),
    _middle_is_best("middle-l2-best", "L2", "strength of L2"),
    _middle_is_best("middle-noise-best", "S&P", "amount of noise of S&P"),
    _middle_is_best("middle-norm-pair-best", "Online norm", "pair of decay rates of online normalisation"),
    _middle_is_best("middle-adam-step-best", "Adam", "step size of Adam"),
    Claim(
        "cbp-good-at-all-rates",
        "At each of three replacement rates CBP ends above BP and loses less than half of what BP loses.",
        "Section 6, Figure 6a",
        _cbp_wide_range,
    ),
    Claim(
        "cbp-least-sensitive",
        "The final accuracy of CBP depends less on its setting than that of L2 and of S&P.",
        "Section 6",
        _cbp_least_sensitive,
    ),
)

UNCHECKED: tuple[Unchecked, ...] = (
    Unchecked(
        "Other values of the hyperparameters follow a similar trend.",
        "Appendix A",
        "The paper names no others; these are the three that it shows.",
    ),
    Unchecked(
        "The setting that the comparison shows has the best mean accuracy of all tried, with each method but dropout.",
        "Section 5, Appendix A",
        "The text names neither what was tried nor what is shown. The claims on middle settings (middle-l2-best and "
        "those after it) say whether what mnist-methods takes is the best of three.",
    ),
    Unchecked(
        "With other decay rates online normalisation gets to its best slightly sooner or later.",
        "Section 5",
        "Where the best lies is checked (norm-rates-move-peak); how fast it is reached has no other measure.",
    ),
)
