"""What the paper says about continual backpropagation on online permuted MNIST (Section 6, Figure 6).

Claims of `mnist-methods`, beside those of `mnist_known_claims`.
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.mnist.claims.known import OTHERS, SHRINKING, WORSE, accuracy_of, ends_above, weights_held
from neoteny.experiments.mnist.settings import LAYERS
from neoteny.experiments.mnist.trends import for_each, is_small_share, trend
from neoteny.report.claim import Claim, Unchecked, Verdict, above, all_of, below, near
from neoteny.report.statistics import estimate


def _cbp_keeps_level(frame: pd.DataFrame) -> Verdict:
    accuracy = accuracy_of(frame, "CBP")
    return above(estimate(accuracy.growth), -0.005, "CBP, last bin less first bin")


def _cbp_does_not_degrade(frame: pd.DataFrame) -> Verdict:
    return is_small_share(accuracy_of(frame, "CBP").drop, accuracy_of(frame, "BP").drop, 0.1, "loss of CBP")


def _cbp_best(frame: pd.DataFrame) -> Verdict:
    return for_each(OTHERS, lambda method: ends_above(frame, "CBP", method))


def _two_best(frame: pd.DataFrame) -> Verdict:
    pairs = [(best, other) for best in ("CBP", "S&P") for other in ("BP", "L2", *WORSE)]
    return for_each(pairs, lambda pair: ends_above(frame, *pair))


def _small_weights_best(frame: pd.DataFrame) -> Verdict:
    pairs = [(best, other) for best in (*SHRINKING, "CBP") for other in ("BP", *WORSE)]
    return for_each(pairs, lambda pair: ends_above(frame, *pair))


def _randomness_helps(frame: pd.DataFrame) -> Verdict:
    return all_of(
        [
            verdict
            for method in ("S&P", "CBP")
            for verdict in (
                ends_above(frame, method, "L2"),
                ends_above(frame, method, "L2", "effective_rank"),
                ends_above(frame, "L2", method, "dead_units"),
            )
        ]
    )


def _cbp_no_dead_units(frame: pd.DataFrame) -> Verdict:
    return below(estimate(trend(frame, "dead_units", method="CBP").highest), 0.01, "dead units of CBP in the worst bin")


def _cbp_rank(frame: pd.DataFrame) -> Verdict:
    return for_each(("BP", "S&P"), lambda method: ends_above(frame, "CBP", method, "effective_rank"))


def _cbp_fewer_dead(frame: pd.DataFrame) -> Verdict:
    return for_each(OTHERS, lambda method: ends_above(frame, method, "CBP", "dead_units"))


def _one_in_five(frame: pd.DataFrame) -> Verdict:
    replaced = trend(frame, "replaced", method="CBP", replacement_rate=1e-4).mean / (LAYERS * 60_000)
    return near(estimate(replaced), 0.2, 0.01, "units replaced in a layer for each example at rate 1e-4")


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "cbp-keeps-its-level",
        "CBP ends no lower than it was over the first twentieth of the tasks, give or take half a point.",
        "Section 6",
        _cbp_keeps_level,
    ),
    Claim(
        "cbp-does-not-degrade",
        "CBP does not degrade: its drop from its best is less than a tenth of BP's.",
        "Section 6, Figure 6a",
        _cbp_does_not_degrade,
    ),
    Claim("cbp-best", "CBP ends with the highest accuracy of all methods.", "Section 6, Figure 6a", _cbp_best),
    Claim("cbp-and-sp-two-best", "CBP and S&P end with the two highest accuracies.", "Section 6", _two_best),
    Claim(
        "small-weights-perform-best",
        "The three methods that hold their weights (L2, S&P, CBP) end with the three highest accuracies.",
        "Section 6, Figure 6b",
        _small_weights_best,
    ),
    Claim(
        "randomness-helps",
        "S&P and CBP end with a higher accuracy, a higher effective rank and fewer dead units than L2.",
        "Section 6",
        _randomness_helps,
    ),
    Claim(
        "cbp-has-no-dead-units",
        "CBP has almost no dead units throughout: less than 1% even in its worst bin.",
        "Section 6, Figure 6b (centre)",
        _cbp_no_dead_units,
    ),
    Claim(
        "cbp-fewest-dead-units",
        "CBP ends with fewer dead units than any other method.",
        "Section 6, Figure 6b (centre)",
        _cbp_fewer_dead,
    ),
    Claim(
        "cbp-holds-weights",
        "With CBP weights do not keep growing: over the second half by less than a tenth of BP's growth.",
        "Section 6, Figure 6b (left)",
        lambda frame: weights_held(frame, ("CBP",)),
    ),
    Claim(
        "cbp-higher-rank",
        "CBP ends with a higher effective rank than BP and S&P.",
        "Section 6, Figure 6b (right)",
        _cbp_rank,
    ),
    Claim(
        "one-unit-every-five-examples",
        "At rate 1e-4 and 2,000 units a layer, one unit in each layer is replaced every five examples.",
        "Section 6",
        _one_in_five,
        scale="paper",
    ),
)

UNCHECKED: tuple[Unchecked, ...] = (
    Unchecked(
        "A network learns quickly because its weights stay small; CBP leads because its units stay alive and diverse.",
        "Section 6, Figure 6b",
        "Explanations: these runs show what goes together, not what causes what.",
    ),
    Unchecked(
        "CBP alone does well by all three measures at once.",
        "Figure 6b",
        "The paper draws no line between well and badly; the single comparisons are claims.",
    ),
    Unchecked(
        "With CBP nothing of plasticity is lost, however long it learns.",
        "Abstract, Section 6",
        "No number of tasks can show it; cbp-does-not-degrade says it for the tasks that were run.",
    ),
)
