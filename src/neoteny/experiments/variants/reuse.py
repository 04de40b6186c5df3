"""Claims of the paper's experiments checked on other runs: narrower networks, fewer tasks, another folder.

A variant such as `hundred-units` reuses the claims that its runs can test, with their statements and checks, and omits
the others. A reused claim is named by its experiment and its name there: "mnist-methods/cbp-best". The same claims may
be reused twice with other rows: the second time with a tag, "mnist-methods/cbp-best@retuned".

A claim about numbers that only the paper's own scale can test stays such: the verdict is inconclusive, and what the
numbers say at this scale stands beside it (`Verdict.at_this_scale`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from neoteny.experiments import load
from neoteny.experiments.scales import scale_of
from neoteny.report.claim import Claim, Coverage, Outcome, Unchecked, Verdict
from neoteny.text import nearest

if TYPE_CHECKING:
    import pandas as pd

Restrict = Callable[["pd.DataFrame"], "pd.DataFrame"]
"""From all rows of a folder to those that an experiment's claims expect."""


def as_paper(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows with the paper's scale, so that claims look for its hyperparameters; smoke runs stay as they are."""
    return frame if scale_of(frame) == "smoke" else frame.assign(scale="paper")


def reuse(
    experiment: str,
    restrict: Restrict = as_paper,
    only: Sequence[str] = (),
    without: Sequence[str] = (),
    claims: Sequence[Claim] = (),
    decides: Sequence[str] = (),
    tag: str = "",
    here: str = "",
) -> tuple[Claim, ...]:
    """Claims of an experiment, checked on the rows that `restrict` gives.

    Args:
        experiment: its name.
        restrict: from all rows to those that the claims are checked on; by default all, with the paper's scale.
        only: names of the claims to reuse; all if empty.
        without: names of claims to leave out.
        claims: the experiment's claims in another form, as `mnist.step_size.claims_at` gives them.
        decides: names of claims about the paper's own scale that these runs can decide nevertheless.
        tag: behind the names, where an experiment's claims are reused more than once.
        here: what is different in these rows, for the statements.
    """
    _check(experiment, [*only, *without, *decides])
    once = _remember(restrict)
    return tuple(
        Claim(
            f"{experiment}/{claim.name}{f'@{tag}' if tag else ''}",
            f"{claim.statement} (Here {here}.)" if here else claim.statement,
            claim.source,
            _compose(claim, once, guarded=claim.scale == "paper" and claim.name not in decides),
        )
        for claim in claims or load(experiment).claims
        if claim.name not in without and (not only or claim.name in only)
    )


def omit(experiment: str, names: Sequence[str], reason: str) -> tuple[Unchecked, ...]:
    """Claims of an experiment that these runs cannot test, with the reason."""
    _check(experiment, names)
    return tuple(
        Unchecked(claim.statement, claim.source, reason) for claim in load(experiment).claims if claim.name in names
    )


def _compose(claim: Claim, restrict: Restrict, guarded: bool) -> Callable[[pd.DataFrame], Verdict]:
    def check(frame: pd.DataFrame) -> Verdict:
        verdict = claim.check(restrict(frame))
        if not guarded or verdict.coverage is Coverage.NOTHING:
            return verdict
        evidence = f"needs the paper's scale; at this one: {verdict.outcome}: {verdict.evidence}"
        return Verdict(Outcome.INCONCLUSIVE, evidence, verdict.coverage, at_this_scale=verdict.outcome)

    return check


def _remember(restrict: Restrict) -> Restrict:
    """Keep the latest result: all claims of an experiment are checked on the same frame."""
    latest: list[pd.DataFrame] = []

    def restrict_once(frame: pd.DataFrame) -> pd.DataFrame:
        if not latest or latest[0] is not frame:
            latest[:] = [frame, restrict(frame)]
        return latest[1]

    return restrict_once


def _check(experiment: str, names: Sequence[str]) -> None:
    known = [claim.name for claim in load(experiment).claims]
    for name in names:
        if name not in known:
            raise ValueError(
                f"{experiment} has no claim {name!r}.{nearest(name, known)} It has {', '.join(known) or 'none'}."
            )
