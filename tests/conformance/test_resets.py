"""What one method resets is new to every other: state of single weights starts again; every reset is counted once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neoteny.methods import Method
from support.method_cases import FOUND, OPTIMIZERS, OTHERS, Attached, go_together, make, per_element, stacked, stream

RESETTING = [name for name in OTHERS if FOUND[name].counts is not Method.counts]  # those that replace whole units
# What these keep of a new weight is the weight; others keep zeros.
START_AT_THE_WEIGHT = {"L2Init", "HareAndTortoise", "CChain", "TRAC"}
DESCRIBE_TENSORS = {"Wasserstein"}  # what these keep describes a tensor as a whole, whose elements come and go
GROUPS = {"0": "2", "2": "4"}  # producer -> consumer of the small network


def redrawn_units(before: Mapping[str, Tensor], model: nn.Sequential) -> dict[str, list[int]]:
    """Units into whose incoming weights something but zeros was written, by group: those that were reset."""
    found: dict[str, list[int]] = {}
    for group in GROUPS:
        weight = model.get_parameter(f"{group}.weight").detach()
        drawn = ((weight != before[f"{group}.weight"]) & (weight != 0.0)).any(-1)
        found[group] = drawn.nonzero().flatten().tolist()
    return found


def replaced_now(statistics: Mapping[str, Any]) -> dict[str, list[int]]:
    """Units that continual backpropagation replaced at the last update, by its own record."""
    return {
        group: (values["born"] == values["schedule"]["step"]).nonzero().flatten().tolist()
        for group, values in statistics.items()
    }


def new_elements(units: Mapping[str, list[int]], model: nn.Sequential) -> dict[str, Tensor]:
    """Bool masks of the elements that a reset of these units writes, by parameter."""
    masks = {name: torch.zeros(value.shape, dtype=torch.bool) for name, value in model.named_parameters()}
    for group, rows in units.items():
        masks[f"{group}.weight"][rows] = True
        masks[f"{group}.bias"][rows] = True
        masks[f"{GROUPS[group]}.weight"][:, rows] = True
    return masks


BESIDE = [name for name in OTHERS if name != "ContinualBackprop" and go_together(name, "ContinualBackprop")]


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("last", [True, False], ids=["then continual backprop", "after continual backprop"])
def test_state_of_a_reset_weight_is_as_new(name: str, last: bool) -> None:
    chain = [make(name), make("ContinualBackprop")]
    run = Attached(*(chain if last else chain[::-1]))
    assert run.plastic is not None
    seen = others = 0
    shapes = {key: value.shape for key, value in run.model.named_parameters()}
    start = run.plastic.state_dict()["states"][0 if last else 1]
    for x, y in stream(30):
        run.step(x[0], y[0])
        states = run.plastic.state_dict()["states"]
        state, statistics = states if last else states[::-1]
        if name in DESCRIBE_TENSORS:
            torch.testing.assert_close(state, start, rtol=0.0, atol=0.0)
            continue
        masks = new_elements(replaced_now(statistics), run.model)
        for parameter, kept in per_element(state, shapes):
            mask = masks[parameter]
            new = run.model.get_parameter(parameter).detach() if name in START_AT_THE_WEIGHT else torch.zeros_like(kept)
            assert torch.equal(kept[mask], new[mask]), parameter
            seen += int(mask.sum())
            others += int((kept[~mask] != new[~mask]).sum())
    if name in START_AT_THE_WEIGHT:
        assert seen > 50
        assert others > 50  # weights that were not reset keep theirs


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizers_state_of_a_reset_weight_is_as_new(name: str) -> None:
    runs = stacked(make(name), make("ContinualBackprop"))
    shapes = {key: value.shape for key, value in runs.view.parameters.items()}
    seen = 0
    for x, y in stream(30):
        runs.step(x, y)
        state, statistics = runs.state_dict()["states"]
        born, now = statistics["0"]["born"], statistics["0"]["schedule"]["step"]
        for parameter, kept in per_element(state, shapes):
            if parameter == "0.weight" and kept.is_floating_point():
                assert not bool(kept[born == now].any())
                seen += int((born == now).sum())
    assert seen > 5


@pytest.mark.parametrize("name", RESETTING)
def test_every_reset_is_counted_once(name: str) -> None:
    run = Attached(make(name))
    assert run.plastic is not None
    counted = dict.fromkeys(GROUPS, 0)
    for x, y in stream(40):
        run.update(x[0], y[0])
        before = {key: value.detach().clone() for key, value in run.model.named_parameters()}
        run.plastic.step()
        for group, units in redrawn_units(before, run.model).items():
            counted[group] += len(units)
        assert run.plastic.replaced == counted
    assert sum(counted.values()) > 3


def test_the_counts_of_methods_that_reset_add_up() -> None:
    run = Attached(*map(make, RESETTING))
    assert run.plastic is not None
    run.train(stream(40))
    total = dict.fromkeys(GROUPS, 0)
    for method, state in run.plastic._chain.pairs:
        for group, count in method.counts(run.plastic.view, state).items():
            total[group] += int(count)
    assert run.plastic.replaced == total


@pytest.mark.parametrize("name", RESETTING)
def test_a_reset_takes_the_units_share_out_of_the_output_and_nothing_else(name: str) -> None:
    method = make(name)
    if "compensate" in method.hyperparameters():
        method = make(name, compensate=False)
    run = Attached(method)
    assert run.plastic is not None
    probe = stream(1, seed=11)[0][0][0]
    resets = 0
    for x, y in stream(40):
        run.update(x[0], y[0])
        before = {key: value.detach().clone() for key, value in run.model.named_parameters()}
        run.plastic.step()
        units = redrawn_units(before, run.model)
        resets += sum(map(len, units.values()))
        h = probe
        for group, activation in (("0", torch.relu), ("2", torch.tanh)):
            h = activation(h @ before[f"{group}.weight"].T + before[f"{group}.bias"])
            h[:, units[group]] = 0.0
        expected = h @ before["4.weight"].T + before["4.bias"]
        torch.testing.assert_close(run.model(probe).detach(), expected, rtol=1e-10, atol=1e-12)
    assert resets > 3
