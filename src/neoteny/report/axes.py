"""What both renderers need before they draw a chart: values that fit its axes, tick marks, and notes on what was done.

A `Chart` comes in, a `Drawable` goes to the page (`page`) and to print (`figures`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neoteny.report.chart import Chart, Series

MOST_TICKS = 8
MOST_POINTS = 10_000
"""Of one line; a screen and a printer have fewer columns, and renderers fail far above."""
_LARGEST = 1e300
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Drawable:
    """A chart whose values can be drawn as they are; gaps are nan.

    Args:
        chart: the chart with clipped values.
        notes: what was clipped, and which lines end early; to be shown with the caption.
        x_ticks, y_ticks: positions with their labels, or None where the renderer's own are good.
    """

    chart: Chart
    notes: str = ""
    x_ticks: dict[float, str] | None = None
    y_ticks: dict[float, str] | None = None


def prepare(chart: Chart) -> Drawable:
    """Make a chart drawable.

    On a logarithmic axis a bound (or a value) at or below zero has no place: it is drawn at a tenth of the smallest
    positive value, and so is a bound below that, which would otherwise stretch the axis over empty decades. An axis
    with nothing positive to show becomes linear.

    Example:
        >>> line = Series("BP", [1, 2], [0.5, 0.1], low=[0.3, -0.1], high=[0.7, 0.3])
        >>> drawable = prepare(Chart("Error", "task", "error", [line], log_y=True))
        >>> drawable.chart.series[0].low
        [0.3, 0.01]
        >>> drawable.notes
        'Values at or below zero have no place on a logarithmic axis and are drawn at 0.01.'
    """
    notes = []
    long = [one.name for one in chart.series if len(one.x) > MOST_POINTS]
    if long:
        notes.append(f"Drawn with every n-th point, because of more than {MOST_POINTS:,}: {', '.join(long)}.")
    series = [_tidy(_thin(one)) for one in chart.series]
    gaps = [one.name for one in series if np.isnan(one.y).any()]
    if gaps:
        notes.append(f"A line ends where one of its runs diverged, or is not finite: {', '.join(dict.fromkeys(gaps))}.")
    log_x = chart.log_x and _has_positive(one.x for one in series)
    log_y = chart.log_y and _has_positive(one.y for one in series)
    x_ticks = _choose_x_ticks(series, chart.markers, log_x)
    if log_x:
        floor = _find_floor(one.x for one in series)
        if any((np.asarray(one.x) <= 0).any() for one in series):
            notes.append("Zero has no place on a logarithmic axis and is drawn at its left end.")
            if x_ticks is not None:
                x_ticks = {max(position, floor): label for position, label in x_ticks.items()}
        series = [replace(one, x=_clip(one.x, floor)) for one in series]
    y_ticks = None
    if log_y:
        floor = _find_floor(one.y for one in series)
        drawn = [values for one in series for values in (one.y, one.low, one.high)]
        if any((np.asarray(values) <= 0).any() for values in drawn):
            notes.append(f"Values at or below zero have no place on a logarithmic axis and are drawn at {floor:.2g}.")
        series = [
            replace(one, y=_clip(one.y, floor), low=_clip(one.low, floor), high=_clip(one.high, floor))
            for one in series
        ]
        y_ticks = choose_log_ticks([value for one in series for band in (one.y, one.low, one.high) for value in band])
    elif chart.log_y and any(len(one.y) for one in series):
        notes.append("Nothing here is above zero, so the axis is linear.")
    drawn_chart = replace(chart, series=tuple(series), log_x=log_x, log_y=log_y)
    return Drawable(drawn_chart, " ".join(notes), x_ticks, y_ticks)


def share_caption(drawables: Sequence[Drawable]) -> str:
    """The caption of all panels of a group, to be shown once; empty where they differ or there is one panel."""
    captions = {drawable.chart.caption for drawable in drawables}
    return captions.pop() if len(captions) == 1 and len(drawables) > 1 else ""


def choose_log_ticks(values: Sequence[float]) -> dict[float, str]:
    """Tick marks of a logarithmic axis: 1, 2, 5 in every decade where there are few decades, else powers of ten.

    Example:
        >>> list(choose_log_ticks([0.03, 0.8]).values())
        ['0.02', '0.05', '0.1', '0.2', '0.5', '1']
        >>> list(choose_log_ticks([1e-6, 1.0]).values())
        ['10⁻⁶', '10⁻⁵', '10⁻⁴', '10⁻³', '10⁻²', '0.1', '1']
    """
    finite = [value for value in values if math.isfinite(value) and value > 0]
    low, high = math.log10(min(finite)), math.log10(max(finite))
    first, last = math.floor(low + 1e-9), math.ceil(high - 1e-9)
    if high - low <= 2:
        candidates = [factor * 10.0**power for power in range(first - 1, last + 1) for factor in (1, 2, 5)]
        below = [tick for tick in candidates if tick <= min(finite) * 1.001]
        above = [tick for tick in candidates if tick >= max(finite) * 0.999]
        ticks = [tick for tick in candidates if below[-1] <= tick <= (above[0] if above else candidates[-1])]
    else:
        step = max(1, math.ceil((last - first) / MOST_TICKS))
        ticks = [10.0**power for power in range(first, last + 1, step)]
    return dict(zip(ticks, format_numbers(ticks), strict=True))


def format_numbers(values: Sequence[float]) -> list[str]:
    """Numbers as tick labels: plain where all are short, else the small and the large ones with powers of ten.

    Example:
        >>> format_numbers([0.001, 0.003, 0.01]), format_numbers([0, 3e-6, 1e-4, 1])
        (['0.001', '0.003', '0.01'], ['0', '3·10⁻⁶', '10⁻⁴', '1'])
    """
    plain = all(value == 0 or 1e-4 <= abs(value) < 1e6 for value in values)
    return [f"{value:.6g}" if plain else format_number(value) for value in values]


def format_number(value: float) -> str:
    """A number, with a power of ten where it is small or large.

    Example:
        >>> format_number(0.3), format_number(3e-6), format_number(1e-5), format_number(10000)
        ('0.3', '3·10⁻⁶', '10⁻⁵', '10000')
    """
    if value == 0 or 0.1 <= abs(value) < 1e5:
        return f"{value:.6g}"
    mantissa, _, exponent = f"{value:.3e}".partition("e")
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPTS)
    front = f"{float(mantissa):g}"
    return power if front == "1" else f"{front}·{power}"


def _thin(series: Series) -> Series:
    """Every n-th point of a line that has more than `MOST_POINTS`."""
    step = math.ceil(len(series.x) / MOST_POINTS)
    if step <= 1:
        return series
    return replace(series, **{axis: np.asarray(getattr(series, axis))[::step] for axis in ("x", "y", "low", "high")})


def _tidy(series: Series) -> Series:
    """Points in finite numbers or nan; a bound that is not finite (one run) falls on the line.

    Numbers beyond `_LARGEST` are no longer finite for a renderer, which computes with their differences. A point
    without a finite x has no place.
    """
    x, y, low, high = (np.asarray(values, dtype=np.float64) for values in (series.x, series.y, series.low, series.high))
    placed = np.abs(x) < _LARGEST
    y = np.where(np.abs(y) < _LARGEST, y, np.nan)
    low, high = (
        np.where(np.abs(bound) < _LARGEST, bound, y)[placed].tolist() if len(bound) else () for bound in (low, high)
    )
    return replace(series, x=x[placed].tolist(), y=y[placed].tolist(), low=low, high=high)


def _has_positive(values: Iterable[Sequence[float]]) -> bool:
    return any((np.asarray(one, dtype=np.float64) > 0).any() for one in values)


def _find_floor(values: Iterable[Sequence[float]]) -> float:
    arrays = [np.asarray(one, dtype=np.float64) for one in values]
    smallest = float(min(array[array > 0].min() for array in arrays if (array > 0).any()))
    return max(smallest / 10, sys.float_info.min)  # a tenth of the smallest number of all would be zero


def _clip(values: Sequence[float], floor: float) -> list[float]:
    return [max(float(value), floor) if math.isfinite(value) else float(value) for value in values]


def _choose_x_ticks(series: Sequence[Series], markers: bool, log: bool) -> dict[float, str] | None:
    """The values of a hyperparameter themselves, where a chart is over one; powers of ten on other logarithmic axes."""
    distinct = sorted({value for one in series for value in one.x})
    if markers and 0 < len(distinct) <= MOST_TICKS:
        return dict(zip(distinct, format_numbers(distinct), strict=True))
    return choose_log_ticks(distinct) if log else None
