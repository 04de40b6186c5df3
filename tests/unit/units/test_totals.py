"""attach(..., accumulate="sums"): the statistics of all passes of an update, without keeping their inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import neoteny
from neoteny.units.totals import Deviations
from tests.reference import accumulated

SHAPE = (2, 5, 4)


class Several(nn.Module):
    """Convolutions, a flatten, two consumers of one layer, and a norm behind an activation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(2, 6, 3, padding=1)
        self.flat = nn.Linear(6 * 20, 8)
        self.norm = nn.LayerNorm(8)
        self.left, self.right = nn.Linear(8, 7), nn.Linear(8, 1)
        self.out = nn.Linear(7, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(torch.relu(self.flat(torch.relu(self.conv(x)).flatten(1))))
        return self.out(torch.tanh(self.left(h))) + self.right(h)


class Checkpointed(nn.Module):
    """A body whose forward pass is repeated in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(40, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh())
        self.out = nn.Linear(6, 1)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x.requires_grad_()
            return self.out(checkpoint(self.body, x, use_reentrant=self.reentrant))
        return self.out(self.body(x))


def train(
    build: Callable[[], nn.Module], accumulate: Any, passes: int, utility: str = "overall", steps: int = 25
) -> tuple[dict[str, Tensor], dict[str, Any], Any]:
    model = build().double()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    method = neoteny.ContinualBackprop(0.05, maturity_threshold=3, decay_rate=0.95, utility=utility)
    example = torch.zeros(1, *SHAPE, dtype=torch.float64)
    plastic = neoteny.attach(model, optimizer, method, example=example, seed=1, accumulate=accumulate)
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        x = torch.randn(7, *SHAPE, dtype=torch.float64, generator=generator)
        optimizer.zero_grad()
        for part in x.tensor_split(passes):
            (model(part) - part.sum((1, 2, 3)).unsqueeze(1)).square().sum().div(7).backward()
            kept = [len(each) for each in plastic._recorder.inputs.values()]
            assert max(kept) == 1 or accumulate == "inputs"
        optimizer.step()
        plastic.step()
    assert sum(plastic.replaced.values()) > 5 or steps < 25
    return {name: value.detach() for name, value in model.state_dict().items()}, plastic.state_dict(), plastic


def assert_close(found: Any, expected: Any, tolerance: float = 1e-9) -> None:
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert_close(found[key], value, tolerance)
    elif isinstance(expected, list):
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other, tolerance)
    elif isinstance(expected, Tensor):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    else:
        assert found == expected


@pytest.mark.parametrize("utility", ["overall", "contribution", "adaptation", "random"])
def test_with_one_pass_an_update_sums_are_the_inputs(utility: str) -> None:
    weights, state, _ = train(Several, "sums", 1, utility)
    expected, other, _ = train(Several, "inputs", 1, utility)
    assert_close(weights, expected)
    assert_close(state, other)


@pytest.mark.parametrize("utility", ["contribution", "weight_magnitude"])
def test_a_utility_that_is_not_centred_is_exact_over_several_passes(utility: str) -> None:
    weights, state, _ = train(Several, "sums", 3, utility)
    expected, other, _ = train(Several, "inputs", 3, utility)
    assert_close(weights, expected)
    assert_close(state, other)


def test_means_over_several_passes_are_exact() -> None:
    _, state, _ = train(Several, "sums", 3, "overall", steps=4)
    _, other, _ = train(Several, "inputs", 3, "overall", steps=4)
    for name, expected in other["states"][0].items():
        found = state["states"][0][name]
        for key in ("mean_activation", "decay_power", "column_means"):
            assert_close(found[key], expected[key])


@pytest.mark.parametrize("reentrant", [False, True])
def test_passes_that_checkpointing_repeats_count_once(reentrant: bool) -> None:
    weights, state, _ = train(lambda: Checkpointed(reentrant), "sums", 3, "contribution")
    expected, other, _ = train(lambda: Checkpointed(reentrant), "inputs", 3, "contribution")
    assert_close(weights, expected)
    assert_close(state, other)


@pytest.mark.parametrize("seed", range(6))
def test_deviations_are_those_of_the_reference(seed: int) -> None:
    draws = np.random.default_rng(seed)
    units, decay = 9, 0.9
    mean, power = draws.normal(size=units), draws.uniform(size=units)
    power[:3], mean[:3] = 1.0, 0.0  # new units
    passes = [draws.normal(size=(draws.integers(1, 6), units)) * (draws.random(units) < 0.7) for _ in range(4)]
    for each in passes[:2]:
        each[:, 0] = 0.0  # silent at first
    found = Deviations(torch.zeros(units, 1, dtype=torch.float64))
    total, count = np.zeros(units), 0
    for each in passes:
        total, count = total + each.sum(0), count + len(each)
        guess = (decay * mean + (1 - decay) * total / count) / (1 - decay * power)
        found.add(torch.from_numpy(each).unsqueeze(-1), torch.from_numpy(guess))
    for unit in range(units):
        columns = [each[:, unit] for each in passes]
        expected, centre = accumulated.deviation(columns, mean[unit], power[unit], decay)
        value = found.mean(torch.full((units,), centre, dtype=torch.float64))[unit, 0].item()
        assert value == pytest.approx(expected, rel=1e-12, abs=1e-12)
        exact = float(np.mean([abs(h - centre) for column in columns for h in column]))
        most = accumulated.most_wrong(columns, mean[unit], power[unit], decay)
        assert -1e-12 <= exact - value <= most + 1e-12


def test_centred_utilities_are_close_over_several_passes() -> None:
    _, state, _ = train(Several, "sums", 4, "overall", steps=60)
    _, other, _ = train(Several, "inputs", 4, "overall", steps=60)
    found, expected = (
        torch.cat([each["utility"] for each in states["states"][0].values()]) for states in (state, other)
    )
    assert torch.nn.functional.cosine_similarity(found, expected, 0) > 0.999


def test_a_pass_that_is_not_followed_by_an_update_is_forgotten_with_it() -> None:
    _, _, plastic = train(Several, "sums", 2, steps=10)
    model = plastic._model
    model(torch.zeros(1, *SHAPE, dtype=torch.float64))
    model(torch.zeros(1, *SHAPE, dtype=torch.float64))
    assert plastic.view.totals
    plastic.load_state_dict(plastic.state_dict())
    assert not plastic.view.totals
    assert not any(plastic._recorder.inputs.values())
