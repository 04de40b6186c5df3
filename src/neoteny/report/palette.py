"""Colours of methods, the same in every chart, on light and on dark ground, told apart by colour-blind readers.

The hues follow Okabe and Ito's set, set lighter on dark ground. Plain backpropagation is the neutral ink and continual
backpropagation the warm accent in every figure; series that share a method differ in shade and dash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from neoteny.report.chart import Chart, Series

DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True)
class Colour:
    """One colour on light ground and on dark ground, as #rrggbb."""

    light: str
    dark: str


@dataclass(frozen=True)
class Look:
    """How a series is drawn. `key` is the toggle to which it belongs."""

    key: str
    colour: Colour
    dash: str


KNOWN = {
    "BP": Colour("#3a4150", "#e3e6ec"),
    "CBP": Colour("#d4490c", "#ff8048"),
    "L2": Colour("#0b6fb3", "#4ea8ec"),
    "S&P": Colour("#0a8f6a", "#35c79d"),
    "Dropout": Colour("#b3589a", "#e79bd0"),
    "Online norm": Colour("#c98500", "#f2b632"),
    "Adam": Colour("#4c9fd6", "#9ad4fa"),
    "Linear": Colour("#8b929e", "#868d99"),
    "PPO": Colour("#3a4150", "#e3e6ec"),
    "Continual PPO": Colour("#d4490c", "#ff8048"),
    "overall utility": Colour("#d4490c", "#ff8048"),
    "PPO+L2": Colour("#0b6fb3", "#4ea8ec"),
    "PPO+S&P": Colour("#0a8f6a", "#35c79d"),
    "change of friction": Colour("#8b929e", "#868d99"),
}
OTHERS = (
    Colour("#0b6fb3", "#4ea8ec"),
    Colour("#d4490c", "#ff8048"),
    Colour("#0a8f6a", "#35c79d"),
    Colour("#6d4bc3", "#ab92f5"),
    Colour("#c98500", "#f2b632"),
    Colour("#b3589a", "#e79bd0"),
    Colour("#7a5a3a", "#c6a27c"),
    Colour("#4c9fd6", "#9ad4fa"),
    Colour("#7d8420", "#c3cb58"),
)
_GROUND = Colour("#ffffff", "#171b21")
_SHADES = (0.0, 0.32, 0.52)


def choose_keys(charts: Sequence[Chart]) -> dict[str, bool]:
    """The toggles of a page in order of appearance, each with whether it is a (dashed) baseline.

    Toggles go by method; where all lines but the baselines are of one method, by the names of the series.
    """
    by_name = _go_by_name(charts)
    keys: dict[str, bool] = {}
    for chart in charts:
        for series in chart.series:
            key = _choose_key(series, by_name)
            keys[key] = keys.get(key, True) and series.dashed
    return keys


def choose_colours(charts: Sequence[Chart]) -> dict[str, Colour]:
    """A colour for every key of a page: its own for a known method, else one that no other key has.

    Where there are more keys than colours, keys that never meet in a chart may share one.
    """
    by_name = _go_by_name(charts)
    meetings = [{_choose_key(series, by_name) for series in chart.series} for chart in charts]
    keys = list(choose_keys(charts))
    chosen = {key: KNOWN[key] for key in keys if key in KNOWN}
    unknown = [key for key in keys if key not in KNOWN]
    free = [colour for colour in OTHERS if colour not in chosen.values()]
    for nth, key in enumerate(unknown):
        if len(unknown) <= len(free):
            chosen[key] = free[nth]
            continue
        met = {chosen[other] for meeting in meetings if key in meeting for other in meeting if other in chosen}
        chosen[key] = next((colour for colour in OTHERS if colour not in met), OTHERS[nth % len(OTHERS)])
    return {key: chosen[key] for key in keys}


def choose_looks(charts: Sequence[Chart]) -> list[list[Look]]:
    """The look of every series of every chart.

    Example:
        >>> chart = Chart("", "", "", [Series("0.1", [], [], method="BP"), Series("0.2", [], [], method="BP")])
        >>> [(look.key, look.dash) for look in choose_looks([chart])[0]]
        [('0.1', 'solid'), ('0.2', 'solid')]
    """
    by_name = _go_by_name(charts)
    colours = choose_colours(charts)
    looks = []
    for chart in charts:
        seen: Counter[str] = Counter()
        row = []
        for series in chart.series:
            key = _choose_key(series, by_name)
            nth = seen[key]
            seen[key] += 1
            dash = "dash" if series.dashed and not nth else DASHES[nth % len(DASHES)]
            row.append(Look(key, _shade(colours[key], nth), dash))
        looks.append(row)
    return looks


def _choose_key(series: Series, by_name: bool) -> str:
    return series.name if by_name or not series.method else series.method


def _go_by_name(charts: Sequence[Chart]) -> bool:
    lines = [series for chart in charts for series in chart.series if not series.dashed]
    return len({series.method or series.name for series in lines}) < 2


def _shade(colour: Colour, nth: int) -> Colour:
    """Nearer to the ground for the second and third series of a method."""
    share = _SHADES[nth % len(_SHADES)]
    return Colour(_mix(colour.light, _GROUND.light, share), _mix(colour.dark, _GROUND.dark, share))


def _mix(first: str, second: str, share: float) -> str:
    pairs = ((int(first[i : i + 2], 16), int(second[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)
