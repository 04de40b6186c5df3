"""trace: examples of several calls, layers that no call reaches, layers of training mode, and weights of functions."""

from __future__ import annotations

import warnings
from collections import UserDict
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoteny.wiring.prepare import prepare
from neoteny.wiring.sandbox import Sandbox
from neoteny.wiring.trace import find, trace
from neoteny.wiring.wiring import NOT_CALLED, Wiring
from support.wiring_checks import checked, outline
from support.wiring_models import Auxiliary, FunctionalMLP, FunctionalWeight


class Heads(nn.Module):
    """A head per task."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 7), nn.Linear(7, 6)
        self.heads = nn.ModuleList(nn.Linear(6, 2) for _ in range(3))

    def forward(self, x: Tensor, task: int = 0) -> Tensor:
        return self.heads[task](F.relu(self.b(F.relu(self.a(x)))))


def checked_calls(model: nn.Module, calls: list[Any], leave_out: tuple[str, ...] = ()) -> Wiring:
    """The wiring of several calls, each group verified once more on each."""
    wiring = trace(model, calls, leave_out=leave_out)
    with Sandbox(model, calls[0]) as sandbox:
        for call in calls:
            for part in prepare(sandbox, call):
                assert part.check(list(wiring.groups)) == [None] * len(wiring)
    return wiring


def test_calls_unite_their_consumers() -> None:
    x = torch.randn(3, 4)
    wiring = checked_calls(Heads(), [x, (x, 1), {"x": x, "task": 2}])
    heads = ["heads.0", "heads.1", "heads.2"]
    assert outline(wiring) == [(["a"], [], ["b"], "b"), (["b"], [], heads, "heads.0")]
    assert wiring.left_out == dict.fromkeys(heads, "output layer: its values are the model's output")
    assert not wiring.uncalled
    assert outline(trace(Heads(), [UserDict(x=x, task=0), (x, 1)], leave_out=["heads.2"]))[1][2] == heads[:2]


def test_layers_that_no_call_reaches_are_named() -> None:
    x = torch.randn(3, 4)
    with pytest.warns(RuntimeWarning, match=r"heads\.2.*example=\[call, another\].*leave_out=\['heads\.2'\]"):
        wiring = trace(Heads(), [(x, 0), (x, 1)])
    assert wiring.left_out["heads.2"] == NOT_CALLED
    assert wiring.uncalled == ("heads.2",)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wiring = trace(Heads(), x, leave_out=["heads"])
        assert wiring.uncalled == ("heads.1", "heads.2")  # they may still run: attach watches them
        model = FunctionalMLP()
        model.spare = nn.Linear(3, 3)  # no units fit
        assert checked(model, torch.randn(3, 5)).left_out["spare"] == NOT_CALLED


def test_units_that_are_wired_otherwise_in_another_call_are_left_out() -> None:
    class Modes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.join, self.head = (nn.Linear(4, 4) for _ in range(4))

        def forward(self, x: Tensor, how: str) -> Tensor:
            if how == "features":
                return F.relu(self.one(x))
            if how == "join":
                return self.head(F.relu(self.join(F.relu(self.one(x)))))
            if how == "swap":
                return self.head(F.relu(self.join(F.relu(self.two(x)))))
            if how == "turned":
                return self.head(F.relu(self.join(F.relu(self.one(x)).flip(-1))))
            if how == "gated":
                return self.head(F.relu(self.join(self.one(x) * self.two(x))))
            return self.head(F.relu(self.join(x)))

    x = torch.randn(3, 4)
    for how, reason in {
        "features": "output layer",
        "swap": "its columns of join carry two when",
        "input": "its columns of join carry the model's input when",
        "turned": "other columns in the same layer",
        "gated": "form other groups",
    }.items():
        wiring = checked_calls(Modes(), [(x, "join"), (x, how)], () if how in ("swap", "gated") else ("two",))
        assert outline(wiring) == [(["join"], [], ["head"], "head")], how
        assert reason in wiring.left_out["one"]


def test_layers_of_training_mode_alone_are_found() -> None:
    wiring = checked_calls(Auxiliary("head"), [torch.randn(3, 4)])
    assert outline(wiring) == [(["fc1"], [], ["fc2", "aux"], "fc2")]
    deep = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.9), nn.ReLU(), Auxiliary("head"))
    for rows in (1, 3):  # a batch norm cannot train on one row
        wiring = checked_calls(deep, [torch.randn(rows, 5)]) if rows > 1 else find(deep, torch.randn(rows, 5))
        found = [group for group in wiring if group.name == "4.fc1"]
        assert [port.module for group in found for port in group.consumers] == (["4.fc2", "4.aux"] if found else [])


def test_weights_that_functions_use_are_left_out_with_what_feeds_them() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4), FunctionalWeight(call=False))
    wiring = checked(model, torch.randn(3, 4))
    assert [group.name for group in wiring] == ["0", "2"]
    assert "never called" in wiring.left_out["3.b"]
    assert "feeds 3.b (Linear)" in wiring.left_out["3.a"]
    assert not wiring.uncalled


def test_a_list_that_is_not_a_list_of_calls_is_refused_with_what_to_pass() -> None:
    class Scaled(FunctionalMLP):
        def forward(self, x: Any, scale: Any = 1.0) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            return super().forward((torch.stack(x) if isinstance(x, list) else x) * scale)

    x, targets = torch.randn(3, 5), torch.tensor([0, 1, 0])
    with pytest.raises(ValueError, match=r"several calls.*call 1 of 2.*example=batch\[0\]"):
        trace(FunctionalMLP(), [x, targets])
    with pytest.raises(ValueError, match=r"example=batch\[0\]"):
        trace(FunctionalMLP(), (x, targets))
    with pytest.raises(ValueError, match=r"arguments of one call: pass a tuple"):
        trace(Scaled(), [x, torch.rand(3, 1)])
    with pytest.raises(ValueError, match=r"as well as the list itself.*\[\(first,\), \(second,\)\]"):
        trace(Scaled(), [x, x])
    assert len(trace(Scaled(), [(x,), (x,)])) == len(trace(Scaled(), ([x, x],))) == 2

    class Stacked(FunctionalMLP):
        def forward(self, x: list[Tensor]) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            return super().forward(torch.cat(x))

    with pytest.raises(ValueError, match=r"list itself as one argument.*example=\(\[\.\.\.\],\)"):
        trace(Stacked(), [x, x])
    with pytest.raises(ValueError, match="empty list"):
        trace(FunctionalMLP(), [])
    with pytest.raises(ValueError, match=r"call 1 of 2.*accepts"):
        trace(FunctionalMLP(), [x, {"y": x}])


def test_objects_of_an_example_are_copied_for_each_pass() -> None:
    class Cache:
        def __init__(self) -> None:
            self.seen = [torch.randn(3, 5)]

    class Remembers(FunctionalMLP):
        def forward(self, x: Tensor, cache: Cache) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            cache.seen.append(x)
            return super().forward(torch.stack(cache.seen).mean(0))

    cache = Cache()
    assert len(checked(Remembers(), {"x": torch.randn(3, 5), "cache": cache})) == 2
    assert len(cache.seen) == 1


def test_classes_that_are_not_known_are_named() -> None:
    class Dense(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(width, width))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    with pytest.raises(ValueError, match=r"0, 2: Dense: a class that tracing does not know"):
        trace(nn.Sequential(Dense(4), nn.ReLU(), Dense(4), nn.Linear(4, 2)), torch.randn(3, 4))
