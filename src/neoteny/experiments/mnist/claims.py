"""What the paper says about seven methods on online permuted MNIST (Sections 5 and 6, Figures 4 and 6).

Claims of `mnist-methods`. Words without a number in the paper are given one in the statement of each claim: "almost no
drop" is less than a quarter of BP's, "about the same" is within a fifth of BP's value. One rule says for every method
whether it keeps its plasticity: it does if it loses less than a tenth of what BP loses, and does not if it loses more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import product

import pandas as pd

from neoteny.experiments.mnist.settings import LAYERS
from neoteny.experiments.scales import not_checked, scale_of, split_entries
from neoteny.report.claim import Claims, Verdict, above, above_share, agrees, all_of, below, below_share, for_each, near
from neoteny.report.trends import Trend, trend

ALL_BUT_ADAM = ("BP", "L2", "S&P", "Dropout", "Online norm", "CBP")

claims = Claims()
claim = claims.add


def compare(frame: pd.DataFrame, text: str) -> Verdict:
    """Whether all comparisons hold, for example "accuracy.last: L2, S&P > BP; accuracy.drop: L2 > 0".

    Before the colon stand a metric and a property of its `Trend`. Each method before the sign is compared with each
    method after it, with 0, or with a share of one method ("< 0.1 BP", "> 0.1 BP").
    """
    return all_of([verdict for part in text.split("; ") for verdict in _compare(frame, *part.split(": "))])


def _compare(frame: pd.DataFrame, quantity: str, text: str) -> Iterator[Verdict]:
    metric, statistic = quantity.split(".")
    left, sign, right = re.split(r" ([<>]) ", text)
    share = re.fullmatch(r"([\d.]+) (.+)", right)
    methods = [share[2]] if share else [] if right == "0" else right.split(", ")
    value = {
        method: getattr(trend(frame, metric, method=method), statistic) for method in (*left.split(", "), *methods)
    }
    template = _EVIDENCE[f"{statistic} {'share' if share else 'pair' if methods else 'alone'}"]
    for first, second in product(left.split(", "), methods or [""]):
        what = template.format(metric=metric.replace("_", " "), first=first, second=second)
        if share:
            yield (above_share if sign == ">" else below_share)(value[first], value[second], float(share[1]), what)
        else:
            yield (above if sign == ">" else below)(value[first], value[second] if second else 0.0, what)


_EVIDENCE = {
    "last pair": "{metric} of {first} less {second} at the end",
    "drop pair": "loss of {first} less that of {second}",
    "drop alone": "{first}, best bin less last bin",
    "drop share": "loss of {first}",
    "growth alone": "{first}, last bin less first",
    "late_growth share": "late growth of weights, {first}",
}


def _add_comparisons(text: str) -> None:
    """Add claims that are comparisons alone: a list of "- name | source | statement | comparisons"."""
    for name, source, statement, comparisons in split_entries(text):
        claim(name, source, statement)(partial(compare, text=comparisons))


def _accuracy(frame: pd.DataFrame, method: str) -> Trend:
    return trend(frame, "accuracy", method=method)


def _after_200(rank: Trend) -> pd.Series:
    """Over the twentieth of the paper's tasks that begins with the 201st."""
    return Trend(rank.tasks[(rank.tasks.index >= 200) & (rank.tasks.index < 240)]).mean


_add_comparisons("""
- l2-and-sp-end-above-bp | Figure 4a | L2 and S&P end with a higher accuracy than BP. |
  accuracy.last: L2, S&P > BP
- dropout-norm-adam-end-below-bp | Section 5, Figure 4a | Dropout, online normalisation and Adam end with a lower
  accuracy than BP. |
  accuracy.last: BP > Dropout, Online norm, Adam
- sp-best-of-known-methods | Section 5, Section 6 | S&P ends with the highest accuracy of all methods but CBP. |
  accuracy.last: S&P > BP, L2, Dropout, Online norm, Adam
- sp-loses-almost-nothing | Section 5, Figure 4a | S&P has almost no drop: less than a quarter of BP's. |
  accuracy.drop: S&P < 0.25 BP
- sp-loses-something | Section 5 | Even S&P loses some plasticity: more than a tenth of what BP loses. |
  accuracy.drop: S&P > 0.1 BP
- small-weights-lose-less | Section 5, Section 6 | The methods that hold their weights (L2, S&P, CBP) lose less
  plasticity than BP. |
  accuracy.drop: BP > L2, S&P, CBP
- no-known-method-keeps-plasticity | Section 5, Section 6, Figure 6a | All methods but CBP lose plasticity: BP ends
  below its best, and the others lose more than a tenth of what BP loses. |
  accuracy.drop: BP > 0; accuracy.drop: L2, S&P, Dropout, Online norm, Adam > 0.1 BP
- dropout-norm-adam-lose-more | Section 5 | Dropout, online normalisation and Adam lose more plasticity than BP. |
  accuracy.drop: Dropout, Online norm, Adam > BP
- adam-loses-most | Section 5 | Adam's loss is the largest of all methods. |
  accuracy.drop: Adam > BP, L2, S&P, Dropout, Online norm, CBP
- weights-grow-unless-held | Figure 4b (left), Figure 6b (left) | Weights grow with BP, dropout, online normalisation
  and Adam. |
  weight_magnitude.growth: BP, Dropout, Online norm, Adam > 0
- l2-and-sp-hold-weights | Section 5, Figure 4b (left) | With L2 and S&P weights do not keep growing: over the second
  half by less than a tenth of BP's growth. |
  weight_magnitude.late_growth: L2, S&P < 0.1 BP
- dead-units-grow | Figure 4b (centre), Figure 6b (centre) | The share of dead units grows with all methods but CBP. |
  dead_units.growth: BP, L2, S&P, Dropout, Online norm, Adam > 0
- sp-fewer-dead-than-bp | Section 5, Figure 4b (centre) | S&P ends with fewer dead units than BP. |
  dead_units.last: BP > S&P
- rank-falls | Figure 4b (right), Figure 6b (right) | The effective rank falls over time with all methods. |
  effective_rank.growth: BP, L2, S&P, Dropout, Online norm, Adam, CBP < 0
""")


@claim("dropout-and-sp-rank-settles", "Figure 4b (right)", scale="paper")
def rank_settles(frame: pd.DataFrame) -> Verdict:
    """With dropout and S&P the effective rank stops falling after about 200 tasks: by less than a tenth of its fall
    until then."""

    def check(method: str) -> Verdict:
        rank = trend(frame, "effective_rank", method=method)
        at_200 = _after_200(rank)
        return below_share(at_200 - rank.last, rank.start - at_200, 0.1, f"fall of {method}'s rank after 200 tasks")

    return for_each(["Dropout", "S&P"], check)


_add_comparisons("""
- l2-trades-correlates | Section 5 | L2 ends with smaller weights than BP, but with more dead units and a lower
  effective rank. |
  weight_magnitude.last: BP > L2; dead_units.last: L2 > BP; effective_rank.last: BP > L2
- sp-rank-between-l2-and-bp | Section 5 | The effective rank of S&P ends below BP's and above L2's. |
  effective_rank.last: BP > S&P; effective_rank.last: S&P > L2
""")


@claim("dropout-correlates-like-bp", "Section 5")
def dropout_like_bp(frame: pd.DataFrame) -> Verdict:
    """Dropout ends with about BP's effective rank, weights and dead units: within a fifth of BP's."""

    def check(metric: str) -> Verdict:
        plain, dropped = (trend(frame, metric, method=method).last for method in ("BP", "Dropout"))
        what = f"{metric.replace('_', ' ')} of Dropout less BP at the end"
        return agrees(dropped, plain, 0.2 * float(plain.mean()) if len(plain) else 0.0, what)

    return for_each(["effective_rank", "weight_magnitude", "dead_units"], check)


@claim("dropout-only-harms", "Section 5")
def dropout_harms(frame: pd.DataFrame) -> Verdict:
    """Dropout lowers accuracy over all tasks."""
    means = (_accuracy(frame, method).mean for method in ("BP", "Dropout"))
    return above(*means, what="accuracy of BP less Dropout over all tasks")


@claim("norm-starts-better", "Section 5")
def norm_starts_better(frame: pd.DataFrame) -> Verdict:
    """Online normalisation has a higher accuracy than BP on early tasks."""
    first = (_accuracy(frame, method).first for method in ("Online norm", "BP"))
    return above(*first, what="Online norm less BP in the first bin")


@claim("norm-drops-more-sharply", "Section 5")
def norm_falls_faster(frame: pd.DataFrame) -> Verdict:
    """After its best, online normalisation loses more accuracy with each twentieth of the tasks than BP does."""
    speeds = (_accuracy(frame, method).fall_speed for method in ("Online norm", "BP"))
    return above(*speeds, what="fall per bin after the best one, Online norm less BP")


@claim("norm-correlates-better-at-first", "Section 5")
def norm_better_at_first(frame: pd.DataFrame) -> Verdict:
    """On early tasks BP has more dead units than online normalisation, and the lower effective rank."""
    dead = (trend(frame, "dead_units", method=method).first for method in ("BP", "Online norm"))
    rank = (trend(frame, "effective_rank", method=method).first for method in ("Online norm", "BP"))
    return all_of(
        [above(*dead, what="dead units of BP less Online norm"), above(*rank, what="rank of Online norm less BP")]
    )


_add_comparisons("""
- norm-correlates-worse-at-last | Section 5 | On late tasks BP has the higher effective rank, and online normalisation
  more dead units. |
  dead_units.last: Online norm > BP; effective_rank.last: BP > Online norm
""")


@claim("norm-dies-after-200-tasks", "Figure 4b (centre)", scale="paper")
def norm_dies_late(frame: pd.DataFrame) -> Verdict:
    """With online normalisation units begin to die after about 200 tasks: under 1% before."""
    dead = trend(frame, "dead_units", method="Online norm")
    early = Trend(dead.tasks[dead.tasks.index < 200]).mean
    later = above(dead.last, early, "dead units in the last bin less those of the first 200 tasks")
    return all_of([below(early, 0.01, "dead units over the first 200 tasks"), later])


_add_comparisons("""
- adam-scores-poorly | Section 5 | Adam ends with more dead units, larger weights and a lower effective rank than BP. |
  dead_units.last: Adam > BP; weight_magnitude.last: Adam > BP; effective_rank.last: BP > Adam
""")


@claim("adam-rank-falls-furthest", "Section 5, Figure 4b (right)")
def adam_rank_falls_furthest(frame: pd.DataFrame) -> Verdict:
    """Adam's effective rank falls furthest of all methods."""
    fall = {method: -trend(frame, "effective_rank", method=method).growth for method in ("Adam", *ALL_BUT_ADAM)}
    return for_each(
        ALL_BUT_ADAM, lambda method: above(fall["Adam"], fall[method], f"fall of Adam's rank less that of {method}")
    )


@claim("adam-loses-diversity-quickly", "Section 5")
def adam_loses_diversity(frame: pd.DataFrame) -> Verdict:
    """After a quarter of the tasks Adam's effective rank is below a fifth of what it began with."""
    rank = trend(frame, "effective_rank", method="Adam")
    if scale_of(frame) == "paper":  # a quarter of its 800 tasks, also where the runs have fewer behind them
        quarter = _after_200(rank)
    else:
        quarter = rank.bins.iloc[len(rank.bins) // 4] if len(rank.bins) else rank.last
    return below_share(quarter, rank.start, 0.2, "rank after a quarter of the tasks")


@claim("cbp-keeps-its-level", "Section 6")
def cbp_keeps_its_level(frame: pd.DataFrame) -> Verdict:
    """CBP ends no lower than it was over the first twentieth of the tasks, give or take half a point."""
    return above(_accuracy(frame, "CBP").growth, -0.005, "CBP, last bin less first bin")


_add_comparisons("""
- cbp-does-not-degrade | Section 6, Figure 6a | CBP does not degrade: it loses less than a tenth of what BP loses. |
  accuracy.drop: CBP < 0.1 BP
- cbp-best | Section 6, Figure 6a | CBP ends with the highest accuracy of all methods. |
  accuracy.last: CBP > BP, L2, S&P, Dropout, Online norm, Adam
- randomness-helps | Section 6 | S&P and CBP end with a higher accuracy, a higher effective rank and fewer dead units
  than L2. |
  accuracy.last: S&P > L2; effective_rank.last: S&P > L2; dead_units.last: L2 > S&P; accuracy.last: CBP > L2;
  effective_rank.last: CBP > L2; dead_units.last: L2 > CBP
""")


@claim("cbp-has-no-dead-units", "Section 6, Figure 6b (centre)")
def cbp_has_no_dead_units(frame: pd.DataFrame) -> Verdict:
    """CBP has almost no dead units throughout: less than 1% even in its worst bin."""
    return below(trend(frame, "dead_units", method="CBP").highest, 0.01, "dead units of CBP in the worst bin")


_add_comparisons("""
- cbp-fewest-dead-units | Section 6, Figure 6b (centre) | CBP ends with fewer dead units than any other method. |
  dead_units.last: BP, L2, S&P, Dropout, Online norm, Adam > CBP
- cbp-holds-weights | Section 6, Figure 6b (left) | With CBP weights do not keep growing: over the second half by less
  than a tenth of BP's growth. |
  weight_magnitude.late_growth: CBP < 0.1 BP
- cbp-higher-rank | Section 6, Figure 6b (right) | CBP ends with a higher effective rank than BP and S&P. |
  effective_rank.last: CBP > BP, S&P
""")


@claim("one-unit-every-five-examples", "Section 6", scale="paper")
def one_unit_every_five_examples(frame: pd.DataFrame) -> Verdict:
    """At rate 1e-4 and 2,000 units a layer, one unit in each layer is replaced every five examples."""
    replaced = trend(frame, "replaced", method="CBP", replacement_rate=1e-4).mean / (LAYERS * 60_000)
    return near(replaced, 0.2, 0.01, "units replaced in a layer for each example at rate 1e-4")


unchecked = not_checked("""
- CBP and S&P are the two best methods. | Section 6 | Contained in cbp-best and sp-best-of-known-methods, which together
  say it.
- Dropout loses more plasticity than BP, and online normalisation is below BP on late tasks. | Section 5 | Contained in
  dropout-norm-adam-lose-more and dropout-norm-adam-end-below-bp.
- Dropout does badly for a reason that neither weights nor dead units nor rank show. | Section 5 | A statement about
  explanations; what can be checked of it is dropout-correlates-like-bp and dropout-norm-adam-lose-more.
- S&P still has a high share of dead units. | Section 5 | High has no number; dead-units-grow and cbp-fewest-dead-units
  say what can be said.
- Adam mostly loses more than SGD with every activation function. | Section 5 | It is about slowly-changing
  regression; see scr-activations.
- Other settings of these methods show the same pattern, at best with slightly better accuracy. | Section 5 | One
  setting of each runs here; see mnist-sensitivity.
- A network learns quickly because its weights stay small; CBP leads because its units stay alive and diverse. |
  Section 6, Figure 6b | Explanations: these runs show what goes together, not what causes what.
- CBP alone does well by all three measures at once. | Figure 6b | The paper draws no line between well and badly; the
  single comparisons are claims.
- With CBP nothing of plasticity is lost, however long it learns. | Abstract, Section 6 | No number of tasks can show
  it; cbp-does-not-degrade says it for the tasks that were run.
""")
