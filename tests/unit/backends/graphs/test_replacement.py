"""Units replaced inside a recorded update: the same units at the same updates, and the same weights, as between.

What is due is counted on the host, which is tested on the CPU; the launches need a CUDA device.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from neoteny.backends.graphs import backend as graphs
from neoteny.backends.graphs.backend import GraphBackend
from neoteny.backends.graphs.replacement import replacements_of
from neoteny.layers.regions import Region
from neoteny.methods import SGD, Adam, ContinualBackprop, ShrinkAndPerturb
from neoteny.methods.declaration import RecordedStep
from neoteny.methods.method import Method, State
from neoteny.nets import MLP
from neoteny.stacking.stack import stack
from neoteny.suite.environment import set_deterministic
from neoteny.units.device import stacked
from neoteny.units.view import View
from support.graph_cases import DIGITS, MOMENTUM, OFTEN, assert_same_state, conv_net, make, train

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
LAYER = ContinualBackprop((0.3, 0.02, 0.1), maturity_threshold=(3, 5, 2), decay_rate=(0.9, 0.5, 0.99), count="layer")
METHODS: dict[str, tuple[Method, ...]] = {
    "overall": (MOMENTUM, OFTEN),
    "several at once": (MOMENTUM, LAYER),
    "noise around": (SGD(0.01), OFTEN, ShrinkAndPerturb(1e-3, 1e-3)),
    "not compensated": (MOMENTUM, dataclasses.replace(OFTEN, compensate=False, utility="contribution")),
    "random": (MOMENTUM, dataclasses.replace(OFTEN, utility="random")),
}


@pytest.fixture(autouse=True)
def settled() -> None:
    set_deterministic()


def mlp() -> nn.Module:
    return MLP(784, [40, 33], 10, init="kaiming_uniform")


def test_what_is_due_is_counted_as_it_would_be_replaced() -> None:
    made, _ = make(GraphBackend, "cpu", (MOMENTUM, LAYER))
    other, path = make(GraphBackend, "cpu", (MOMENTUM, LAYER))
    path.plan(0)
    found = [LAYER.count_ahead(made.view, made.chain.states[1], updates) for updates in (7, 13)]
    for counts, step in found:
        for number, update in enumerate(counts, step):
            before = other.replaced
            path.advance(number, number + 1)
            for group, row in zip(other.view.groups, update, strict=True):
                assert (other.replaced[group.name] - before[group.name]).tolist() == row.tolist()
    assert [step for _, step in found] == [0, 7]
    assert sum(int(counts.sum()) for counts, _ in found) > 30
    for theirs, ours in zip(other.replaced.values(), made.replaced.values(), strict=True):
        assert torch.equal(theirs, ours)


@dataclasses.dataclass(frozen=True)
class Ages(Method):
    """Hears of resets and does not say where its state is."""

    def on_reset(self, view: View, state: State, region: Region) -> None:
        """Nothing."""

    def recorded_step(self) -> RecordedStep:
        return RecordedStep()


def test_what_is_not_replaced_inside_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neoteny.backends.graphs.replacement.importlib.util.find_spec", lambda name: name)

    def why(*methods: Method, dtype: torch.dtype = torch.float32, build: Any = conv_net) -> Any:
        made, _ = make(GraphBackend, "cpu", methods, build, dtype=dtype)
        return replacements_of(made, 1, 4)

    prefix = "units are replaced between two replays: "
    assert why(MOMENTUM, OFTEN, dtype=torch.float64) == prefix + "conv1.weight is torch.float64"
    assert why(MOMENTUM, OFTEN, Ages()) == prefix + "Ages is not covered"
    assert why(MOMENTUM, ShrinkAndPerturb(1e-3, 1e-3)) is None
    monkeypatch.setattr("neoteny.backends.graphs.replacement.importlib.util.find_spec", lambda name: None)
    assert why(MOMENTUM, OFTEN) == prefix + "Triton is not installed"


OFTEN_ONE = ContinualBackprop(0.05, maturity_threshold=3)


def test_a_bias_that_two_groups_would_change_at_once_is_left_to_the_library() -> None:
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.out = nn.Linear(6, 4), nn.Linear(6, 5), nn.Linear(9, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(torch.cat((torch.relu(self.left(x)), torch.tanh(self.right(x))), -1))

    made = stack([Joined(), Joined()], SGD(0.1), OFTEN_ONE, example=torch.zeros(1, 6))
    assert stacked.why_not(made.view) == "out reads several groups"


def test_more_updates_than_there_is_room_for_are_refused() -> None:
    made, _ = make(GraphBackend, "cpu", (MOMENTUM, OFTEN), dtype=torch.float32)
    velocity = made.chain.states[0]
    reset = stacked.StackedReset(made.view, made.chain.states[1], [3, 5, 2], False, True, [velocity], [], 4)
    reset.fill(np.zeros((4, 5, 3), dtype=np.int64), 0)
    with pytest.raises(ValueError, match="at most 4 updates can be prepared; got 5"):
        reset.fill(np.zeros((5, 5, 3), dtype=np.int64), 0)


@pytest.mark.parametrize("adam", [False, True])
def test_statistics_of_all_runs_stay_where_they_are_when_a_state_is_loaded(adam: bool) -> None:
    optimizer = Adam(0.01) if adam else SGD(0.01, momentum=0.9)
    made = stack([conv_net(), conv_net()], optimizer, OFTEN_ONE, example=torch.zeros(2, 3, 32, 32))
    reset = stacked.StackedReset(made.view, made.chain.states[1], [3, 3], False, True, [], [], 4)
    made.load_state_dict(made.state_dict())
    for group in made.view.groups:
        statistics = made.chain.states[1][group.name]
        for key, flat in reset._flat.items():
            assert statistics[key].untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()


@pytest.mark.gpu
@NEEDS_CUDA
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("net", ["conv", "mlp"])
def test_inside_the_graph_as_between_replays(net: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    for inside in (False, True):
        if not inside:
            monkeypatch.setattr(graphs, "replacements_of", lambda *_: "switched off")
        else:
            monkeypatch.undo()
        problem = {"build": mlp, "problem": DIGITS} if net == "mlp" else {}
        made, path = make(GraphBackend, "cuda", METHODS[name], dtype=torch.float32, **problem)
        given = train(path, made)
        assert path.reason == ("" if inside else "switched off")
        assert (path._replacements is not None) == inside
        ends.append((made.state_dict(), given, path.replaced()))
    assert torch.equal(ends[0][2], ends[1][2])
    assert int(ends[0][2].sum()) > 20
    for group, statistics in ends[0][0]["states"][1].items():
        assert torch.equal(statistics["born"], ends[1][0]["states"][1][group]["born"]), group
    assert_same_state(ends[0][0], ends[1][0], exact=False, tolerance=1e-4)
    for theirs, ours in zip(ends[0][1], ends[1][1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@NEEDS_CUDA
def test_a_graph_that_could_not_be_recorded_replaces_the_same_units() -> None:
    counts = []
    for waits in (False, True):
        made, path = make(GraphBackend, "cuda", METHODS["overall"], dtype=torch.float32)
        if waits:
            plain = path._forward

            def waiting(tensors: Any, inputs: Any, plain: Any = plain) -> Any:
                float(inputs.sum().cpu())
                return plain(tensors, inputs)

            path._forward = waiting
        train(path, made)
        assert path.reason.startswith("recording failed: ") == waits
        counts.append((path.replaced(), made.state_dict()["tensors"]))
    assert torch.equal(counts[0][0], counts[1][0])
    assert_same_state(counts[0][1], counts[1][1], exact=False, tolerance=1e-4)
