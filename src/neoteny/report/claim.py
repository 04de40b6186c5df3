"""Claim: a sentence of the paper that a table of results can speak for or against."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from neoteny.report.statistics import Estimate

FEWEST_RUNS = 3
"""With fewer runs an interval says nothing."""


class Outcome(enum.StrEnum):
    """What the numbers say."""

    HOLDS = "holds"
    FAILS = "does not hold"
    INCONCLUSIVE = "inconclusive"


class Coverage(enum.Enum):
    """How much of what a claim compares the results have runs of; fewer than say anything are some."""

    WHOLE = "all of it"
    PART = "some of it"
    NOTHING = "none of it"


@dataclass(frozen=True)
class Verdict:
    """An outcome with the numbers and the interval behind it, and whether anything was without runs."""

    outcome: Outcome
    evidence: str
    coverage: Coverage = Coverage.WHOLE


@dataclass(frozen=True)
class Claim:
    """A statement, where the paper makes it, and its check.

    Args:
        name: short and unique within the experiment, in lower case with dashes.
        statement: in our own words.
        source: the paper's figure or section, for example "Figure 5a" or "Section 4".
        check: from the frame (`statistics`) to a verdict.
        scale: "any", or "paper" for a statement about numbers that only the paper's own scale can test; elsewhere the
            verdict is inconclusive without looking.
    """

    name: str
    statement: str
    source: str
    check: Callable[[pd.DataFrame], Verdict]
    scale: str = "any"

    def judge(self, frame: pd.DataFrame) -> Verdict:
        """The verdict on these results."""
        if frame.empty:
            return Verdict(Outcome.INCONCLUSIVE, "no finished runs", Coverage.NOTHING)
        scales = set(frame["scale"].unique())
        if self.scale == "paper" and scales != {"paper"}:
            evidence = f"needs the paper's scale; these runs are {', '.join(sorted(scales))}"
            return Verdict(Outcome.INCONCLUSIVE, evidence, Coverage.NOTHING)
        return self.check(frame)


@dataclass(frozen=True)
class Unchecked:
    """A statement that these results cannot test, and why."""

    statement: str
    source: str
    reason: str


def above(difference: Estimate, threshold: float = 0.0, what: str = "") -> Verdict:
    """Whether a difference is above a threshold: holds or fails when its whole interval is on one side.

    Example:
        >>> verdict = above(Estimate(0.5, 0.4, 0.6, 30), what="CBP minus BP")
        >>> print(verdict.outcome, verdict.evidence, sep="; ")
        holds; CBP minus BP: 0.5 [0.4, 0.6] (30 runs), expected above 0
    """
    return _judge(difference, threshold, math.inf, f"above {threshold:g}", what)


def below(difference: Estimate, threshold: float = 0.0, what: str = "") -> Verdict:
    """Whether a difference is below a threshold."""
    return _judge(difference, -math.inf, threshold, f"below {threshold:g}", what)


def near(value: Estimate, target: float, tolerance: float, what: str = "") -> Verdict:
    """Whether a value is within a tolerance of a target: holds if its interval is inside, fails if it is outside.

    Example:
        >>> near(Estimate(0.77, 0.76, 0.78, 30), 0.77, 0.02).evidence
        '0.77 [0.76, 0.78] (30 runs), expected between 0.75 and 0.79'
    """
    low, high = target - tolerance, target + tolerance
    # The ends belong to the range; those of `above` and `below` do not.
    return _judge(
        value, math.nextafter(low, -math.inf), math.nextafter(high, math.inf), f"between {low:.4g} and {high:.4g}", what
    )


def _judge(value: Estimate, least: float, most: float, expected: str, what: str) -> Verdict:
    """Holds if the interval lies within (least, most), fails if it lies without, else inconclusive."""
    subject = f"{what}: " if what else ""
    if value.runs == 0:
        return Verdict(Outcome.INCONCLUSIVE, f"{subject}not in these results", Coverage.NOTHING)
    evidence = f"{subject}{value}, expected {expected}"
    if math.isnan(value.mean):
        return Verdict(Outcome.INCONCLUSIVE, f"{subject}some of {value.runs} runs diverged, expected {expected}")
    if value.runs < FEWEST_RUNS:
        return Verdict(Outcome.INCONCLUSIVE, f"{evidence}; fewer than {FEWEST_RUNS} runs say nothing", Coverage.PART)
    if least < value.low and value.high < most:
        return Verdict(Outcome.HOLDS, evidence)
    if value.high < least or value.low > most:
        return Verdict(Outcome.FAILS, evidence)
    return Verdict(Outcome.INCONCLUSIVE, f"{evidence}; the interval crosses that bound")


def all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Holds if all hold, fails if one fails."""
    outcomes = [verdict.outcome for verdict in verdicts]
    if not outcomes or (Outcome.FAILS not in outcomes and Outcome.INCONCLUSIVE in outcomes):
        return combine(Outcome.INCONCLUSIVE, verdicts)
    return combine(Outcome.FAILS if Outcome.FAILS in outcomes else Outcome.HOLDS, verdicts)


def any_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Holds if one holds, fails if all fail."""
    outcomes = [verdict.outcome for verdict in verdicts]
    if not outcomes or (Outcome.HOLDS not in outcomes and Outcome.INCONCLUSIVE in outcomes):
        return combine(Outcome.INCONCLUSIVE, verdicts)
    return combine(Outcome.HOLDS if Outcome.HOLDS in outcomes else Outcome.FAILS, verdicts)


def combine(outcome: Outcome, verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict of this outcome with the evidence of several; of none: with nothing."""
    coverages = {verdict.coverage for verdict in verdicts} or {Coverage.NOTHING}
    coverage = coverages.pop() if len(coverages) == 1 else Coverage.PART
    return Verdict(outcome, "; ".join(verdict.evidence for verdict in verdicts) or "not in these results", coverage)
