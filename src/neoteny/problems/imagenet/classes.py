"""Sources of classes for Continual ImageNet: names, and for each name its images of 32 by 32.

A folder of classes is one of five kinds, recognised by what is in it:

- sheets: `classes.tsv` and one `<wnid>.webp` per class, 25 columns of tiles of 32 by 32, read row by row;
- batches: the public downsampled ImageNet, `train_data_batch_1`, ... as pickles or .npz (see `batches.py`);
- CIFAR: the binary version of CIFAR-10 or CIFAR-100, `data_batch_1.bin`, ... or `train.bin` (see `cifar.py`);
- arrays: one `<class>.npy` per class, uint8 (images, 32, 32, 3);
- folders: one folder per class, with images of any size, each cropped to its central square and reduced to 32 by 32 by
  the mean over the area of each new pixel.

Before this: `data/datasets.py` finds folders by name, `data/synthetic.py` generates classes; after it: `continual.py`.
"""

from __future__ import annotations

import csv
from collections import OrderedDict
from pathlib import Path
from typing import Protocol

import numpy as np

from neoteny.problems.data import synthetic
from neoteny.problems.data.datasets import DATASETS, find
from neoteny.problems.data.files import DataError, fingerprint
from neoteny.problems.imagenet.batches import Batches, batch_files
from neoteny.problems.imagenet.cifar import Cifar, cifar_files

SIDE = 32
SHEET_COLUMNS = 25
CACHE_BYTES = 256 << 20
_IMAGE_ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".ppm"})


class ClassSource(Protocol):
    """Classes of images of 32 by 32."""

    @property
    def names(self) -> tuple[str, ...]:
        """The classes, in an order that does not depend on the machine."""
        ...

    @property
    def fingerprint(self) -> str:
        """A short text that identifies the data."""
        ...

    def count(self, name: str) -> int:
        """How many images a class has."""
        ...

    def load(self, name: str) -> np.ndarray:
        """The images of a class, uint8 (images, 32, 32, 3)."""
        ...


def open_source(source: str, data: Path | str | None = None) -> ClassSource:
    """Open a source by the name of a dataset, as "synthetic", or by the path of a folder of classes.

    Raises:
        DataError: data is missing or corrupt.

    Example:
        >>> classes = open_source("synthetic")
        >>> len(classes.names), classes.load("c000").shape
        (40, (60, 32, 32, 3))
    """
    if source == "synthetic":
        return Cached(synthetic.Textures())
    named = [name for name, dataset in DATASETS.items() if dataset.kind == "classes"]
    folder = find(source, data) if source in named else Path(source).expanduser()
    if not folder.is_dir():
        raise ValueError(
            f"source must be {', '.join(repr(name) for name in (*named, 'synthetic'))} or the path of a folder of "
            f"classes; got {source!r}, which is not a folder."
        )
    return Cached(_recognise(folder))


def _recognise(folder: Path) -> ClassSource:
    if (folder / "classes.tsv").is_file():
        return Sheets(folder)
    if files := batch_files(folder):
        return Batches(files)
    if files := cifar_files(folder):
        return Cifar(files)
    if any(folder.glob("*.npy")):
        return Arrays(folder)
    folders = Folders(folder)
    if folders.names:
        return folders
    raise DataError(
        f"{folder} holds no classes. Expected classes.tsv with sheets <wnid>.webp, or train_data_batch_1 and so on, or "
        "data_batch_1.bin and so on or train.bin of CIFAR, or one <class>.npy per class, or one folder of images per "
        "class."
    )


class Cached:
    """A source that remembers the classes it loaded last, up to some memory."""

    def __init__(self, source: ClassSource, limit_bytes: int = CACHE_BYTES) -> None:
        self.source = source
        self.names = source.names
        self.fingerprint = source.fingerprint
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[str, np.ndarray] = OrderedDict()

    def count(self, name: str) -> int:
        """How many images a class has."""
        return self.source.count(name)

    def load(self, name: str) -> np.ndarray:
        """The images of a class."""
        images = self._kept.pop(name, None)
        if images is None:
            images = self.source.load(name)
        self._kept[name] = images
        while len(self._kept) > 1 and sum(kept.nbytes for kept in self._kept.values()) > self._limit_bytes:
            self._kept.popitem(last=False)
        return images


class Sheets:
    """One sheet of tiles per class."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with (folder / "classes.tsv").open(newline="") as table:
            rows = list(csv.DictReader(table, delimiter="\t"))
        if not rows or "wnid" not in rows[0]:
            raise DataError(f"{folder / 'classes.tsv'}: expected a table with a column wnid, a row for each class.")
        self.names = tuple(sorted(row["wnid"] for row in rows))
        self._counts = {name: self._size(name) for name in self.names}
        self.fingerprint = fingerprint("sheets", [self._path(name) for name in self.names])

    def count(self, name: str) -> int:
        """How many images a class has."""
        return self._counts[name]

    def load(self, name: str) -> np.ndarray:
        """The tiles of a sheet."""
        sheet = read_image(self._path(name))
        rows = sheet.shape[0] // SIDE
        tiles = sheet.reshape(rows, SIDE, SHEET_COLUMNS, SIDE, 3).transpose(0, 2, 1, 3, 4)
        return np.ascontiguousarray(tiles).reshape(-1, SIDE, SIDE, 3)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.webp"

    def _size(self, name: str) -> int:
        from PIL import Image

        path = self._path(name)
        try:
            with Image.open(path) as sheet:
                width, height = sheet.size
        except (OSError, ValueError) as fault:
            raise DataError(f"{path} is missing or corrupt, but classes.tsv names it: {fault}.") from fault
        if width != SHEET_COLUMNS * SIDE or height % SIDE:
            raise DataError(
                f"{path}: expected a sheet {SHEET_COLUMNS * SIDE} pixels wide and a multiple of {SIDE} high; found "
                f"{width} by {height}."
            )
        return SHEET_COLUMNS * (height // SIDE)


class Arrays:
    """One .npy file per class."""

    def __init__(self, folder: Path) -> None:
        self._paths = {path.stem: path for path in sorted(folder.glob("*.npy"))}
        self.names = tuple(self._paths)
        self._counts = {name: len(self._open(name)) for name in self.names}
        self.fingerprint = fingerprint("arrays", self._paths.values())

    def count(self, name: str) -> int:
        """How many images a class has."""
        return self._counts[name]

    def load(self, name: str) -> np.ndarray:
        """The array of a class."""
        return np.array(self._open(name))

    def _open(self, name: str) -> np.ndarray:
        path = self._paths[name]
        try:
            images = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as fault:
            raise DataError(f"{path} is corrupt or not a plain array: {fault}.") from fault
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (SIDE, SIDE, 3):
            raise DataError(f"{path}: expected uint8 (images, 32, 32, 3); found {images.dtype} {images.shape}.")
        return images


class Folders:
    """One folder of images per class."""

    def __init__(self, folder: Path) -> None:
        found = {place.name: _images_in(place) for place in sorted(folder.iterdir()) if place.is_dir()}
        self._images = {name: images for name, images in found.items() if images}
        self.names = tuple(self._images)
        self.fingerprint = fingerprint("folders", (path for images in self._images.values() for path in images))

    def count(self, name: str) -> int:
        """How many images a class has."""
        return len(self._images[name])

    def load(self, name: str) -> np.ndarray:
        """The images of a class, cropped and reduced."""
        return np.stack([read_image(path, SIDE) for path in self._images[name]])


def _images_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in _IMAGE_ENDINGS and path.is_file())


def read_image(path: Path, side: int | None = None) -> np.ndarray:
    """An image as uint8 (height, width, 3); with a side, its central square reduced to that many pixels."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            colours = image.convert("RGB")
    except (OSError, ValueError, SyntaxError) as fault:
        raise DataError(f"{path} is corrupt or not an image: {fault}.") from fault
    if side is not None and colours.size != (side, side):
        width, height = colours.size
        edge = min(width, height)
        left, top = (width - edge) // 2, (height - edge) // 2
        box = (left, top, left + edge, top + edge)
        colours = colours.resize((side, side), Image.Resampling.BOX, box=box)
    return np.asarray(colours)
