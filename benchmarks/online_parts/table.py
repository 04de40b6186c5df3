"""The table of `online.py`: lines that come as they are measured."""

from __future__ import annotations

from dataclasses import dataclass

_COLUMNS = (
    ("what", 46),
    ("kernel us", 11),
    ("best", 10),
    ("baseline us", 13),
    ("value", 9),
    ("bar", 8),
    ("stretch", 9),
    ("met", 9),
    ("at least", 10),
    ("memory", 8),
)


@dataclass(frozen=True)
class Goal:
    """What a value is held against.

    Args:
        bar, stretch: two goals.
        higher: whether more is better: ratios over a baseline are, times and costs are not.
        unit: "x" for ratios, "us" for times.
    """

    bar: float
    stretch: float
    higher: bool = True
    unit: str = "x"

    def met(self, value: float) -> str:
        """Which of them a value meets."""
        sign = 1 if self.higher else -1
        if sign * value >= sign * self.stretch:
            return "stretch"
        return "bar" if sign * value >= sign * self.bar else "NO"


class Table:
    """Prints the rows of one table."""

    def __init__(self) -> None:
        cells = [f"{name:>{width}}" for name, width in _COLUMNS[1:]]
        print("  " + f"{_COLUMNS[0][0]:<{_COLUMNS[0][1]}}" + "".join(cells))

    def title(self, text: str) -> None:
        """Begin a part."""
        print(text, flush=True)

    def row(
        self,
        what: str,
        kernel: float | None = None,
        best: float | None = None,
        baseline: float | None = None,
        value: float | None = None,
        goal: Goal | None = None,
        moved: float | None = None,
        bandwidth: float | None = None,
    ) -> None:
        """One line; times in microseconds, `moved` in bytes per update, `bandwidth` in bytes per second."""
        unit = goal.unit if goal else "x"
        cells = [
            "" if kernel is None else _number(kernel),
            "" if best is None else _number(best),
            "" if baseline is None else _number(baseline),
            "" if value is None else _number(value) + unit,
            "" if goal is None else f"{goal.bar:g}{goal.unit}",
            "" if goal is None else f"{goal.stretch:g}{goal.unit}",
            "" if goal is None or value is None else goal.met(value),
            "" if moved is None else _bytes(moved),
            "" if not moved or not bandwidth or not kernel else f"{moved / (kernel * 1e-6) / bandwidth:.0%}",
        ]
        widths = [width for _, width in _COLUMNS]
        print(
            "  "
            + f"{what:<{widths[0]}}"
            + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True)),
            flush=True,
        )

    def note(self, text: str) -> None:
        """A line of words."""
        print(f"  {text}", flush=True)


def _number(value: float) -> str:
    """Three digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _bytes(count: float) -> str:
    for unit in ("B", "KB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} MB"
