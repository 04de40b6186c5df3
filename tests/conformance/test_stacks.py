"""A run in a stack equals the same run alone, for every method and every setting that may differ between runs."""

from __future__ import annotations

import pytest
import torch

from neoteny.methods import Method
from support.method_cases import FOUND, make, network, networks, settings_per_run, stacked, stream


def ladders(name: str) -> list[tuple[str, tuple[float, ...]]]:
    """Each setting that a stack takes one per run, with three values around the example's."""
    values = {setting: make(name).hyperparameters()[setting] for setting in settings_per_run(name)}
    return [(setting, (value, value / 2, value / 4)) for setting, value in values.items()]


def compare(together: Method, alone: list[Method], steps: int) -> None:
    whole = stacked(together)
    single = [stacked(method, members=[network(run)], seeds=[7 + run]) for run, method in enumerate(alone)]
    for x, y in stream(steps):
        losses = whole.step(x, y).losses
        for run, one in enumerate(single):
            expected = float(losses[run])
            assert float(one.step(x[run : run + 1], y[run : run + 1]).losses) == pytest.approx(
                expected, rel=1e-12, abs=1e-13
            )
    for run, one in enumerate(single):
        for ours, theirs in zip(whole.module(run).parameters(), one.module(0).parameters(), strict=True):
            torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-11, atol=1e-12)
        for group, counts in whole.replaced.items():
            assert int(counts[run]) == int(one.replaced[group][0])


@pytest.mark.parametrize("name", FOUND)
def test_three_runs_of_one_setting_equal_the_three_alone(name: str) -> None:
    compare(make(name), [make(name)] * 3, steps=30)


@pytest.mark.parametrize(("name", "setting", "values"), [(name, *ladder) for name in FOUND for ladder in ladders(name)])
def test_three_runs_of_different_settings_equal_the_three_alone(
    name: str, setting: str, values: tuple[float, ...]
) -> None:
    compare(make(name, **{setting: values}), [make(name, **{setting: value}) for value in values], steps=16)


def test_the_networks_of_a_stack_differ() -> None:
    first, second, _ = networks()
    assert not torch.equal(first.get_parameter("0.weight"), second.get_parameter("0.weight"))
