"""Verdict: what numbers say of a statement, and how verdicts on several comparisons become one.

Before this: `claim`, whose comparisons give verdicts with p-values; after it: pages and tables that show them.

Of several comparisons of which one alone decides (one that fails refutes "all", one that holds shows "some"), one in
forty would decide by chance. Holm's method corrects for their number there. Where all of them must agree nothing is
corrected: that all go wrong at once is less likely than that one does.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

LEVEL = 0.025
"""Below this p-value a comparison decides: the 95% interval lies on one side."""


class Outcome(enum.StrEnum):
    """What the numbers say."""

    HOLDS = "holds"
    FAILS = "does not hold"
    INCONCLUSIVE = "inconclusive"


class Coverage(enum.Enum):
    """Share of a claim's comparisons that have enough runs; too few runs count as PART."""

    WHOLE = "all of it"
    PART = "some of it"
    NOTHING = "none of it"


@dataclass(frozen=True)
class Verdict:
    """An outcome with the numbers behind it, and how much of what was compared has runs.

    Args:
        outcome: what the numbers say.
        evidence: the numbers.
        coverage: of what was compared.
        p_holds, p_fails: one-sided p-values of either outcome; where nan, 0 for the outcome and 1 for the other.
        at_this_scale: what the numbers say where the statement is about another scale than that of the runs.
    """

    outcome: Outcome
    evidence: str
    coverage: Coverage = Coverage.WHOLE
    p_holds: float = field(default=math.nan, compare=False)
    p_fails: float = field(default=math.nan, compare=False)
    at_this_scale: Outcome | None = None

    def __post_init__(self) -> None:
        for name, outcome in (("p_holds", Outcome.HOLDS), ("p_fails", Outcome.FAILS)):
            if math.isnan(getattr(self, name)):
                object.__setattr__(self, name, 0.0 if self.outcome is outcome else 1.0)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of several comparisons, corrected for their number (Holm 1979), in the same order.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    corrected, largest = [1.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda number: p_values[number])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected


def all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Holds if all hold; fails if one fails, corrected for their number."""
    some = _corrected(verdicts, Outcome.FAILS)
    p_holds = max((verdict.p_holds for verdict in verdicts), default=1.0)
    if verdicts and all(verdict.outcome is Outcome.HOLDS for verdict in verdicts):
        outcome = Outcome.HOLDS
    else:
        outcome = Outcome.FAILS if min(some, default=1.0) < LEVEL else Outcome.INCONCLUSIVE
    return _join(outcome, verdicts, p_holds, min(some, default=1.0), Outcome.FAILS)


def any_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Holds if one holds, corrected for their number; fails if all fail."""
    some = _corrected(verdicts, Outcome.HOLDS)
    p_fails = max((verdict.p_fails for verdict in verdicts), default=1.0)
    if verdicts and all(verdict.outcome is Outcome.FAILS for verdict in verdicts):
        outcome = Outcome.FAILS
    else:
        outcome = Outcome.HOLDS if min(some, default=1.0) < LEVEL else Outcome.INCONCLUSIVE
    return _join(outcome, verdicts, min(some, default=1.0), p_fails, Outcome.HOLDS)


def most_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Holds if more than half hold, fails if half or more fail; both corrected for their number."""
    count = len(verdicts)
    needed = {Outcome.HOLDS: count // 2 + 1, Outcome.FAILS: max(1, (count + 1) // 2)}
    p_values = {}
    for outcome, least in needed.items():
        found = sorted(_corrected(verdicts, outcome))
        p_values[outcome] = found[least - 1] if len(found) >= least else 1.0
    decided = [outcome for outcome, value in p_values.items() if value < LEVEL]
    return _join(
        decided[0] if decided else Outcome.INCONCLUSIVE,
        verdicts,
        p_values[Outcome.HOLDS],
        p_values[Outcome.FAILS],
        None,
    )


def for_each(values: Iterable[object], verdict_of: Callable[..., Verdict]) -> Verdict:
    """Holds if it holds for each value."""
    return all_of([verdict_of(value) for value in values])


def combine(outcome: Outcome, verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict of this outcome with the evidence of several."""
    coverages = {verdict.coverage for verdict in verdicts} or {Coverage.NOTHING}
    coverage = coverages.pop() if len(coverages) == 1 else Coverage.PART
    return Verdict(outcome, "; ".join(verdict.evidence for verdict in verdicts) or "not in these results", coverage)


def _corrected(verdicts: Sequence[Verdict], outcome: Outcome) -> list[float]:
    """P-values of this outcome, of the comparisons that have runs, corrected; 1 for those with another outcome."""
    tested = [verdict for verdict in verdicts if verdict.coverage is not Coverage.NOTHING]
    name = "p_holds" if outcome is Outcome.HOLDS else "p_fails"
    corrected = holm([getattr(verdict, name) for verdict in tested])
    return [value if one.outcome is outcome else 1.0 for value, one in zip(corrected, tested, strict=True)]


def _join(
    outcome: Outcome, verdicts: Sequence[Verdict], p_holds: float, p_fails: float, decisive: Outcome | None
) -> Verdict:
    """One verdict of several; it says so where the correction has taken the outcome that one of them would decide."""
    joined = combine(outcome, verdicts)
    evidence = joined.evidence
    alone = [verdict.outcome for verdict in verdicts].count(decisive) if decisive else 0
    if outcome is Outcome.INCONCLUSIVE and alone:
        word = "fails" if decisive is Outcome.FAILS else "holds"
        evidence += f"; corrected for {len(verdicts)} comparisons (Holm) none of them {word}"
    return Verdict(outcome, evidence, joined.coverage, p_holds, p_fails)
