"""Claim: a sentence of the paper, where it stands, and the check of it on a table of results.

One vocabulary for comparisons: `above`, `below`, `near`, `differs`, `agrees`, `below_share` and `above_share` give a
verdict on values of runs; `all_of`, `any_of`, `most_of` and `for_each` (`verdict`) join verdicts. Values are series
indexed by seed (`statistics`, `trends`), so that what saw the same stream is compared in pairs.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from neoteny.report.statistics import Estimate, estimate, paired
from neoteny.report.verdict import Coverage, Outcome, Verdict, all_of, any_of, combine, for_each, most_of

__all__ = [
    "Check",
    "Claim",
    "Claims",
    "Coverage",
    "Outcome",
    "Unchecked",
    "Verdict",
    "above",
    "above_share",
    "agrees",
    "all_of",
    "any_of",
    "below",
    "below_share",
    "combine",
    "differs",
    "for_each",
    "most_of",
    "near",
]

FEWEST_RUNS = 3
"""With fewer runs an interval says nothing."""


Check = Callable[..., Verdict]
"""From the frame (`statistics`) to a verdict; it may have further parameters with defaults."""


@dataclass(frozen=True)
class Claim:
    """A statement, where the paper makes it, and its check; `Claims` adds one where the check is written.

    Args:
        name: short and unique within the experiment, in lower case with dashes.
        statement: in our own words.
        source: the paper's figure or section, for example "Figure 5a" or "Section 4".
        check: from the frame to a verdict.
        scale: "any", or "paper" for a statement about numbers that only the paper's own scale can test; elsewhere the
            verdict is inconclusive without looking.
    """

    name: str
    statement: str
    source: str
    check: Check
    scale: str = "any"

    def evaluate(self, frame: pd.DataFrame) -> Verdict:
        """The verdict on these results."""
        if frame.empty:
            return Verdict(Outcome.INCONCLUSIVE, "no finished runs", Coverage.NOTHING)
        scales = set(frame["scale"].unique())
        if self.scale == "paper" and scales != {"paper"}:
            evidence = f"needs the paper's scale; these runs are {', '.join(sorted(scales))}"
            return Verdict(Outcome.INCONCLUSIVE, evidence, Coverage.NOTHING)
        return self.check(frame)


class Claims(list[Claim]):
    """The claims of an experiment, in the order in which they were added.

    Example:
        >>> claims = Claims()
        >>> @claims.add("cbp-best", "Section 6, Figure 6a")
        ... def cbp_ends_highest(frame):
        ...     "CBP ends with the highest accuracy of all methods."
        ...     return above(Estimate(0.5, 0.4, 0.6, 30))
        >>> claims[0].name, claims[0].statement
        ('cbp-best', 'CBP ends with the highest accuracy of all methods.')
    """

    def add(self, name: str, source: str, statement: str = "", scale: str = "any") -> Callable[[Check], Check]:
        """A decorator for a check, whose docstring is the statement unless one is given; arguments as of `Claim`."""

        def register(check: Check) -> Check:
            words = statement or " ".join((inspect.getdoc(check) or "").split())
            if not words:
                raise ValueError(f"Claim {name!r} has no statement. Write it as the docstring of its check.")
            self.append(Claim(name, words, source, check, scale))
            return check

        return register


@dataclass(frozen=True)
class Unchecked:
    """A statement that these results cannot test, and why."""

    statement: str
    source: str
    reason: str


Values = Estimate | pd.Series
"""A mean over runs, or the values of runs by seed."""


def above(
    first: Values, second: pd.Series | float = 0.0, what: str = "", margin: float = 0.0, divergence_loses: bool = False
) -> Verdict:
    """Whether the first is above the second: holds or fails when the whole interval is on one side.

    Args:
        first: values.
        second: a threshold, or other values, which are compared in pairs over the seeds that both have.
        what: is compared, for the evidence.
        margin: by which first has to be above second, if second are values.
        divergence_loses: values with a diverged run are below values without one, as in `best_setting`.

    Example:
        >>> verdict = above(Estimate(0.5, 0.4, 0.6, 30), what="CBP minus BP")
        >>> print(verdict.outcome, verdict.evidence, sep="; ")
        holds; CBP minus BP: 0.5 [0.4, 0.6] (30 runs), expected above 0
    """
    if divergence_loses and (verdict := _find_diverged(first, second, what)):
        return verdict
    difference, threshold = _subtract(first, second, margin)
    return _place(difference, threshold, math.inf, f"above {threshold:g}", what)


def below(
    first: Values, second: pd.Series | float = 0.0, what: str = "", margin: float = 0.0, divergence_loses: bool = False
) -> Verdict:
    """Whether the first is below the second; or, with a margin, no more than that above it.

    With `divergence_loses`, values with a diverged run are above values without one.
    """
    if divergence_loses and (verdict := _find_diverged(first, second, what)):
        return verdict
    difference, threshold = _subtract(first, second, margin)
    return _place(difference, -math.inf, threshold, f"below {threshold:g}", what)


def near(value: Values, target: float, tolerance: float, what: str = "") -> Verdict:
    """Whether a value is within a tolerance of a target: holds if its interval is inside, fails if it is outside.

    Example:
        >>> near(Estimate(0.77, 0.76, 0.78, 30), 0.77, 0.02).evidence
        '0.77 [0.76, 0.78] (30 runs), expected between 0.75 and 0.79'
    """
    low, high = target - tolerance, target + tolerance
    # The ends belong to the range; those of `above` and `below` do not.
    ends = math.nextafter(low, -math.inf), math.nextafter(high, math.inf)
    return _place(_estimate(value), *ends, f"between {low:.4g} and {high:.4g}", what)


def below_share(part: pd.Series, whole: pd.Series, share: float, what: str) -> Verdict:
    """Whether part is below a share of whole, in pairs; inconclusive while whole itself may be zero or less."""
    return _share(below, part, whole, share, what)


def above_share(part: pd.Series, whole: pd.Series, share: float, what: str) -> Verdict:
    """Whether part is above a share of whole, in pairs; inconclusive while whole itself may be zero or less."""
    return _share(above, part, whole, share, what)


def _share(compare: Callable[..., Verdict], part: pd.Series, whole: pd.Series, share: float, what: str) -> Verdict:
    verdict = compare(part, share * whole, f"{what}, less {share:g} of {estimate(whole)}")
    if above(whole).outcome is Outcome.HOLDS:
        return verdict
    evidence = f"{what}: {estimate(part)}, but what it is compared with: {estimate(whole)}"
    return Verdict(Outcome.INCONCLUSIVE, evidence, verdict.coverage)


def differs(first: pd.Series, second: pd.Series, tolerance: float, what: str) -> Verdict:
    """Whether two values differ by more than a tolerance, to either side; fails if the interval lies within."""
    difference = paired(first, second)
    evidence = f"{what}: {difference} against +-{tolerance:.3g}"
    if not difference.runs:
        return Verdict(Outcome.INCONCLUSIVE, f"{what}: not in these results", Coverage.NOTHING)
    if difference.runs < FEWEST_RUNS:
        return Verdict(Outcome.INCONCLUSIVE, evidence, Coverage.PART)
    if math.isnan(difference.mean):
        return Verdict(Outcome.INCONCLUSIVE, evidence)
    outside = min(difference.p_above(tolerance), difference.p_below(-tolerance))
    inside = max(difference.p_below(tolerance), difference.p_above(-tolerance))
    if difference.low > tolerance or difference.high < -tolerance:
        return Verdict(Outcome.HOLDS, evidence, p_holds=outside, p_fails=inside)
    within = -tolerance <= difference.low and difference.high <= tolerance
    return Verdict(Outcome.FAILS if within else Outcome.INCONCLUSIVE, evidence, p_holds=outside, p_fails=inside)


def agrees(first: pd.Series, second: pd.Series, tolerance: float, what: str) -> Verdict:
    """Whether two values differ by no more than a tolerance: the opposite of `differs`."""
    opposite = {Outcome.HOLDS: Outcome.FAILS, Outcome.FAILS: Outcome.HOLDS}
    verdict = differs(first, second, tolerance, what)
    outcome = opposite.get(verdict.outcome, verdict.outcome)
    return replace(verdict, outcome=outcome, p_holds=verdict.p_fails, p_fails=verdict.p_holds)


def _estimate(values: Values) -> Estimate:
    return values if isinstance(values, Estimate) else estimate(values)


def _subtract(first: Values, second: pd.Series | float, margin: float) -> tuple[Estimate, float]:
    """What is compared with a threshold, and the threshold."""
    if isinstance(second, pd.Series):
        assert isinstance(first, pd.Series), "pairs need the values of runs, not their mean"
        return paired(first, second), margin
    return _estimate(first), second


def _find_diverged(first: Values, second: pd.Series | float, what: str) -> Verdict | None:
    """The verdict if some runs of one of both diverged and none of the other."""
    if not isinstance(first, pd.Series) or not isinstance(second, pd.Series):
        return None
    common = first.index.intersection(second.index)
    broken = [not np.isfinite(series.loc[common]).all() for series in (first, second)]
    if len(common) < FEWEST_RUNS or broken[0] == broken[1]:
        return None
    loser, outcome = ("the second", Outcome.HOLDS) if broken[1] else ("the first", Outcome.FAILS)
    return Verdict(outcome, f"{what}: {loser} diverged in some of {len(common)} runs, the other in none")


def _place(value: Estimate, least: float, most: float, expected: str, what: str) -> Verdict:
    """Holds if the interval lies within (least, most), fails if it lies outside, else inconclusive."""
    subject = f"{what}: " if what else ""
    if value.runs == 0:
        return Verdict(Outcome.INCONCLUSIVE, f"{subject}not in these results", Coverage.NOTHING)
    evidence = f"{subject}{value}, expected {expected}"
    if math.isnan(value.mean):
        return Verdict(Outcome.INCONCLUSIVE, f"{subject}some of {value.runs} runs diverged, expected {expected}")
    if value.runs < FEWEST_RUNS:
        return Verdict(Outcome.INCONCLUSIVE, f"{evidence}; fewer than {FEWEST_RUNS} runs say nothing", Coverage.PART)
    p_holds = max(value.p_above(least), value.p_below(most))
    p_fails = min(value.p_below(least), value.p_above(most))
    if least < value.low and value.high < most:
        return Verdict(Outcome.HOLDS, evidence, p_holds=p_holds, p_fails=p_fails)
    if value.high < least or value.low > most:
        return Verdict(Outcome.FAILS, evidence, p_holds=p_holds, p_fails=p_fails)
    open_evidence = f"{evidence}; the interval crosses that bound"
    return Verdict(Outcome.INCONCLUSIVE, open_evidence, p_holds=p_holds, p_fails=p_fails)
