"""Groups of LSTM, GRU, RNN and their cells: what is found, what is left out, and that every group holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from neoteny import UnitGroup, Wiring, WiringError, diagnose, trace
from neoteny.layers.groups import Port
from neoteny.wiring.hidden import hidden_layers
from neoteny.wiring.sandbox import Sandbox
from neoteny.wiring.verify import verify
from support.recurrent_models import AllStates, Carrying, Cells, Classifier, Mixed, Tagger, Translator
from support.wiring_checks import checked, features_of
from support.wiring_models import Recurrent

X = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(0))


def ports(group: UnitGroup) -> tuple[list[str], list[str]]:
    """The keys of the producers and of the consumers."""
    return [port.key for port in group.producers], [port.key for port in group.consumers]


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_a_hidden_feature_is_a_unit_across_all_gates(kind: str, gates: int) -> None:
    before, rnn, hidden = checked(Tagger(kind), X)
    assert ports(before) == (["before"], ["rnn.weight_ih_l0"])
    assert ports(rnn) == (["rnn.weight_ih_l0", "rnn.weight_hh_l0"], ["hidden", "rnn.weight_hh_l0"])
    assert ports(hidden) == (["hidden"], ["head"])
    assert (rnn.name, rnn.units, rnn.read) == ("rnn.l0", 4, "rnn")
    assert features_of(rnn.producers[0])[1].tolist() == [1 + 4 * gate for gate in range(gates)]
    assert [features_of(port)[1].tolist() for port in rnn.consumers] == [[1], [1]]


def test_an_lstm_behind_an_embedding() -> None:
    wiring = checked(Recurrent(), torch.randint(10, (2, 5)))
    assert [group.name for group in wiring] == ["before", "lstm.l0", "hidden"]


def test_layers_and_directions_are_groups_of_their_own() -> None:
    wiring = checked(Classifier("GRU", num_layers=2, bidirectional=True, dropout=0.2), (X, torch.tensor([2, 3])))
    groups = {group.name: ports(group) for group in wiring}
    assert list(groups) == ["before", "rnn.l0", "rnn.l0_reverse", "rnn.l1", "rnn.l1_reverse", "hidden"]
    assert groups["before"][1] == ["rnn.weight_ih_l0", "rnn.weight_ih_l0_reverse"]
    assert groups["rnn.l0_reverse"][1] == ["rnn.weight_ih_l1", "rnn.weight_ih_l1_reverse", "rnn.weight_hh_l0_reverse"]
    assert groups["rnn.l1_reverse"] == (
        ["rnn.weight_ih_l1_reverse", "rnn.weight_hh_l1_reverse"],
        ["hidden", "rnn.weight_hh_l1_reverse"],
    )
    assert features_of(wiring.groups[4].consumers[0]).flatten().tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_a_cell_in_a_loop(kind: str) -> None:
    wiring = checked(Cells(kind), X)
    assert [ports(group) for group in wiring] == [
        (["before"], ["cell.weight_ih"]),
        (["cell.weight_ih", "cell.weight_hh"], ["head", "cell.weight_hh"]),
    ]


def test_a_state_that_the_model_returns_is_noted() -> None:
    wiring = checked(Carrying("LSTM", num_layers=2), X)
    assert [group.name for group in wiring] == ["before", "rnn.l0", "rnn.l1", "hidden"]
    assert "returns the state of rnn" in wiring.groups[2].notes[0]
    assert checked(Carrying("GRU"), (X, torch.zeros(1, 2, 4))).groups[1].name == "rnn.l0"


def test_what_is_left_out_says_why() -> None:
    assert "projected (proj_size)" in trace(Projected(), X).left_out["rnn"]
    wiring = checked(AllStates("GRU", num_layers=2), X)
    assert "also carry rnn (state of its lower layers)" in wiring.left_out["rnn"]
    assert wiring.left_out["rnn (lower layers)"] == "their final states are used outside the module"
    assert [group.name for group in wiring] == ["before", "hidden"]
    with pytest.raises(WiringError, match="several of its rows meet in one feature of hidden"):
        trace(Mixed("GRU"), X)
    wiring = checked(Translator(), X)
    assert [group.name for group in wiring] == ["decoder.l0"]
    assert wiring.left_out["encoder"] == "feeds decoder (GRU), whose weights cannot be rewritten unit by unit"
    with pytest.raises(WiringError, match="still move"):
        trace(Cells("GRUCell", rolled=True), X)
    alone = checked(nn.LSTM(2, 3, num_layers=2), X)
    assert [group.name for group in alone] == ["l0"]
    assert "output layer" in alone.left_out[""]


class Projected(Tagger):
    def __init__(self) -> None:
        super().__init__(proj_size=2)
        self.hidden = nn.Linear(2, 3)


def test_the_gate_sees_a_wrong_group() -> None:
    model = Tagger("GRU")
    rnn = trace(model, X).groups[1]

    def fails(group: UnitGroup) -> bool:
        with Sandbox(model, X) as sandbox:
            return verify(sandbox, group) is not None

    assert not fails(rnn)
    assert fails(UnitGroup(rnn.producers, rnn.consumers[:1])), "without the recurrent columns"
    assert fails(UnitGroup(rnn.producers, rnn.consumers[1:])), "without the next layer's columns"
    swapped = [Port(port.module, features_of(port).flip(0), weight=port.weight) for port in rnn.consumers]
    assert fails(UnitGroup(rnn.producers, [rnn.consumers[0], swapped[1]]))
    with pytest.raises(WiringError, match="still move"):
        trace(model, X, groups=[UnitGroup("rnn", Port("hidden", torch.arange(4).flip(0)))])
    declared = checked(model, X, groups=[UnitGroup("rnn", "hidden"), UnitGroup("before", "rnn")])
    assert [ports(group) for group in declared.groups[:2]] == [ports(group) for group in trace(model, X).groups[:2]]
    with pytest.raises(ValueError, match="not one of its weights"):
        trace(model, X, groups=[UnitGroup("before", Port("rnn", weight="weight_ih_l0"))])


def test_a_wiring_with_recurrent_layers_is_saved_and_loaded(tmp_path: Path) -> None:
    model = Tagger("LSTM", bidirectional=True)
    wiring = trace(model, X)
    wiring.save(tmp_path / "wiring.json")
    loaded = Wiring.load(tmp_path / "wiring.json")
    loaded.check(model)
    assert str(loaded) == str(wiring)
    assert '"version": 2' in (tmp_path / "wiring.json").read_text()


@pytest.mark.parametrize("model", [Tagger("GRU", num_layers=2), Cells("LSTMCell")])
def test_measures_read_hidden_features_where_they_are_used(model: Any) -> None:
    read = [group.read for group in hidden_layers(model, X)]
    assert read == (["rnn", "hidden", "head"] if isinstance(model, Tagger) else ["cell", "head"])
    assert diagnose(model, X)
