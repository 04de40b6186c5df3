"""One value for each scale of an experiment: smoke (seconds), laptop (minutes) and paper (the paper's own numbers)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from neoteny.engine.sweep import SCALES, nearest

if TYPE_CHECKING:
    import pandas as pd

Value = TypeVar("Value")


def pick(scale: str, smoke: Value, laptop: Value, paper: Value) -> Value:
    """The value for a scale.

    Example:
        >>> pick("laptop", smoke=2, laptop=20, paper=100)
        20
    """
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}; got {scale!r}.{nearest(str(scale), list(SCALES))}")
    return {"smoke": smoke, "laptop": laptop, "paper": paper}[scale]


def scale_of(frame: pd.DataFrame) -> str:
    """The scale of a frame's runs; the paper's where the frame has none, or several."""
    present = frame["scale"].unique().tolist() if "scale" in frame.columns else []
    return present[0] if len(present) == 1 and present[0] in SCALES else "paper"
