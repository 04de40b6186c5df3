"""What the paper says about six known methods on online permuted MNIST (Section 5, Figure 4).

Claims of `mnist-methods`: those that compare the methods, and those on L2 and S&P. Words without a number in the paper
are given one in the statement of each claim: "almost no drop" is less than a quarter of BP's. What is left unchecked is
listed here for all six. After this: `mnist_dropout_norm_adam_claims` on the other three one by one, and
`mnist_cbp_claims` on continual backpropagation beside them.
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.mnist.trends import Trend, for_each, is_above, is_negative, is_positive, is_small_share, trend
from neoteny.report.claim import Claim, Unchecked, Verdict, all_of

WORSE = ("Dropout", "Online norm", "Adam")
SHRINKING = ("L2", "S&P")
OTHERS = ("BP", *SHRINKING, *WORSE)
"""All but continual backpropagation."""


def accuracy_of(frame: pd.DataFrame, method: str) -> Trend:
    """Trend of a method's accuracy."""
    return trend(frame, "accuracy", method=method)


def ends_above(frame: pd.DataFrame, first: str, second: str, metric: str = "accuracy") -> Verdict:
    """Whether a metric of the first method ends above that of the second."""
    better, worse = trend(frame, metric, method=first), trend(frame, metric, method=second)
    return is_above(better.last, worse.last, f"{metric.replace('_', ' ')} of {first} less {second} at the end")


def all_grow(frame: pd.DataFrame, metric: str, methods: tuple[str, ...], sign: int) -> Verdict:
    """Whether a metric grows (sign 1) or falls (sign -1) from the first bin to the last with each method."""
    verdict = is_positive if sign > 0 else is_negative
    return for_each(
        methods, lambda method: verdict(trend(frame, metric, method=method).growth, f"{method}, last bin less first")
    )


def weights_held(frame: pd.DataFrame, methods: tuple[str, ...]) -> Verdict:
    """Whether weights grow over the second half by less than a tenth of what BP's do, with each method."""
    free = trend(frame, "weight_magnitude", method="BP").late_growth
    return for_each(
        methods,
        lambda method: is_small_share(
            trend(frame, "weight_magnitude", method=method).late_growth, free, 0.1, f"late growth of weights, {method}"
        ),
    )


def lose_more(frame: pd.DataFrame, methods: tuple[str, ...]) -> Verdict:
    """Whether each method loses more plasticity than BP."""
    loss = accuracy_of(frame, "BP").drop
    return for_each(
        methods, lambda method: is_above(accuracy_of(frame, method).drop, loss, f"loss of {method} less that of BP")
    )


def after_200(rank: Trend) -> pd.Series:
    """Over the twentieth of the paper's tasks that begins with the 201st."""
    return Trend(rank.tasks[(rank.tasks.index >= 200) & (rank.tasks.index < 240)]).mean


def _shrinking_end_above(frame: pd.DataFrame) -> Verdict:
    return for_each(SHRINKING, lambda method: ends_above(frame, method, "BP"))


def _others_end_below(frame: pd.DataFrame) -> Verdict:
    return for_each(WORSE, lambda method: ends_above(frame, "BP", method))


def _best_before_cbp(frame: pd.DataFrame) -> Verdict:
    return for_each(("BP", "L2", *WORSE), lambda method: ends_above(frame, "S&P", method))


def _all_lose(frame: pd.DataFrame) -> Verdict:
    return for_each(
        OTHERS, lambda method: is_positive(accuracy_of(frame, method).drop, f"{method}, best bin less last bin")
    )


def _loses_little(frame: pd.DataFrame) -> Verdict:
    return is_small_share(accuracy_of(frame, "S&P").drop, accuracy_of(frame, "BP").drop, 0.25, "loss of S&P")


def _loses_some(frame: pd.DataFrame) -> Verdict:
    return is_positive(accuracy_of(frame, "S&P").drop, "S&P, best bin less last bin")


def _lose_less(frame: pd.DataFrame) -> Verdict:
    loss = accuracy_of(frame, "BP").drop
    return for_each(
        SHRINKING, lambda method: is_above(loss, accuracy_of(frame, method).drop, f"loss of BP less that of {method}")
    )


def _adam_loses_most(frame: pd.DataFrame) -> Verdict:
    loss = accuracy_of(frame, "Adam").drop
    return for_each(
        [method for method in (*OTHERS, "CBP") if method != "Adam"],
        lambda method: is_above(loss, accuracy_of(frame, method).drop, f"loss of Adam less that of {method}"),
    )


def _l2_correlates(frame: pd.DataFrame) -> Verdict:
    return all_of(
        [
            ends_above(frame, "BP", "L2", "weight_magnitude"),
            ends_above(frame, "L2", "BP", "dead_units"),
            ends_above(frame, "BP", "L2", "effective_rank"),
        ]
    )


def _perturbed_rank(frame: pd.DataFrame) -> Verdict:
    return all_of([ends_above(frame, "BP", "S&P", "effective_rank"), ends_above(frame, "S&P", "L2", "effective_rank")])


def _rank_settles(frame: pd.DataFrame) -> Verdict:
    def check(method: str) -> Verdict:
        rank = trend(frame, "effective_rank", method=method)
        at_200 = after_200(rank)
        return is_small_share(at_200 - rank.last, rank.start - at_200, 0.1, f"fall of {method}'s rank after 200 tasks")

    return for_each(["Dropout", "S&P"], check)


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "l2-and-sp-end-above-bp", "L2 and S&P end with a higher accuracy than BP.", "Figure 4a", _shrinking_end_above
    ),
    Claim(
        "dropout-norm-adam-end-below-bp",
        "Dropout, online normalisation and Adam end with a lower accuracy than BP.",
        "Section 5, Figure 4a",
        _others_end_below,
    ),
    Claim(
        "sp-best-of-known-methods",
        "S&P ends with the highest accuracy of all methods but CBP.",
        "Section 5",
        _best_before_cbp,
    ),
    Claim(
        "sp-loses-almost-nothing",
        "S&P has almost no drop: less than a quarter of BP's.",
        "Section 5, Figure 4a",
        _loses_little,
    ),
    Claim("sp-loses-something", "Even S&P ends a little below its best.", "Section 5", _loses_some),
    Claim("l2-and-sp-lose-less", "L2 and S&P lose less plasticity than BP.", "Section 5", _lose_less),
    Claim(
        "no-known-method-keeps-plasticity",
        "All methods but CBP end below their best.",
        "Section 5, Section 6, Figure 6a",
        _all_lose,
    ),
    Claim(
        "dropout-norm-adam-lose-more",
        "Dropout, online normalisation and Adam lose more plasticity than BP.",
        "Section 5",
        lambda frame: lose_more(frame, WORSE),
    ),
    Claim("adam-loses-most", "Adam's loss is the largest of all methods.", "Section 5", _adam_loses_most),
    Claim(
        "weights-grow-unless-held",
        "Weights grow with BP, dropout, online normalisation and Adam.",
        "Figure 4b (left), Figure 6b (left)",
        lambda frame: all_grow(frame, "weight_magnitude", ("BP", *WORSE), 1),
    ),
    Claim(
        "l2-and-sp-hold-weights",
        "With L2 and S&P weights do not keep growing: over the second half by less than a tenth of BP's growth.",
        "Section 5, Figure 4b (left)",
        lambda frame: weights_held(frame, SHRINKING),
    ),
    Claim(
        "dead-units-grow",
        "The share of dead units grows with all methods but CBP.",
        "Figure 4b (centre), Figure 6b (centre)",
        lambda frame: all_grow(frame, "dead_units", OTHERS, 1),
    ),
    Claim(
        "sp-fewer-dead-than-bp",
        "S&P ends with fewer dead units than BP.",
        "Section 5, Figure 4b (centre)",
        lambda frame: ends_above(frame, "BP", "S&P", "dead_units"),
    ),
    Claim(
        "rank-falls",
        "The effective rank falls over time with all methods.",
        "Figure 4b (right), Figure 6b (right)",
        lambda frame: all_grow(frame, "effective_rank", (*OTHERS, "CBP"), -1),
    ),
    Claim(
        "dropout-and-sp-rank-settles",
        "With dropout and S&P the effective rank stops falling after about 200 tasks: by less than a tenth of its fall "
        "until then.",
        "Figure 4b (right)",
        _rank_settles,
        scale="paper",
    ),
    Claim(
        "l2-trades-correlates",
        "L2 ends with smaller weights than BP, but with more dead units and a lower effective rank.",
        "Section 5",
        _l2_correlates,
    ),
    Claim(
        "sp-rank-between-l2-and-bp",
        "The effective rank of S&P ends below BP's and above L2's.",
        "Section 5",
        _perturbed_rank,
    ),
)

UNCHECKED: tuple[Unchecked, ...] = (
    Unchecked(
        "Dropout does badly for a reason that neither weights nor dead units nor rank show.",
        "Section 5",
        "A statement about explanations; what can be checked of it is dropout-correlates-like-bp and "
        "dropout-loses-more-than-bp.",
    ),
    Unchecked(
        "S&P still has a high share of dead units.",
        "Section 5",
        "High has no number; dead-units-grow and cbp-fewest-dead-units say what can be said.",
    ),
    Unchecked(
        "Adam mostly loses more than SGD whatever the activation function.",
        "Section 5",
        "It is about slowly-changing regression; see scr-activations.",
    ),
    Unchecked(
        "Other settings of these methods show the same pattern, at best with slightly better accuracy.",
        "Section 5",
        "One setting of each runs here; see mnist-sensitivity.",
    ),
)
