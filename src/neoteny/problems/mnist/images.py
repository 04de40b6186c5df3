"""Images of 28 by 28: MNIST, EMNIST, generated ones, or a folder of idx files; one copy per process.

Before this: `data/datasets.py` finds and checks files, `data/synthetic.py` generates images; after it: `permuted.py`
and the problems of `relabelled/`.
"""

from __future__ import annotations

import functools
import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch

from neoteny.problems.data import synthetic
from neoteny.problems.data.datasets import DATASETS, find
from neoteny.problems.data.files import DataError, checksum
from neoteny.problems.data.labelled import LabelledImages

IMAGES = "train-images-idx3-ubyte"
LABELS = "train-labels-idx1-ubyte"
CLASSES = 10
_PREFIXES = {"emnist_balanced": "emnist-balanced-"}  # of the names of files


def open_digits(source: str, data: Path | str | None = None, classes: int | None = CLASSES) -> LabelledImages:
    """The images of a source: the name of a dataset, "synthetic", or the path of a folder of idx files.

    A named dataset must be the published one, where checksums of it are published; a folder is taken as it is. Images
    are used as the files hold them; those of EMNIST lie on their sides.

    Args:
        source: "mnist", "synthetic", a path, or with `classes=None` also "emnist_balanced".
        data: where to look first.
        classes: labels must be below this; None: any labels.

    Raises:
        DataError: data is missing or corrupt.
    """
    if source == "synthetic":
        return _generated()
    kinds = ("digits", "characters") if classes is None else ("digits",)
    named = [name for name, dataset in DATASETS.items() if dataset.kind in kinds]
    if source in named:
        folder, remedy = find(source, data), DATASETS[source].remedy
    else:
        folder, remedy = (
            Path(source).expanduser(),
            f"Place {IMAGES} and {LABELS} there, with the ending .gz or without.",
        )
        if not folder.is_dir():
            raise ValueError(
                f"source must be {', '.join(repr(name) for name in (*named, 'synthetic'))} or the path of a folder "
                f"with {IMAGES} and {LABELS}; got {source!r}, which is not a folder."
            )
    prefix = _PREFIXES.get(source, "")
    images, labels = (_present(folder, prefix + name, remedy) for name in (IMAGES, LABELS))
    try:
        found = _read((images.resolve(), checksum(images)), (labels.resolve(), checksum(labels)))
        if classes is not None and (most := int(found.labels.max())) >= classes:
            raise DataError(f"{labels}: expected labels from 0 to {classes - 1}; found {most}.")
        return found
    except DataError as fault:
        raise DataError(f"{fault} {remedy}") from fault


def read_idx(path: Path) -> np.ndarray:
    """The array of bytes in an idx file, gzipped or not.

    Raises:
        DataError: it is not an idx file, or it is incomplete.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as fault:
        raise DataError(f"{path} is corrupt: {fault}.") from fault
    axes = content[3] if len(content) > 3 else 0
    if len(content) < 4 + 4 * axes or content[:3] != b"\x00\x00\x08" or not axes:
        raise DataError(
            f"{path} is corrupt: expected an idx file of bytes, which begins with 00 00 08; found "
            f"{content[:4].hex(' ') or 'nothing'}."
        )
    shape = tuple(int.from_bytes(content[4 * axis : 4 * axis + 4], "big") for axis in range(1, axes + 1))
    found = len(content) - 4 - 4 * axes
    if found != math.prod(shape):
        raise DataError(
            f"{path} is corrupt: expected {math.prod(shape):,} bytes for the shape {shape} that it announces; found "
            f"{found:,}."
        )
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _present(folder: Path, name: str, remedy: str) -> Path:
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise DataError(f"{folder / name} is missing. {remedy}")


@functools.lru_cache(maxsize=2)
def _read(images: tuple[Path, str], labels: tuple[Path, str]) -> LabelledImages:
    """Images and labels from files with these checksums."""
    pixels, answers = read_idx(images[0]), read_idx(labels[0])
    if pixels.ndim != 3 or pixels.shape[1:] != (28, 28) or not len(pixels):
        raise DataError(f"{images[0]}: expected images of shape (N, 28, 28); found {pixels.shape}.")
    if answers.shape != pixels.shape[:1]:
        raise DataError(f"{labels[0]}: expected {len(pixels):,} labels, one for each image; found {answers.shape}.")
    return LabelledImages(
        torch.tensor(pixels.reshape(-1, 784)), torch.tensor(answers), f"{images[1][:16]}-{labels[1][:16]}"
    )


@functools.cache
def _generated() -> LabelledImages:
    images, labels = synthetic.digits()
    return LabelledImages(torch.tensor(images), torch.tensor(labels), synthetic.FINGERPRINT)
