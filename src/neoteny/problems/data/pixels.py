"""From bytes to numbers: how pixels enter a network."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

PIXEL = float(np.float32(1 / 255))
"""A byte times this, in float32, is its share of 255. A product, because devices differ in how they divide."""

MIDDLE = 0.5
"""Subtracted from the pixels of colour images, so that inputs are centred near zero."""

SCALES = ("unit", "centred")
"""How pixels enter the networks of problems that let one choose: in [0, 1], or as (x - 0.5) / 0.5 in [-1, 1]."""


def scale_pixels(levels: Tensor, pixels: str) -> Tensor:
    """Bytes as inputs of a network, float32, of the same shape; `pixels` is one of `SCALES`.

    Example:
        >>> scale_pixels(torch.tensor([0, 255], dtype=torch.uint8), "centred")
        tensor([-1.,  1.])
    """
    share = levels.float().mul_(PIXEL)
    return share if pixels == "unit" else share.sub_(MIDDLE).mul_(2.0)


def pixel_values(pixels: str) -> np.ndarray:
    """The input that each of the 256 bytes becomes, float32 (256,)."""
    return scale_pixels(torch.arange(256, dtype=torch.uint8), pixels).numpy()


def check_pixels(owner: object, pixels: object) -> None:
    """Raise unless the field `pixels` of a problem is one of `SCALES`."""
    if pixels not in SCALES:
        names = " or ".join(f'"{name}"' for name in SCALES)
        raise ValueError(f"{type(owner).__name__}: pixels must be {names}; got {pixels!r}.")
