"""ImageSet: training and test images of some classes of a source, in memory, one copy for all runs.

Before this: `classes.py` opens a source; after it: the streams of problems that learn many classes at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from neoteny.problems.imagenet.classes import SIDE, ClassSource, open_source
from neoteny.text import check_whole


class OfClasses(Protocol):
    """A problem that says which classes it takes, and how many images of each."""

    @property
    def source(self) -> str:
        """The name of a dataset or the path of a folder of classes."""
        ...

    @property
    def classes(self) -> int:
        """How many classes of the source."""
        ...

    @property
    def train_images(self) -> int:
        """Training images per class."""
        ...

    @property
    def test_images(self) -> int:
        """Test images per class."""
        ...


@dataclass
class ImageSet:
    """Images of some classes, uint8, class by class.

    Attributes:
        train: (classes * train_images, 3, 32, 32); image i is of class i // train_images.
        test: (classes * test_images, 3, 32, 32).
    """

    train_images: int
    test_images: int
    train: Tensor
    test: Tensor

    def to(self, device: torch.device) -> ImageSet:
        """The images on a device."""
        return ImageSet(self.train_images, self.test_images, self.train.to(device), self.test.to(device))


def check_classes(problem: OfClasses) -> None:
    """Raise unless a problem's source is a text and its numbers of classes and images are possible."""
    check_whole(problem, classes=2, train_images=1, test_images=1)
    if not isinstance(problem.source, str) or not problem.source:
        raise ValueError(
            f"{type(problem).__name__}: source must be the name of a dataset or the path of a folder; got "
            f"{problem.source!r}."
        )


class ChosenClasses:
    """The classes of a problem, evenly spaced in the list of its source so that they are of every kind.

    Raises:
        ValueError: the source has fewer classes or images; the message names the problem.
    """

    def __init__(self, problem: OfClasses, data: Path | str | None) -> None:
        name, self._problem = type(problem).__name__, problem
        source = open_source(problem.source, data)
        available = len(source.names)
        if problem.classes > available:
            raise ValueError(f"{name}: {problem.source!r} has {available} classes; got classes={problem.classes}.")
        self.names = [source.names[number * available // problem.classes] for number in range(problem.classes)]
        smallest, needed = min(self.names, key=source.count), problem.train_images + problem.test_images
        if needed > source.count(smallest):
            raise ValueError(
                f"{name}: class {smallest} of {problem.source!r} has {source.count(smallest)} images; got "
                f"train_images={problem.train_images} and test_images={problem.test_images}, which need {needed}."
            )
        self.fingerprint = source.fingerprint
        self._source: ClassSource | None = source
        self._images: ImageSet | None = None

    def images(self) -> ImageSet:
        """The images, loaded at the first call: of each class the first for training, the next for testing."""
        if self._images is None:
            assert self._source is not None
            counts = self._problem.train_images, self._problem.test_images
            train, test = (torch.empty(len(self.names), count, 3, SIDE, SIDE, dtype=torch.uint8) for count in counts)
            for number, name in enumerate(self.names):
                images = torch.tensor(self._source.load(name)[: sum(counts)]).permute(0, 3, 1, 2)
                train[number], test[number] = images[: counts[0]], images[counts[0] :]
            self._images = ImageSet(*counts, train.flatten(0, 1), test.flatten(0, 1))
            self._source = None  # which keeps images, too
        return self._images
