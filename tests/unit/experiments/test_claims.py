"""Every claim holds in a world in which it is true, fails where it is false, and stays open without results."""

from __future__ import annotations

import pytest

from neoteny import experiments
from neoteny.report.claim import Claim, Outcome
from support import ant_worlds, imagenet_worlds, regression_worlds

HOMES = {name: home for home in (regression_worlds, imagenet_worlds, ant_worlds) for name in home.WORLDS}
"""The made-up results of each experiment; those on permuted MNIST have a form of their own (`test_mnist.py`)."""
CLAIMS = [(name, claim) for name in HOMES for claim in experiments.load(name).claims]


def test_every_experiment_but_those_on_mnist_is_here() -> None:
    assert set(HOMES) == {name for name in experiments.NAMES if not name.startswith("mnist")}


@pytest.mark.parametrize("name", HOMES)
def test_every_claim_has_a_frame_on_which_it_must_fail(name: str) -> None:
    assert set(HOMES[name].FAILS[name]) == {claim.name for claim in experiments.load(name).claims}


@pytest.mark.parametrize(("name", "claim"), CLAIMS, ids=lambda value: getattr(value, "name", value))
def test_a_claim_holds_fails_and_stays_open_where_it_must(name: str, claim: Claim) -> None:
    home = HOMES[name]
    true, false = claim.evaluate(home.true_frame(name)), claim.evaluate(home.false_frame(name, claim.name))
    assert true.outcome is Outcome.HOLDS, true.evidence
    assert false.outcome is Outcome.FAILS, false.evidence
    for frame in home.open_frames(name):
        hidden = claim.evaluate(frame)
        assert hidden.outcome is Outcome.INCONCLUSIVE, hidden.evidence


@pytest.mark.parametrize("name", HOMES)
def test_claims_stay_open_on_what_is_missing_or_diverged(name: str) -> None:
    home = HOMES[name]
    for part in home.undecided_parts(home.true_frame(name)):
        for claim in experiments.load(name).claims:
            verdict = claim.evaluate(part)
            if claim.name not in home.ABOUT_THE_REST:
                assert verdict.outcome is Outcome.INCONCLUSIVE, f"{claim.name}: {verdict.evidence}"
