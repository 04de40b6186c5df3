"""The images of problems that change labels: digits of 28 by 28, and classes of colour images of 32 by 32.

Before this: `mnist/images.py` reads digits, `imagenet/classes.py` opens sources of classes; after it:
`label_permuted.py` and `random_label.py`.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import torch

from neoteny.problems.data.labelled import LabelledImages
from neoteny.problems.imagenet.classes import ClassSource, open_source
from neoteny.problems.mnist.images import open_digits

DIGIT_SHAPE = (784,)
COLOUR_SHAPE = (3, 32, 32)


def check_source(owner: object, source: object) -> None:
    """Raise unless the field `source` of a problem is a text."""
    if not isinstance(source, str) or not source:
        raise ValueError(
            f"{type(owner).__name__}: source must be the name of a dataset or the path of a folder; got {source!r}."
        )


def open_grey(owner: str, source: str, classes: int | None, data: Path | str | None) -> LabelledImages:
    """Images (N, 784) of a source of digits or characters, which must have as many classes; None: any number."""
    images = open_digits(source, data, classes=None)
    found = int(images.labels.max()) + 1
    if classes is not None and found != classes:
        raise ValueError(f"{owner}: {source!r} has {found} classes; got classes={classes}. Set classes={found}.")
    return images


def open_colour(owner: str, source: str, classes: int, data: Path | str | None) -> LabelledImages:
    """Images (N, 3072), channels first, of the first classes of a source; 0 classes: all."""
    opened = open_source(source, data)
    if classes > len(opened.names):
        raise ValueError(f"{owner}: {source!r} has {len(opened.names)} classes; got classes={classes}.")
    return _collect(opened.fingerprint, classes or len(opened.names), _Kept(opened))


class _Kept:
    """A source that does not count in the key of a cache: its fingerprint does."""

    def __init__(self, source: ClassSource) -> None:
        self.source = source

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kept)

    def __hash__(self) -> int:
        return 0


@functools.lru_cache(maxsize=1)
def _collect(fingerprint: str, classes: int, kept: _Kept) -> LabelledImages:
    """The images of the first classes, class by class."""
    source = kept.source
    names = source.names[:classes]
    counts = [source.count(name) for name in names]
    images = np.empty((sum(counts), *COLOUR_SHAPE), dtype=np.uint8)
    for name, end, count in zip(names, np.cumsum(counts), counts, strict=True):
        images[end - count : end] = source.load(name).transpose(0, 3, 1, 2)
    labels = torch.arange(classes, dtype=torch.int16).repeat_interleave(torch.tensor(counts))
    return LabelledImages(torch.from_numpy(images).flatten(1), labels, f"{fingerprint}-{classes}")
