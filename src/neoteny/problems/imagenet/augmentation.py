"""Augmentation of images of 32 by 32: mirror image, shifted window, rotation, each drawn by (seed, task, image).

Three random changes, in this order (class-incremental CIFAR-100, Dohare et al. 2024):

1. a mirror image, with probability 1/2;
2. four pixels of reflected border on each side, then a window of 32 by 32 at a random place;
3. a rotation by 0 to 15 degrees, counter-clockwise about the centre. A pixel is the nearest one of the image before; a
   pixel from outside is 0 after centring. Direction, nearest pixel and fill are from memory of the authors' code and
   not verified.

All three together are one map from places to places, computed in whole numbers: cosine and sine are rounded to 20 bits
first, so no device or library changes a pixel by its rounding.

Before this: `draws.py`; after it: `pool.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from neoteny.problems.draws import draw
from neoteny.problems.imagenet.classes import SIDE

NUMBERS = 4
"""Draws per image: mirror, top, left, angle."""
BORDER = 4
DEGREES = 15.0
_BITS = 20
_LAST = SIDE - 1


def places(seeds: Sequence[int], task: int, purpose: str, start: int, stop: int) -> Tensor:
    """From where images start to stop - 1 of a stream take their pixels.

    Returns:
        int32 (n, stop - start, 1024), row by row: the number of a pixel of the original image, or -1 for one from
        outside.
    """
    drawn = draw(seeds, task, purpose, NUMBERS * start, NUMBERS * stop).unflatten(-1, (-1, NUMBERS))
    return place_pixels(*drawn.unbind(-1))


def place_pixels(mirror: Tensor, top: Tensor, left: Tensor, turn: Tensor) -> Tensor:
    """The map of one augmentation per image, from numbers (...) in (0, 1): int32 (..., 1024); see `places`.

    Example:
        >>> half = torch.tensor(0.5)  # the window in the middle; not mirrored, not turned
        >>> bool((place_pixels(half, half, half, torch.tensor(0.0)) == torch.arange(1024)).all())
        True
    """
    angle = turn.double() * math.radians(DEGREES)
    cosine, sine = ((value * 2**_BITS).round().long()[..., None, None] for value in (angle.cos(), angle.sin()))
    doubled = 2 * torch.arange(SIDE) - _LAST  # twice the distance from the centre: a whole number
    down, right = doubled[:, None], doubled[None, :]
    half = SIDE << _BITS  # the centre, and half a pixel to round to the nearest
    x = (cosine * right - sine * down + half) >> (_BITS + 1)
    y = (sine * right + cosine * down + half) >> (_BITS + 1)
    inside = (x >= 0) & (x <= _LAST) & (y >= 0) & (y <= _LAST)
    shifts = 2 * BORDER + 1
    x = _reflect(x + ((left * shifts).long() - BORDER)[..., None, None])
    y = _reflect(y + ((top * shifts).long() - BORDER)[..., None, None])
    x = torch.where((mirror < 0.5)[..., None, None], _LAST - x, x)
    return torch.where(inside, y * SIDE + x, -1).flatten(-2).int()


def take(images: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    """Images (..., 3, 32, 32) with their pixels taken from `source` (..., 1024), and which of them are from inside."""
    inside = source >= 0
    index = source.clamp(min=0).long().unsqueeze(-2).expand(*source.shape[:-1], 3, -1)
    taken = images.flatten(-2).gather(-1, index).unflatten(-1, (SIDE, SIDE))
    return taken, inside.unflatten(-1, (SIDE, SIDE)).unsqueeze(-3)


def _reflect(place: Tensor) -> Tensor:
    """Places beyond the border as the places that they mirror."""
    place = place.abs()
    return torch.where(place > _LAST, 2 * _LAST - place, place)
