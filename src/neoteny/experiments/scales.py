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
    found = [scale for scale in SCALES if scale in set(frame["scale"])] if "scale" in frame.columns else []
    return found[0] if len(found) == 1 else "paper"
