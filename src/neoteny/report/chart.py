"""Chart: a neutral description of a figure, drawn by Plotly in the page and by matplotlib in print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Series:
    """One line with its band.

    Args:
        name: what the legend says.
        x, y: the points.
        low, high: the band around y (or error bars, where a chart has few points); empty for none.
        method: what the page's toggles and colours go by; the name if empty.
        dashed: draw a dashed line, as for a baseline.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    method: str = ""
    dashed: bool = False

    def __post_init__(self) -> None:
        _check_texts(self, "name", "method")
        for axis in ("x", "y", "low", "high"):
            _check_numbers(f"Series {self.name!r}", axis, getattr(self, axis))
        lengths = {len(self.x), len(self.y)} | {len(band) for band in (self.low, self.high) if len(band)}
        if len(lengths) != 1 or bool(len(self.low)) != bool(len(self.high)):
            raise ValueError(
                f"Series {self.name!r}: x, y, low and high must be of one length (low and high both or neither); got "
                f"{len(self.x)}, {len(self.y)}, {len(self.low)}, {len(self.high)}."
            )


@dataclass(frozen=True)
class Chart:
    """One panel.

    Args:
        title: above the panel.
        x_label, y_label: the axes.
        series: what is drawn.
        caption: below it: what the band is, how many runs, how it was binned.
        group: charts of one group are small multiples, drawn side by side under this heading.
        log_x, log_y: logarithmic axes; bounds at or below zero are clipped by the renderers, which say so.
        markers: draw points too, for charts over a hyperparameter.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series] = field(default_factory=tuple)
    caption: str = ""
    group: str = ""
    log_x: bool = False
    log_y: bool = False
    markers: bool = False

    def __post_init__(self) -> None:
        _check_texts(self, "title", "x_label", "y_label", "caption", "group")
        if not isinstance(self.series, Sequence) or not all(isinstance(one, Series) for one in self.series):
            raise TypeError(f"Chart {self.title!r}: series must be a list of Series; got {self.series!r:.200}.")


def _check_texts(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if not isinstance(value, str):
            raise TypeError(
                f"{type(owner).__name__}: {name} must be text; got {value!r:.200}. Use str() or an f-string."
            )


def _check_numbers(owner: str, axis: str, values: object) -> None:
    try:
        array = np.asarray(values)
        plain = array.ndim == 1 and array.dtype.kind in "biuf" and hasattr(values, "__len__")
    except ValueError:  # lists of different lengths
        plain = False
    if not plain:
        raise TypeError(f"{owner}: {axis} must be a list of numbers (nan for a gap); got {values!r:.200}.")
