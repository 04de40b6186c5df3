"""A method whose strength or rate is zero leaves a run bit for bit as the plain optimizer makes it."""

from __future__ import annotations

import pytest
import torch

from support.method_cases import (
    EXAMPLES,
    FOUND,
    OTHERS,
    Attached,
    acts_at_boundaries_alone,
    make,
    needs_adam,
    network,
    stacked,
    stream,
)

SWITCHED = [name for name in OTHERS if EXAMPLES[name].off is not None]


def assert_equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("name", SWITCHED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_attached(name: str, dtype: torch.dtype) -> None:
    off = EXAMPLES[name].off
    assert off is not None
    batches = [(x.to(dtype), y.to(dtype)) for x, y in stream(30)]
    plain = Attached(model=network(dtype=dtype), adam=needs_adam(FOUND[name]))
    plain.train(batches)
    run = Attached(make(name, **off), model=network(dtype=dtype))
    run.train(batches)
    assert_equal(run.weights(), plain.weights())
    if acts_at_boundaries_alone(name):
        return  # that it acts there is tested in test_boundaries.py
    acting = Attached(make(name), model=network(dtype=dtype))
    # The example itself acts, or the test would show nothing.
    twin = Attached(model=network(dtype=dtype), adam=needs_adam(FOUND[name]))
    assert acting.train(batches) != twin.train(batches)


@pytest.mark.parametrize("name", SWITCHED)
def test_stacked(name: str) -> None:
    off = EXAMPLES[name].off
    assert off is not None
    plain, runs = stacked(adam=needs_adam(FOUND[name])), stacked(make(name, **off))
    for x, y in stream(30):
        assert torch.equal(plain.step(x, y).losses, runs.step(x, y).losses)
    assert_equal(list(runs.view.tensors.values()), list(plain.view.tensors.values()))
