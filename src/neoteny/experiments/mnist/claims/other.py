"""What the paper says about dropout, online normalisation and Adam on online permuted MNIST (Section 5, Figure 4).

Claims of `mnist-methods` on the three methods one by one; "about the same" is within a fifth of BP's value. Before
this: `mnist_known_claims`, which compares them with all others and lists what is left unchecked.
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.mnist.claims.known import OTHERS, accuracy_of, after_200, ends_above, lose_more
from neoteny.experiments.mnist.trends import Trend, agrees, for_each, is_above, is_small_share, trend
from neoteny.experiments.scales import scale_of
from neoteny.report.claim import Claim, Verdict, all_of, below
from neoteny.report.statistics import estimate, paired


def _dropout_like_bp(frame: pd.DataFrame) -> Verdict:
    def check(metric: str) -> Verdict:
        plain = trend(frame, metric, method="BP").last
        dropped = trend(frame, metric, method="Dropout").last
        what = f"{metric.replace('_', ' ')} of Dropout less BP at the end"
        return agrees(paired(dropped, plain), 0.2 * float(plain.mean()) if len(plain) else 0.0, what)

    return for_each(["effective_rank", "weight_magnitude", "dead_units"], check)


def _dropout_harms(frame: pd.DataFrame) -> Verdict:
    plain, dropped = accuracy_of(frame, "BP").mean, accuracy_of(frame, "Dropout").mean
    overall = is_above(plain, dropped, "accuracy of BP less Dropout over all tasks")
    return all_of([overall, ends_above(frame, "BP", "Dropout")])


def _norm_starts_better(frame: pd.DataFrame) -> Verdict:
    return is_above(
        accuracy_of(frame, "Online norm").first, accuracy_of(frame, "BP").first, "Online norm less BP in the first bin"
    )


def _norm_falls_faster(frame: pd.DataFrame) -> Verdict:
    normed, plain = accuracy_of(frame, "Online norm"), accuracy_of(frame, "BP")
    return is_above(normed.fall_speed, plain.fall_speed, "fall a bin after the best one, Online norm less BP")


def _norm_healthy_at_first(frame: pd.DataFrame) -> Verdict:
    def early(metric: str, method: str) -> pd.Series:
        return trend(frame, metric, method=method).first

    return all_of(
        [
            is_above(
                early("dead_units", "BP"), early("dead_units", "Online norm"), "dead units of BP less Online norm"
            ),
            is_above(
                early("effective_rank", "Online norm"), early("effective_rank", "BP"), "rank of Online norm less BP"
            ),
        ]
    )


def _norm_sick_at_last(frame: pd.DataFrame) -> Verdict:
    return all_of(
        [
            ends_above(frame, "Online norm", "BP", "dead_units"),
            ends_above(frame, "BP", "Online norm", "effective_rank"),
        ]
    )


def _norm_dies_late(frame: pd.DataFrame) -> Verdict:
    dead = trend(frame, "dead_units", method="Online norm")
    early = Trend(dead.tasks[dead.tasks.index < 200])
    return all_of(
        [
            below(estimate(early.mean), 0.01, "dead units over the first 200 tasks"),
            is_above(dead.last, early.mean, "dead units in the last bin less those of the first 200 tasks"),
        ]
    )


def _adam_scores_poorly(frame: pd.DataFrame) -> Verdict:
    return all_of(
        [
            ends_above(frame, "Adam", "BP", "dead_units"),
            ends_above(frame, "Adam", "BP", "weight_magnitude"),
            ends_above(frame, "BP", "Adam", "effective_rank"),
        ]
    )


def _adam_rank_falls_furthest(frame: pd.DataFrame) -> Verdict:
    fall = -trend(frame, "effective_rank", method="Adam").growth
    return for_each(
        [method for method in (*OTHERS, "CBP") if method != "Adam"],
        lambda method: is_above(
            fall, -trend(frame, "effective_rank", method=method).growth, f"fall of Adam's rank less that of {method}"
        ),
    )


def _adam_loses_diversity(frame: pd.DataFrame) -> Verdict:
    rank = trend(frame, "effective_rank", method="Adam")
    if scale_of(frame) == "paper":  # a quarter of its 800 tasks, also where the runs have fewer behind them
        quarter = after_200(rank)
    else:
        quarter = rank.bins.iloc[len(rank.bins) // 4] if len(rank.bins) else rank.last
    return is_small_share(quarter, rank.start, 0.2, "rank after a quarter of the tasks")


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "dropout-correlates-like-bp",
        "Dropout ends with about BP's effective rank, weights and dead units: within a fifth of BP's.",
        "Section 5",
        _dropout_like_bp,
    ),
    Claim(
        "dropout-loses-more-than-bp",
        "Dropout loses more plasticity than BP.",
        "Section 5",
        lambda frame: lose_more(frame, ("Dropout",)),
    ),
    Claim(
        "dropout-only-harms",
        "Dropout lowers accuracy: over all tasks, and at the end.",
        "Section 5",
        _dropout_harms,
    ),
    Claim(
        "norm-starts-better",
        "Online normalisation has a higher accuracy than BP on early tasks.",
        "Section 5",
        _norm_starts_better,
    ),
    Claim(
        "norm-ends-worse",
        "Online normalisation has a lower accuracy than BP on late tasks.",
        "Section 5",
        lambda frame: ends_above(frame, "BP", "Online norm"),
    ),
    Claim(
        "norm-drops-more-sharply",
        "After its best, online normalisation loses more accuracy with each twentieth of the tasks than BP does.",
        "Section 5",
        _norm_falls_faster,
    ),
    Claim(
        "norm-correlates-better-at-first",
        "On early tasks BP has more dead units than online normalisation, and the lower effective rank.",
        "Section 5",
        _norm_healthy_at_first,
    ),
    Claim(
        "norm-correlates-worse-at-last",
        "On late tasks BP has the higher effective rank, and online normalisation more dead units.",
        "Section 5",
        _norm_sick_at_last,
    ),
    Claim(
        "norm-dies-after-200-tasks",
        "With online normalisation units begin to die after about 200 tasks: under 1% before.",
        "Figure 4b (centre)",
        _norm_dies_late,
        scale="paper",
    ),
    Claim(
        "adam-scores-poorly",
        "Adam ends with more dead units, larger weights and a lower effective rank than BP.",
        "Section 5",
        _adam_scores_poorly,
    ),
    Claim(
        "adam-rank-falls-furthest",
        "Adam's effective rank falls furthest of all methods.",
        "Section 5, Figure 4b (right)",
        _adam_rank_falls_furthest,
    ),
    Claim(
        "adam-loses-diversity-quickly",
        "After a quarter of the tasks Adam's effective rank is below a fifth of what it began with.",
        "Section 5",
        _adam_loses_diversity,
    ),
)
