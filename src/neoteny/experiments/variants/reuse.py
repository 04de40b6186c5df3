"""Claims of the suite's experiments judged on other runs: narrower networks, fewer tasks, another folder.

A user's experiment file (`examples/hundred_units.py`) borrows the claims that its runs can speak to, with their
statements and checks, and sets those aside that it cannot. A borrowed claim is called by its experiment and its name
there: "mnist-methods/cbp-best".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from neoteny.experiments import load
from neoteny.experiments.scales import scale_of
from neoteny.report.claim import Claim, Unchecked
from neoteny.suite.sweep import nearest

if TYPE_CHECKING:
    import pandas as pd

Restrict = Callable[["pd.DataFrame"], "pd.DataFrame"]
"""From all rows of a folder to those that an experiment's claims expect."""


def as_paper(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows under the paper's scale, whose values of hyperparameters claims then look for; smoke runs stay such."""
    return frame if scale_of(frame) == "smoke" else frame.assign(scale="paper")


def borrow(
    experiment: str,
    restrict: Restrict = as_paper,
    only: Sequence[str] = (),
    without: Sequence[str] = (),
    claims: Sequence[Claim] = (),
) -> tuple[Claim, ...]:
    """Claims of an experiment, judged on the rows that `restrict` gives, whatever scale they were limited to.

    Args:
        experiment: its name.
        restrict: the rows to judge them on; all, under the paper's scale, if not given.
        only: names of the claims to take; all if empty.
        without: names of claims to leave.
        claims: the experiment's claims in another form, as `mnist_step_size.claims_at` gives them.
    """
    _check(experiment, [*only, *without])
    kept = [claim for claim in claims or load(experiment).claims if claim.name not in without]
    once = _remember(restrict)
    return tuple(_lend(experiment, claim, once) for claim in kept if not only or claim.name in only)


def set_aside(experiment: str, names: Sequence[str], reason: str) -> tuple[Unchecked, ...]:
    """Claims of an experiment that these runs cannot speak to, with the reason."""
    _check(experiment, names)
    return tuple(
        Unchecked(claim.statement, claim.source, reason) for claim in load(experiment).claims if claim.name in names
    )


def _lend(experiment: str, claim: Claim, restrict: Restrict) -> Claim:
    return Claim(
        f"{experiment}/{claim.name}", claim.statement, claim.source, lambda frame: claim.check(restrict(frame))
    )


def _remember(restrict: Restrict) -> Restrict:
    """Restrict a frame once: all claims of an experiment are judged on it one after another."""
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
