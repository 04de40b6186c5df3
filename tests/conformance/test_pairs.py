"""Any two methods train together, or are refused with an error that names both; so do three."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from support.method_cases import INPUTS, OPTIMIZERS, OTHERS, OUTPUTS, Attached, make, stacked, stream

PARTNERS = 3
"""Methods that each is paired with in the default suite; `-m slow` tries all ordered pairs."""

# An optimizer acts first wherever it is listed, so that its pairs have one order.
EVERY = [*itertools.product(OPTIMIZERS, OTHERS), *itertools.product(OTHERS, OTHERS)]


def nearby(firsts: list[str], partners: int) -> list[tuple[str, str]]:
    """Pairs in which every method has some partners, different ones for neighbours in the alphabet."""
    return [
        (first, OTHERS[(number * partners + offset + 1) % len(OTHERS)])
        for number, first in enumerate(firsts)
        for offset in range(partners)
    ]


# Resets concern every method, so continual backpropagation meets all of them, in both orders.
WITH_RESETS = [("ContinualBackprop", name) for name in OTHERS] + [(name, "ContinualBackprop") for name in OTHERS]
SOME = sorted({*nearby(OPTIMIZERS, PARTNERS), *nearby(OTHERS, PARTNERS), *WITH_RESETS})
REST = [pair for pair in EVERY if pair not in set(SOME)]
PAIRS = [
    *(pytest.param(*pair, id="+".join(pair)) for pair in SOME),
    *(pytest.param(*pair, id="+".join(pair), marks=pytest.mark.slow) for pair in REST),
]


def attach_all(*names: str, model: torch.nn.Sequential | None = None) -> Attached | str:
    """The methods attached together, or why they cannot be."""
    try:
        return Attached(*map(make, names), model=model)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_methods_train_together_or_are_refused_by_name(first: str, second: str) -> None:
    run = attach_all(first, second)
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


@pytest.mark.parametrize("first", OPTIMIZERS)
def test_two_optimizers_are_refused(first: str) -> None:
    for second in OPTIMIZERS:
        with pytest.raises(ValueError, match="exactly one optimizer"):
            stacked(make(first), make(second))


@some.composite
def learners(draw: Any) -> tuple[tuple[str, ...], list[int], torch.dtype, int]:
    """An optimizer and one or two other methods, widths of hidden layers, a type of numbers, and a batch size."""
    others = draw(some.lists(some.sampled_from(OTHERS), min_size=1, max_size=2, unique=True))
    widths = draw(some.lists(some.integers(1, 9), min_size=1, max_size=3))
    dtype = draw(some.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
    return (draw(some.sampled_from(OPTIMIZERS)), *others), widths, dtype, draw(some.integers(1, 5))


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(learners())
def test_two_or_three_methods_train_networks_of_any_shape_and_type_or_are_refused_by_name(
    learner: tuple[tuple[str, ...], list[int], torch.dtype, int],
) -> None:
    names, widths, dtype, batch = learner
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise([INPUTS, *widths]):
        layers += [torch.nn.Linear(before, after), torch.nn.LeakyReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], OUTPUTS)).to(dtype)
    run = attach_all(*names, model=model)
    if isinstance(run, str):
        assert any(name in run for name in names)
        return
    for x, y in stream(12):
        run.step(x[0, :batch].to(dtype), y[0, :batch].to(dtype))
        if run.plastic is not None and not any(method.needs_boundary_data for method in run.plastic.methods):
            run.plastic.task_boundary()
    assert all(weight.dtype == dtype and bool(weight.isfinite().all()) for weight in run.weights())


def test_the_order_of_attachment_is_the_order_of_action() -> None:
    run = Attached(make("L2"), make("ContinualBackprop"))
    assert run.plastic is not None
    assert [type(method).__name__ for method in run.plastic.methods] == ["L2", "ContinualBackprop"]
