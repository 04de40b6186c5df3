"""Verdicts: what holds, what fails, and what is honestly inconclusive."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neoteny.report.claim import (
    Claim,
    Claims,
    Coverage,
    Outcome,
    Verdict,
    above,
    above_share,
    agrees,
    all_of,
    any_of,
    below,
    below_share,
    differs,
    most_of,
    near,
)
from neoteny.report.statistics import Estimate, estimate, per_run, select
from neoteny.report.verdict import holm
from support.frames import make_frame

HOLDS, FAILS, OPEN = Outcome.HOLDS, Outcome.FAILS, Outcome.INCONCLUSIVE


def make_estimate(low: float, high: float, runs: int = 10) -> Estimate:
    return Estimate((low + high) / 2, low, high, runs)


@pytest.mark.parametrize(
    ("low", "high", "when_above", "when_below"),
    [(0.3, 0.5, HOLDS, FAILS), (-0.5, -0.3, FAILS, HOLDS), (-0.1, 0.3, OPEN, OPEN), (0.0, 0.0, OPEN, OPEN)],
)
def test_a_side_is_taken_only_by_a_whole_interval(
    low: float, high: float, when_above: Outcome, when_below: Outcome
) -> None:
    for shift in (0.0, 2.0):
        value = make_estimate(low + shift, high + shift)
        assert above(value, shift).outcome == when_above
        assert below(value, shift).outcome == when_below


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [(0.76, 0.78, HOLDS), (0.75, 0.79, HOLDS), (0.6, 0.7, FAILS), (0.8, 0.9, FAILS), (0.74, 0.78, OPEN), (0, 1, OPEN)],
)
def test_near_asks_where_the_interval_lies(low: float, high: float, outcome: Outcome) -> None:
    assert near(make_estimate(low, high), 0.77, 0.02).outcome == outcome


def test_evidence_reads_as_a_sentence_with_the_numbers() -> None:
    value = make_estimate(0.4, 0.6, 30)
    assert above(value, what="CBP minus BP").evidence == "CBP minus BP: 0.5 [0.4, 0.6] (30 runs), expected above 0"
    assert below(value, 0.2).evidence == "0.5 [0.4, 0.6] (30 runs), expected below 0.2"
    assert near(value, 0.5, 0.05).evidence == (
        "0.5 [0.4, 0.6] (30 runs), expected between 0.45 and 0.55; the interval crosses that bound"
    )


@pytest.mark.parametrize("judge", [above, below, lambda value, what: near(value, 1.0, 0.5, what)])
def test_missing_diverged_and_few_runs_are_inconclusive_and_say_so(judge) -> None:
    missing = judge(estimate([]), what="BP")
    assert (missing.outcome, missing.evidence) == (OPEN, "BP: not in these results")
    diverged = judge(estimate([1.0, 2.0, math.nan, 3.0]), what="BP")
    assert diverged.outcome == OPEN
    assert diverged.evidence.startswith("BP: some of 4 runs diverged, expected ")
    few = judge(estimate([1.0, 1.001]), what="BP")
    assert few.outcome == OPEN
    assert few.evidence.endswith("; fewer than 3 runs say nothing")
    assert judge(estimate([1.0]), what="BP").outcome == OPEN


@given(st.lists(st.floats(-10, 10), min_size=3, max_size=8), st.floats(-10, 10))
def test_below_mirrors_above(values: list[float], threshold: float) -> None:
    mirrored = above(estimate([-value for value in values]), -threshold)
    assert below(estimate(values), threshold).outcome == mirrored.outcome


def test_all_and_any_over_every_pair_of_outcomes() -> None:
    every = {
        (HOLDS, HOLDS): (HOLDS, HOLDS),
        (HOLDS, FAILS): (FAILS, HOLDS),
        (HOLDS, OPEN): (OPEN, HOLDS),
        (FAILS, FAILS): (FAILS, FAILS),
        (FAILS, OPEN): (FAILS, OPEN),
        (OPEN, OPEN): (OPEN, OPEN),
    }
    for pair, (all_outcome, any_outcome) in every.items():
        for order in itertools.permutations(pair):
            verdicts = [Verdict(outcome, outcome.value) for outcome in order]
            assert all_of(verdicts).outcome == all_outcome
            assert any_of(verdicts).outcome == any_outcome
            assert all_of(verdicts).evidence == "; ".join(order)


def test_nothing_to_judge_is_inconclusive() -> None:
    for combine in (all_of, any_of, most_of):
        assert combine([]) == Verdict(OPEN, "not in these results", Coverage.NOTHING)


@pytest.mark.parametrize("combine", [all_of, any_of, most_of])
def test_a_verdict_says_how_much_of_what_it_compares_had_runs(combine) -> None:
    there, absent = above(make_estimate(0.3, 0.5)), above(estimate([]))
    assert (there.coverage, absent.coverage) == (Coverage.WHOLE, Coverage.NOTHING)
    assert above(estimate([1.0])).coverage is Coverage.PART  # too few are not none
    assert combine([there, there]).coverage is Coverage.WHOLE
    assert combine([absent, absent]).coverage is Coverage.NOTHING
    some = combine([there, absent])
    assert some.coverage is Coverage.PART
    assert combine([some, there]).coverage is combine([some, absent]).coverage is Coverage.PART


def test_a_share_of_nothing_and_a_verdict_turned_round_keep_what_had_no_runs() -> None:
    none, some, zero = (pd.Series(values, dtype=float) for values in ([], [0.9, 1.0, 1.1], [-1.0, 0.0, 1.0]))
    for part, whole, coverage in (
        (none, none, Coverage.NOTHING),
        (none, zero, Coverage.NOTHING),
        (some, none, Coverage.NOTHING),
        (some, zero, Coverage.WHOLE),  # has runs, and is undecided all the same
        (zero, some, Coverage.WHOLE),
    ):
        verdict = below_share(part, whole, 0.1, "loss")
        assert (verdict.outcome, verdict.coverage) == (OPEN, coverage), verdict.evidence
    assert agrees(none, none, 0.1, "BP").coverage is Coverage.NOTHING


def make_claim(scale: str = "any") -> Claim:
    def check(frame):
        return below(estimate(per_run(select(frame, "error", method="BP"))), 1.0, "BP")

    return Claim("low-error", "BP's error is below 1.", "Figure 1", check, scale)


def test_a_claim_judges_a_frame() -> None:
    frame = make_frame([("BP", {}, {"error": 0.5})], noise=0.1)
    assert make_claim().evaluate(frame).outcome == HOLDS
    assert make_claim().evaluate(make_frame([("BP", {}, {"error": 2.0})], noise=0.1)).outcome == FAILS
    assert make_claim().evaluate(make_frame([("CBP", {}, {"error": 0.5})])).outcome == OPEN


def test_a_claim_about_the_papers_numbers_needs_the_papers_scale() -> None:
    laptop = make_frame([("BP", {}, {"error": 0.5})], scale="laptop")
    verdict = make_claim("paper").evaluate(laptop)
    assert verdict == Verdict(OPEN, "needs the paper's scale; these runs are laptop", Coverage.NOTHING)
    assert make_claim("paper").evaluate(make_frame([("BP", {}, {"error": 0.5})])).outcome == HOLDS


def test_no_results_are_inconclusive() -> None:
    assert make_claim().evaluate(make_frame([])) == Verdict(OPEN, "no finished runs", Coverage.NOTHING)


def test_claims_are_added_in_order_with_their_docstrings_as_statements() -> None:
    claims = Claims()

    @claims.add("first", "Figure 1")
    def first(frame: pd.DataFrame) -> Verdict:
        """A statement
        in two lines."""
        return above(pd.Series([1.0, 1.1, 0.9]))

    assert first(make_frame([])).outcome is HOLDS  # still a function
    claims.add("second", "Section 2", "In other words.", scale="paper")(first)
    assert [(one.name, one.statement, one.source, one.scale) for one in claims] == [
        ("first", "A statement in two lines.", "Figure 1", "any"),
        ("second", "In other words.", "Section 2", "paper"),
    ]
    with pytest.raises(ValueError, match="'third' has no statement"):
        claims.add("third", "Section 3")(lambda frame: above(pd.Series([1.0, 1.1, 0.9])))


def test_values_are_compared_in_pairs_or_with_a_number() -> None:
    high, low = pd.Series([1.0, 2.0, 3.0]), pd.Series([0.9, 1.89, 2.9])
    assert above(high, low).outcome is HOLDS  # run by run, although the runs differ much
    assert above(high, 2.0).outcome is OPEN
    assert below(high, low).outcome is FAILS
    assert above(high, low, margin=0.5).outcome is FAILS
    assert below(high, low, margin=0.5).outcome is HOLDS
    assert above(estimate(high), 0.5) == above(high, 0.5)


def test_differs_and_agrees_are_opposites() -> None:
    for values, outcome in (
        ([1.0, 1.1, 0.9], Outcome.HOLDS),
        ([-1.0, -1.1, -0.9], Outcome.HOLDS),
        ([0.0, 0.01, -0.01], Outcome.FAILS),
        ([0.1, 0.4, -0.3], Outcome.INCONCLUSIVE),
        ([1.0, 1.1], Outcome.INCONCLUSIVE),
    ):
        zero = pd.Series(0.0, index=range(len(values)))
        assert differs(pd.Series(values), zero, 0.1, "x").outcome is outcome
        opposite = {Outcome.HOLDS: Outcome.FAILS, Outcome.FAILS: Outcome.HOLDS}.get(outcome, outcome)
        assert agrees(pd.Series(values), zero, 0.1, "x").outcome is opposite


def test_a_share_of_nothing_is_not_judged() -> None:
    nothing, little = pd.Series([0.1, -0.1, 0.0]), pd.Series([0.01, 0.011, 0.012])
    assert below_share(little, nothing, 0.5, "x").outcome is Outcome.INCONCLUSIVE
    assert below_share(little, pd.Series([1.0, 1.1, 0.9]), 0.5, "x").outcome is Outcome.HOLDS


def test_a_diverged_side_loses_and_two_runs_or_two_diverged_sides_decide_nothing() -> None:
    fine, broken = pd.Series([0.9, 0.8, 0.7]), pd.Series([0.95, np.nan, 0.99])
    assert above(fine, broken, divergence_loses=True).outcome is Outcome.HOLDS
    assert above(broken, fine, divergence_loses=True).outcome is Outcome.FAILS
    assert above(broken, broken, divergence_loses=True).outcome is Outcome.INCONCLUSIVE
    assert above(fine[:2], broken[:2], divergence_loses=True).outcome is Outcome.INCONCLUSIVE
    assert above(fine, fine - 0.1, divergence_loses=True).outcome is Outcome.HOLDS


def test_most_of_needs_more_than_half() -> None:
    holds, fails, unclear = (Verdict(outcome, "") for outcome in (Outcome.HOLDS, Outcome.FAILS, Outcome.INCONCLUSIVE))
    assert most_of([holds, holds, fails]).outcome is Outcome.HOLDS
    assert most_of([holds, fails]).outcome is Outcome.FAILS
    assert most_of([holds, unclear, fails]).outcome is Outcome.INCONCLUSIVE
    assert most_of([]).outcome is Outcome.INCONCLUSIVE


def test_one_failing_part_of_many_refutes_a_claim_only_after_correction() -> None:
    """Of k comparisons the smallest p-value must be below 0.025 / k; where all must agree nothing is corrected."""
    sure, weak = Estimate(1.0, 0.5, 1.5, 10), Estimate(-0.5, -0.99, -0.01, 10)  # p of the second: about 0.02
    assert 0.015 < weak.p_below(0.0) < 0.025
    assert all_of([above(weak)]).outcome is Outcome.FAILS
    verdict = all_of([above(sure), above(weak)])
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.evidence.endswith("corrected for 2 comparisons (Holm) none of them fails")
    assert any_of([below(sure), below(weak)]).outcome is Outcome.INCONCLUSIVE
    assert all_of([below(weak), below(weak)]).outcome is Outcome.HOLDS
    assert any_of([above(weak), above(weak)]).outcome is Outcome.FAILS
    assert most_of([below(weak), below(weak), below(sure)]).outcome is Outcome.INCONCLUSIVE
    strong = Estimate(-1.0, -1.2, -0.8, 10)
    assert most_of([below(strong), below(strong), below(sure)]).outcome is Outcome.HOLDS
    missing = above(Estimate(np.nan, np.nan, np.nan, 0))
    assert all_of([above(weak), missing, missing]).outcome is Outcome.FAILS  # one comparison was made


def test_holm_by_hand() -> None:
    """p = 0.01, 0.02, 0.03 and 0.04: times 4, 3, 2 and 1, none smaller than the one before."""
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([]) == []


def test_a_diverged_side_is_above_where_less_is_better() -> None:
    whole, broken = pd.Series([1.0, 1.1, 0.9, 1.0]), pd.Series([1.0, np.nan, 1.0, 1.0])
    assert below(whole, broken, divergence_loses=True).outcome is Outcome.HOLDS
    assert below(broken, whole, divergence_loses=True).outcome is Outcome.FAILS
    assert below(broken, broken, divergence_loses=True).outcome is Outcome.INCONCLUSIVE


def test_above_share_is_the_other_side_of_below_share() -> None:
    whole = pd.Series([1.0, 1.1, 0.9, 1.0])
    for part, outcome in ((0.3 * whole, Outcome.HOLDS), (0.05 * whole, Outcome.FAILS)):
        assert above_share(part, whole, 0.1, "x").outcome is outcome
        assert below_share(part, whole, 0.1, "x").outcome is not outcome
