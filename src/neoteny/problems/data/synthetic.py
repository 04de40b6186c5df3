"""Generated stand-ins for images: made in memory, the same everywhere, learnable; they need no download.

`digits` stands in for MNIST in permuted MNIST, `Textures` for the classes of Continual ImageNet. Only uniform draws,
sums, products and comparisons are used, so that no library's rounding of a logarithm or sine can change a pixel.
"""

from __future__ import annotations

import functools

import numpy as np

from neoteny.problems.draws import draw

FINGERPRINT = "synthetic-1"
"""Version of the generated images: increase it when they change."""

DIGITS = 2000
SIDE = 28
CLASSES = 40
IMAGES_A_CLASS = 60
_INK = 0.2  # share of pixels that are not blank, near that of MNIST
_SEED = 20_230_613


@functools.cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images (2000, 784) uint8 of ten shapes, moved, faded and worn, and their labels (2000,) uint8; read-only.

    Example:
        >>> images, labels = digits()
        >>> images.shape, [int(count) for count in np.bincount(labels)]
        ((2000, 784), [200, 200, 200, 200, 200, 200, 200, 200, 200, 200])
    """
    shapes = np.stack([_shape(label) for label in range(10)])
    labels = np.arange(DIGITS) % 10
    moves = _numbers("synthetic.digits.move", 0, DIGITS * 3).reshape(DIGITS, 3)
    wear = _numbers("synthetic.digits.wear", 0, DIGITS * SIDE * SIDE).reshape(DIGITS, SIDE, SIDE)
    images = np.empty((DIGITS, SIDE, SIDE))
    for number, label in enumerate(labels):
        down, right = (moves[number, :2] * 5).astype(int) - 2
        images[number] = np.roll(shapes[label], (down, right), (0, 1)) * (0.6 + 0.4 * moves[number, 2])
    images = np.where(wear < 0.2, 0.0, images) * (0.7 + 0.3 * wear)
    images = np.where(wear > 0.98, 0.5, images)  # stray ink
    return _bytes(images.reshape(DIGITS, -1)), _frozen(labels.astype(np.uint8))


class Textures:
    """40 classes of 60 colour images: a class is a coarse pattern; an image of it is shifted, shaded and noisy."""

    names = tuple(f"c{number:03d}" for number in range(CLASSES))
    fingerprint = FINGERPRINT

    def count(self, name: str) -> int:
        """Images of a class."""
        return IMAGES_A_CLASS

    def load(self, name: str) -> np.ndarray:
        """Images of a class, uint8 (60, 32, 32, 3)."""
        number = self.names.index(name)
        coarse = _numbers(f"synthetic.textures.{number}", 0, 6 * 6 * 3).reshape(6, 6, 3) > 0.5
        pattern = _enlarge(coarse.astype(float), 32)
        moves = _numbers(f"synthetic.textures.{number}.move", 0, IMAGES_A_CLASS * 5).reshape(IMAGES_A_CLASS, 5)
        noise = _numbers(f"synthetic.textures.{number}.noise", 0, IMAGES_A_CLASS * 32 * 32 * 3)
        images = np.empty((IMAGES_A_CLASS, 32, 32, 3))
        for image, (down, right, *shades) in zip(images, moves, strict=True):
            image[:] = 0.6 * np.roll(pattern, (int(down * 32), int(right * 32)), (0, 1)) + 0.1 * np.asarray(shades)
        return _bytes(images + 0.3 * noise.reshape(images.shape))


def _shape(label: int) -> np.ndarray:
    """A blob of ink in the middle of a page (28, 28), from 0 (blank) to 1."""
    field = _numbers(f"synthetic.digits.shape.{label}", 0, 20 * 20).reshape(20, 20)
    for axis in (0, 1):
        for _ in range(3):
            field = field + np.roll(field, 1, axis) + np.roll(field, -1, axis)
    page = np.zeros((SIDE, SIDE))
    cut = np.sort(field, axis=None)[-int(_INK * SIDE * SIDE)]
    page[4:24, 4:24] = np.where(field < cut, 0.0, 0.4 + 0.6 * (field - cut) / (field.max() - cut))
    return page


def _enlarge(coarse: np.ndarray, side: int) -> np.ndarray:
    """Linear interpolation of a grid (g, g, 3) that wraps around, to (side, side, 3)."""
    for axis in (0, 1):
        cells = coarse.shape[axis]
        places = np.arange(side) * (cells / side)
        low = places.astype(int)
        share = (places - low).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        coarse = coarse.take(low, axis) * (1 - share) + coarse.take((low + 1) % cells, axis) * share
    return coarse


def _numbers(purpose: str, start: int, stop: int) -> np.ndarray:
    return draw([_SEED], 0, purpose, start, stop)[0].numpy()


def _bytes(images: np.ndarray) -> np.ndarray:
    return _frozen((images * 255).astype(np.uint8))


def _frozen(values: np.ndarray) -> np.ndarray:
    values.setflags(write=False)
    return values
