"""Any two methods train together, or are refused with an error that names both."""

from __future__ import annotations

import itertools
import re

import pytest

from support.method_cases import OPTIMIZERS, OTHERS, Attached, make, stacked, stream

# An optimizer acts first wherever it is listed, so that its pairs have one order.
PAIRS = [*itertools.product(OPTIMIZERS, OTHERS), *itertools.product(OTHERS, OTHERS)]


def attach_both(first: str, second: str) -> Attached | str:
    """The two attached together, or why they cannot be."""
    try:
        return Attached(make(first), make(second))
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=map("+".join, PAIRS))
def test_two_methods_train_together_or_are_refused_by_name(first: str, second: str) -> None:
    run = attach_both(first, second)
    if isinstance(run, str):
        assert first in run
        assert second in run
        with pytest.raises(ValueError, match=re.escape(run)):
            stacked(make(first), make(second))
        return
    batches = stream(1) * 25
    losses = run.train(batches)
    assert all(bool(weight.isfinite().all()) for weight in run.weights())
    assert sum(losses[-5:]) < sum(losses[:5])
    runs = stacked(make(first), make(second))
    for x, y in batches[:8]:
        assert bool(runs.step(x, y).losses.isfinite().all())


@pytest.mark.parametrize(("first", "second"), list(itertools.product(OPTIMIZERS, OPTIMIZERS)))
def test_two_optimizers_are_refused(first: str, second: str) -> None:
    with pytest.raises(ValueError, match="exactly one optimizer"):
        stacked(make(first), make(second))


def test_the_order_of_attachment_is_the_order_of_action() -> None:
    run = Attached(make("L2"), make("ContinualBackprop"))
    assert run.plastic is not None
    assert [type(method).__name__ for method in run.plastic.methods] == ["L2", "ContinualBackprop"]
