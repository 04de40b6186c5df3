"""Wirings as files, and the progress line."""

from __future__ import annotations

import io
import json
from collections import UserDict
from pathlib import Path

import pytest
import torch
from torch import nn

import neoteny
from neoteny.wiring import progress
from neoteny.wiring.trace import trace
from neoteny.wiring.wiring import Wiring
from support.wiring_models import Chunked, FunctionalMLP, Permuted, ResNet


@pytest.mark.parametrize(
    ("model", "shape"),
    [(FunctionalMLP(), (3, 5)), (Permuted(), (2, 1, 4, 4)), (Chunked(), (3, 4)), (ResNet((4, 6), 1), (2, 3, 8, 8))],
    ids=lambda value: type(value).__name__,
)
def test_a_saved_wiring_is_the_same_again(model: nn.Module, shape: tuple[int, ...], tmp_path: Path) -> None:
    wiring = trace(model, torch.randn(shape))
    wiring.save(tmp_path / "wiring.json")
    loaded = neoteny.Wiring.load(tmp_path / "wiring.json")
    assert str(loaded) == str(wiring)
    for before, now in zip(wiring, loaded, strict=True):
        ports = [(*group.producers, *group.consumers, *group.norms) for group in (before, now)]
        assert all(torch.equal(a.features, b.features) for a, b in zip(*ports, strict=True))  # pyright: ignore[reportArgumentType]
    assert [path.name for path in tmp_path.iterdir()] == ["wiring.json"]
    loaded.check(model)


def test_attach_takes_a_wiring_instead_of_an_example() -> None:
    model = FunctionalMLP()
    wiring = trace(model, torch.randn(3, 5), leave_out=["fc1"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="already traced"):
        neoteny.attach(model, optimizer, neoteny.ContinualBackprop(), wiring=wiring, leave_out=["fc1"])
    with pytest.raises(TypeError, match="wiring must be"):
        neoteny.attach(model, optimizer, neoteny.ContinualBackprop(), wiring="wiring.json")  # pyright: ignore[reportArgumentType]
    plastic = neoteny.attach(model, optimizer, neoteny.ContinualBackprop(), wiring=wiring)
    assert plastic.replaced == {"fc2": 0}


def test_a_wiring_of_another_model_is_refused() -> None:
    wiring = trace(FunctionalMLP(), torch.randn(3, 5))
    wider = FunctionalMLP()
    wider.fc2 = nn.Linear(7, 9)
    with pytest.raises(ValueError, match=r"fc2\.weight has shape \(6, 7\) in the traced model, has shape \(9, 7\)"):
        wiring.check(wider)
    longer = FunctionalMLP()
    longer.extra = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"extra\.weight is missing in the traced model"):
        wiring.check(longer)
    frozen = FunctionalMLP()
    frozen.fc2.weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"no longer be reset \(fc2: its weight is frozen"):
        wiring.check(frozen)


def test_a_file_that_is_no_wiring_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "wiring.json"
    trace(FunctionalMLP(), torch.randn(3, 5)).save(path)
    good = json.loads(path.read_text())
    missing = {key: value for key, value in good.items() if key != "shapes"}
    uneven = json.loads(path.read_text())
    uneven["groups"][0]["consumers"][0]["units"] = 3
    for content, words in (
        ("{", "not JSON"),
        ("[1]", "other JSON"),
        (json.dumps({**good, "version": 99}), "found 99"),
        (json.dumps(missing), "damaged wiring"),
        (json.dumps(uneven), "same number of units"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=words) as caught:
            Wiring.load(path)
        assert str(path) in str(caught.value)
    with pytest.raises(ValueError, match=r"neoteny\.trace"):
        Wiring(()).save(path)


def test_keyword_arguments_in_a_mapping_of_another_kind() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = FunctionalMLP()

        def forward(self, *, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    assert len(trace(Named(), UserDict(x=torch.randn(9, 5)))) == 2


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_shown_after_two_seconds_only(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 1.9, 2.5, 2.6, 9.0])
    screen = _Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(progress.sys, "stderr", screen)
    counted = progress.Progress("Net")
    counted.tick()
    counted.tick()
    assert screen.getvalue() == ""
    for _ in range(3):
        counted.tick()
    counted.close()
    lines = screen.getvalue()
    if terminal:
        assert lines.split("\r")[1:3] == [f"tracing Net: recording, {n} passes, {s} s" for n, s in ((3, 2), (5, 9))]
        assert lines.endswith(" \r")
    else:
        assert lines == "tracing Net: recording, 3 passes, 2 s\n"
