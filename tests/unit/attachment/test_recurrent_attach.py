"""Recurrent layers under attach: what is read inside them, what a reset writes, and what it leaves alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.layers.regions import ChosenUnits
from neoteny.units.reset import reset_units
from support.recurrent_models import Carrying, Cells, Classifier, Tagger

LENGTHS = torch.tensor([2, 4, 3])
X = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))


def attached(model: nn.Module, example: Any, method: Any = None, **options: Any) -> Any:
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    return neoteny.attach(model, optimizer, method or neoteny.ReDo(), example=example, seed=0, **options), optimizer


def by_hand(rnn: nn.GRU, layer: int, reverse: bool, x: Tensor) -> tuple[Tensor, Tensor]:
    """The hidden states of one example (T, inputs) by a cell, step by step: after and before each step."""
    suffix = f"_l{layer}" + ("_reverse" if reverse else "")
    cell = nn.GRUCell(x.shape[1], rnn.hidden_size)
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        getattr(cell, name).data = getattr(rnn, name + suffix).data
    states = [torch.zeros(rnn.hidden_size)]
    for step in reversed(x) if reverse else x:
        states.append(cell(step, states[-1]))
    after, before = torch.stack(states[1:]), torch.stack(states[:-1])
    return (after.flip(0), before.flip(0)) if reverse else (after, before)


@pytest.mark.parametrize("packed", [True, False])
@torch.no_grad()
def test_every_step_of_every_layer_and_direction_is_read(packed: bool) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"num_layers": 2, "bidirectional": True}
    model = Classifier("GRU", **options) if packed else Tagger("GRU", **options)
    example = (X, LENGTHS) if packed else (X,)
    plastic, _ = attached(model, example)
    with torch.enable_grad():
        model(*example)
    read = {name: values[0].flatten(0, -2) for name, values in plastic.view.activations.items()}
    inputs = [x[:length] if packed else x for x, length in zip(torch.relu(model.before(X)), LENGTHS, strict=True)]
    for layer in (0, 1):
        results = [[by_hand(model.rnn, layer, reverse, x) for x in inputs] for reverse in (False, True)]
        for suffix, found in zip(("", "_reverse"), results, strict=True):
            for source, part in (("hidden", 0), ("weight_hh", 1)):
                expected = torch.cat([each[part] for each in found])
                torch.testing.assert_close(_sorted(read[f"rnn.{source}_l{layer}{suffix}"]), _sorted(expected))
        inputs = [torch.cat([left[0], right[0]], -1) for left, right in zip(*results, strict=True)]
        if layer == 0:
            torch.testing.assert_close(_sorted(read["rnn.weight_ih_l1"]), _sorted(torch.cat(inputs)))


def _sorted(rows: Tensor) -> Tensor:
    """Rows in an order that does not depend on how steps and examples are laid out."""
    return rows[rows[:, 0].argsort()]


@pytest.mark.parametrize(
    ("model_of", "group", "layer"),
    [(lambda: Tagger("LSTM", num_layers=2), "rnn.l0", "rnn.{}_l0"), (lambda: Cells("GRUCell"), "cell", "cell.{}")],
    ids=["LSTM", "GRUCell"],
)
def test_a_reset_writes_the_units_own_elements_and_nothing_else(
    model_of: Callable[[], nn.Module], group: str, layer: str
) -> None:
    torch.manual_seed(0)
    model = model_of()
    plastic, optimizer = attached(model, X)
    for _ in range(2):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()
        plastic.step()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    live = next(each for each in plastic.view.groups if each.name == group)
    output = model(X).detach()
    reset_units(plastic.view, live, ChosenUnits((), torch.tensor([1, 3])), step=5)
    names = {kind: layer.format(kind) for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    gates = len(before[names["bias_ih"]]) // 4
    rows = torch.tensor([unit + 4 * gate for gate in range(gates) for unit in (1, 3)])
    outgoing = {"rnn.l0": ["rnn.weight_ih_l1", names["weight_hh"]], "cell": ["head.weight", names["weight_hh"]]}[group]
    for name, value in model.named_parameters():
        changed = torch.zeros_like(value, dtype=torch.bool)
        if name in names.values():
            changed[rows] = True
        if name in outgoing:
            changed[:, [1, 3]] = True
            assert not value[:, [1, 3]].any()
        if name == names["weight_hh"]:
            assert value[rows][:, [0, 2]].all()
        assert torch.equal(value[~changed], before[name][~changed]), name
        assert not torch.isclose(value[changed], before[name][changed]).any(), name
        for key in ("exp_avg", "exp_avg_sq"):
            moment = optimizer.state[value][key]
            assert not moment[changed].any()
            assert changed.all() or moment[~changed].any()
    assert not torch.equal(model(X), output)


def test_a_carried_state_of_a_replaced_unit_does_no_harm() -> None:
    torch.manual_seed(0)
    model = Carrying("GRU")
    plastic, _ = attached(model, X)
    state = model(X)[1].detach()
    live = next(each for each in plastic.view.groups if each.name == "rnn.l0")
    reset_units(plastic.view, live, ChosenUnits((), torch.tensor([2])), step=1)
    other = state.clone()
    other[..., 2] += 3.0
    assert torch.equal(model(X, state)[0], model(X, other)[0])


def test_training_goes_on_after_saving_and_loading() -> None:
    def run(interrupt: bool) -> tuple[Tensor, dict[str, int]]:
        torch.manual_seed(1)
        model = Tagger("LSTM", bidirectional=True)
        method = neoteny.ContinualBackprop(0.1, maturity_threshold=2)
        plastic, optimizer = attached(model, X, method)
        for number in range(8):
            if interrupt and number == 4:
                kept = copy.deepcopy((model.state_dict(), optimizer.state_dict(), plastic.state_dict()))
                plastic, optimizer = attached(model := Tagger("LSTM", bidirectional=True), X, method)
                for each, state in zip((model, optimizer, plastic), kept, strict=True):
                    each.load_state_dict(state)
            optimizer.zero_grad()
            model(X + number).square().mean().backward()
            optimizer.step()
            plastic.step()
        return torch.cat([value.flatten() for value in model.parameters()]), plastic.replaced

    straight, resumed = run(False), run(True)
    assert torch.equal(straight[0], resumed[0])
    assert straight[1] == resumed[1]
    assert straight[1]["rnn.l0_reverse"] > 0


def test_new_units_are_drawn_as_declared() -> None:
    model = Tagger("LSTM")
    for name, weight in model.rnn.named_parameters():
        if name.startswith("weight"):
            nn.init.normal_(weight, std=0.3 if "ih" in name else 0.05)
    declared = {"rnn.weight_ih_l0": neoteny.Initial("normal", scale=0.3), "rnn": neoteny.Initial("normal", scale=0.05)}
    plastic, _ = attached(model, X, init={**declared, "before": "default", "hidden": "default"})
    group = next(each for each in plastic.view.groups if each.name == "rnn.l0")
    assert [each.std for each in group.initial] == [0.3, 0.05]
    assert "rnn.weight_hh_l0: normal, standard deviation 0.05; as declared" in str(plastic)
