"""Figures of a diagnosis (one bar per layer) and of a monitor's samples (one line per layer over steps)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from neoteny.diagnosis.result import NOTABLE_GROWTH, NOTABLE_RANK, NOTABLE_SHARE, Diagnosis, LayerDiagnosis, lost_share
from neoteny.diagnosis.sample import LayerSample, Sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NOW, _FRESH, _LIMIT = "#1f77b4", "#c7c7c7", "#d62728"
_MOST_NAMED = 20  # layers that a legend names


def plot_diagnosis(found: Diagnosis) -> Figure:
    """Per layer: the share of dead units, the effective rank and the weights, beside a fresh copy's where there is one.

    Raises:
        ImportError: matplotlib is not installed.
    """
    layers = found.layers
    compared = all(layer.fresh is not None for layer in layers)
    figure = _figure(4.0 + 2.6, 1.6 + 0.32 * len(layers))
    panels: list[Any] = list(figure.subplots(1, 3, sharey=True))
    places = range(len(layers))
    _bars(panels[0], layers, lambda layer: 100 * lost_share(layer))
    panels[0].set_xlabel("dead or saturated units, %")
    panels[0].set_xlim(0, 100)
    panels[0].axvline(100 * NOTABLE_SHARE, color=_LIMIT, linewidth=0.8, linestyle="--")
    _bars(panels[1], layers, lambda layer: layer.effective_rank)
    panels[1].set_xlabel("effective rank")
    if compared:
        growth = [_ratio(layer.weight_magnitude, layer.fresh.weight_magnitude) for layer in layers if layer.fresh]
        panels[2].barh(places, growth, color=_NOW, height=0.4)
        panels[2].axvline(1.0, color="black", linewidth=0.8)
        panels[2].axvline(NOTABLE_GROWTH, color=_LIMIT, linewidth=0.8, linestyle="--")
        panels[2].set_xlabel("weights, times a fresh copy's")
        for place, layer in zip(places, layers, strict=True):
            if layer.fresh is not None:
                limit = NOTABLE_RANK * layer.fresh.effective_rank
                panels[1].plot(
                    [limit, limit], [place - 0.45, place + 0.45], color=_LIMIT, linewidth=0.8, linestyle="--"
                )
    else:
        _bars(panels[2], layers, lambda layer: layer.weight_magnitude)
        panels[2].set_xlabel("mean |w|")
    panels[0].set_yticks(list(places), [layer.name or "model" for layer in layers])
    panels[0].invert_yaxis()
    handles = [_patch(_NOW, "this network")]
    handles += [_patch(_FRESH, "a fresh copy"), _line("where a verdict begins")] if compared else []
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False, fontsize=8)
    return figure


def plot_samples(samples: Sequence[Sample]) -> Figure:
    """Over steps, one line per layer: dead units, effective rank and weights; a red line where the monitor warned.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there is no sample yet.
    """
    if not samples:
        raise ValueError("plot needs at least one sample: the monitor has taken none yet.")
    figure = _figure(9.0, 3.2)
    panels: list[Any] = list(figure.subplots(1, 3))
    titles = ("dead or saturated units, %", "effective rank", "weights, times a fresh copy's")
    values: tuple[Callable[[LayerSample], float], ...] = (
        lambda layer: 100 * lost_share(layer.numbers),
        lambda layer: layer.numbers.effective_rank,
        lambda layer: layer.weight_growth,
    )
    names = list(dict.fromkeys(layer.numbers.name for sample in samples for layer in sample.layers))
    alarm = next((sample.step for sample in samples if sample.findings), None)
    for panel, title, value in zip(panels, titles, values, strict=True):
        for number, name in enumerate(names):
            points = [(s.step, value(layer)) for s in samples for layer in s.layers if layer.numbers.name == name]
            color = _shade(number, len(names))
            panel.plot(*zip(*points, strict=True), color=color, marker=".", markersize=3, linewidth=1.2, label=name)
        panel.set_xlabel("step")
        panel.set_title(title, fontsize=10)
        panel.set_ylim(bottom=0)
        panel.margins(x=0.02)
        if alarm is not None:
            panel.axvline(alarm, color=_LIMIT, linewidth=1.0, linestyle="--")
    handles = panels[0].get_lines()[: min(len(names), _MOST_NAMED)]
    more = f", and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    labels = [name or "model" for name in names[: len(handles)]]
    labels[-1] += more
    if alarm is not None:
        handles, labels = [*handles, _line("")], [*labels, "losing plasticity"]
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 6), frameon=False, fontsize=8)
    return figure


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plot() needs matplotlib: pip install matplotlib") from error
    return Figure(figsize=(width + 2.0, height), layout="constrained", dpi=110)


def _bars(panel: Axes, layers: Sequence[LayerDiagnosis], value: Callable[[LayerDiagnosis], float]) -> None:
    places = range(len(layers))
    compared = all(layer.fresh is not None for layer in layers)
    panel.barh([place - 0.2 * compared for place in places], [value(layer) for layer in layers], color=_NOW, height=0.4)
    if compared:
        fresh = [value(layer.fresh) for layer in layers if layer.fresh]
        panel.barh([place + 0.2 for place in places], fresh, color=_FRESH, height=0.4)


def _ratio(value: float, fresh: float) -> float:
    return value / fresh if fresh else float("nan")


def _patch(color: str, label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=color, label=label)


def _line(label: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=_LIMIT, linewidth=1.0, linestyle="--", label=label)


def _shade(number: int, count: int) -> Any:
    """From the first layer, dark, to the last, light."""
    from matplotlib import colormaps

    return colormaps["viridis"](0.9 * number / max(count - 1, 1))
