"""The check of `benchmarks/zoo.py`: hand-written models pass it, and it sees each way to break the promise."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import neoteny

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def zoo(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that gives a module of `benchmarks/zoo_parts`."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return lambda name: importlib.import_module(f"zoo_parts.{name}")


@pytest.mark.parametrize("name", ["LeNet", "DCGAN discriminator", "SwiGLU transformer"])
def test_the_promise_is_kept_in_hand_written_models(zoo: Any, name: str) -> None:
    (entry,) = [each for each in zoo("handwritten").ENTRIES if each.name == name]
    row = zoo("measure").measure("handwritten", entry, overhead=False, limit_seconds=60)
    assert (row.first_try, row.error, row.faults) == (True, "", [])
    assert row.groups_checked == row.groups > 0
    assert row.units_checked >= row.groups
    assert 0.0 < row.covered <= 1.0


def break_nothing(model: Any, optimizer: Any) -> None:
    """The tick as it was."""


def break_outgoing(model: Any, optimizer: Any) -> None:
    """An outgoing weight of a replaced unit is not zero."""
    row = model[2].weight[0]
    row[(row == 0).nonzero()[0]] = 0.1


def break_other(model: Any, optimizer: Any) -> None:
    """A weight of another unit has moved by one rounding."""
    row = model[2].weight[0]
    place = (row != 0).nonzero()[0]
    row[place] = torch.nextafter(row[place], torch.ones(()))


def break_moment(model: Any, optimizer: Any) -> None:
    """A moment of a replaced unit is kept."""
    state = optimizer.state[model[2].weight]["exp_avg"]
    state[0, (model[2].weight[0] == 0).nonzero()[0]] = 0.1


def break_other_moment(model: Any, optimizer: Any) -> None:
    """A moment of another unit is gone."""
    state = optimizer.state[model[2].weight]["exp_avg_sq"]
    state[0, (model[2].weight[0] != 0).nonzero()[0]] = 0.0


def break_bias(model: Any, optimizer: Any) -> None:
    """The consumer's bias was not compensated."""
    model[2].bias -= 0.01


def break_spread(model: Any, optimizer: Any) -> None:
    """New incoming weights are half as large."""
    model[0].weight[(model[2].weight[0] == 0).nonzero().flatten()] *= 0.5


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (break_nothing, []),
        (break_outgoing, ["2.weight: 1 outgoing weights are not zero", "2: the mean pre-activation moved"]),
        (break_other, ["2.weight: 1 other values changed"]),
        (break_moment, ["2.weight: exp_avg is not fresh in 1 elements"]),
        (break_other_moment, ["2.weight: exp_avg_sq of others changed"]),
        (break_bias, ["2: the mean pre-activation moved"]),
        (break_spread, ["0.weight: new weights spread"]),
    ],
)
def test_the_check_sees_a_broken_promise(zoo: Any, damage: Callable[[Any, Any], None], expected: list[str]) -> None:
    check = zoo("check")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    method = neoteny.ContinualBackprop(0.25, maturity_threshold=0, decay_rate=0.0)
    plastic = neoteny.attach(model, optimizer, method, example=torch.zeros(1, 20))
    assert plastic.wiring is not None
    seen = zoo("layouts").Model(model)
    fresh = check.spreads(seen, plastic.wiring.groups)
    with check.consumer_inputs(seen, plastic.wiring.groups) as inputs:
        model(torch.randn(16, 20)).square().mean().backward()
        optimizer.step()
        tick = check.Tick(seen, plastic, optimizer, fresh, inputs)
        plastic.step()
        with torch.no_grad():
            damage(model, optimizer)
    faults = tick.faults()
    assert [fault[: len(start)] for fault, start in zip(faults, expected, strict=True)] == expected
    assert tick.replaced == {"0": 16}
