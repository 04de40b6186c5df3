"""The figures of a diagnosis and of a monitor."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import neoteny
from neoteny.diagnosis.result import Diagnosis, LayerDiagnosis
from neoteny.diagnosis.sample import LayerSample, Sample
from support.diagnosed_models import mlp

pytest.importorskip("matplotlib", reason="matplotlib is not installed")


def diagnosed(control: bool) -> Diagnosis:
    model: Any = mlp(10, 32, 16, 2)
    with torch.no_grad():
        model.fc2.bias[:8] = -1e3
    return neoteny.diagnose(model, torch.randn(200, 10), control=control)


def test_a_diagnosis_is_drawn_layer_by_layer() -> None:
    found = diagnosed(True)
    figure: Any = found.plot()
    dead, rank, weights = figure.axes
    assert [label.get_text() for label in dead.get_yticklabels()] == ["fc1", "fc2"]
    assert [bar.get_width() for bar in dead.patches] == pytest.approx([0, 50, 0, 0], abs=1e-9)  # now, then fresh
    assert [bar.get_width() for bar in rank.patches[:2]] == [layer.effective_rank for layer in found.layers]
    assert [bar.get_width() for bar in weights.patches] == [
        layer.weight_magnitude / layer.fresh.weight_magnitude for layer in found.layers if layer.fresh
    ]
    figure.canvas.draw()


def test_a_diagnosis_without_a_fresh_copy_is_drawn_too() -> None:
    figure = diagnosed(False).plot()
    assert [len(axes.patches) for axes in figure.axes] == [2, 2, 2]
    figure.canvas.draw()


def sample(step: int, lost: bool) -> Sample:
    layers = [LayerDiagnosis(f"fc{n}", 8, step, step / 8, None, 8.0 - step, 2.0, 0.1, 50) for n in range(25)]
    return Sample(step, tuple(LayerSample(layer, 0.05) for layer in layers), ("lost",) if lost else ())


def test_a_monitor_is_drawn_over_steps() -> None:
    monitor = neoteny.Monitor(mlp(4, 8, 2))
    with pytest.raises(ValueError, match="at least one sample"):
        monitor.plot()
    monitor.samples = [sample(step, step >= 3) for step in range(5)]
    figure = monitor.plot()
    dead, rank, weights = figure.axes
    assert [len(axes.get_lines()) for axes in figure.axes] == [26, 26, 26]  # 25 layers, and where it warned
    assert list(rank.get_lines()[0].get_ydata()) == [8, 7, 6, 5, 4]
    assert list(weights.get_lines()[0].get_ydata()) == [2.0] * 5
    assert list(dead.get_lines()[-1].get_xdata()) == [3, 3]
    assert [text.get_text() for text in figure.legends[0].get_texts()][-2:] == ["fc19, and 5 more", "losing plasticity"]
    figure.canvas.draw()


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnosed(False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        found.plot()
