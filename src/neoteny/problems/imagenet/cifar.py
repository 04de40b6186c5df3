"""CIFAR-10 and CIFAR-100 as sources of classes: the binary version, training images alone.

A record of CIFAR-10 is a byte for the label and 3,072 for the pixels, channel first. One of CIFAR-100 has a byte for
the coarse label before that for the fine one, which is used. The version for Python is pickled, and is not read.

Before this: `data/datasets.py` finds the folder; after it: `classes.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from neoteny.problems.data.files import DataError, fingerprint

PIXELS = 3 * 32 * 32


def cifar_files(folder: Path) -> list[Path]:
    """The training files of CIFAR-10 or CIFAR-100 in a folder, in order; empty if there are none.

    Raises:
        DataError: both sets are in one folder, or it has the version for Python.
    """
    ten: list[Path] = []
    while (path := folder / f"data_batch_{len(ten) + 1}.bin").is_file():
        ten.append(path)
    hundred = [path for path in (folder / "train.bin",) if path.is_file()]
    if ten and hundred:
        raise DataError(f"{folder} holds both CIFAR-10 (data_batch_1.bin) and CIFAR-100 (train.bin). Keep one of them.")
    if not ten and not hundred and ((folder / "data_batch_1").is_file() or _is_python_version(folder / "train")):
        raise DataError(
            f"{folder} holds the version of CIFAR for Python, which is pickled. Place the files of the binary version "
            "there: data_batch_1.bin to data_batch_5.bin, or train.bin."
        )
    return ten or hundred


def _is_python_version(path: Path) -> bool:
    return path.is_file() and path.with_name("meta").is_file()


class Cifar:
    """The classes of CIFAR-10 ("0" to "9") or CIFAR-100 ("00" to "99"), by the number of their label."""

    def __init__(self, files: list[Path]) -> None:
        fine = files[0].name == "train.bin"
        classes, digits = (100, 2) if fine else (10, 1)
        parts = [read_records(path, 2 if fine else 1, classes) for path in files]
        labels = np.concatenate([part[0] for part in parts])
        order = np.argsort(labels, kind="stable")
        self.fingerprint = fingerprint("cifar", files)
        self._images = np.concatenate([part[1] for part in parts])[order]
        ends = np.cumsum(np.bincount(labels, minlength=classes))
        starts = np.concatenate(([0], ends[:-1]))
        self._ranges = {
            f"{label:0{digits}d}": slice(int(start), int(end))
            for label, (start, end) in enumerate(zip(starts, ends, strict=True))
            if end > start
        }
        self.names = tuple(self._ranges)

    def count(self, name: str) -> int:
        """How many images a class has."""
        return self._ranges[name].stop - self._ranges[name].start

    def load(self, name: str) -> np.ndarray:
        """The images of a class."""
        images = self._images[self._ranges[name]].reshape(-1, 3, 32, 32)
        return np.ascontiguousarray(images.transpose(0, 2, 3, 1))


def read_records(path: Path, label_bytes: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels uint8 (N,) and pixels uint8 (N, 3072) of one file.

    Raises:
        DataError: its length is not that of whole records, or a label is too large.
    """
    record = label_bytes + PIXELS
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as fault:
        raise DataError(f"{path} cannot be read: {fault.strerror}.") from fault
    if not len(content) or len(content) % record:
        raise DataError(
            f"{path} is corrupt: expected records of {record:,} bytes, {label_bytes} for labels and {PIXELS:,} for "
            f"pixels; found {len(content):,} bytes, which are not a whole number of them."
        )
    records = content.reshape(-1, record)
    labels = records[:, label_bytes - 1]
    if labels.max() >= classes:
        raise DataError(f"{path} is corrupt: expected labels from 0 to {classes - 1}; found {labels.max()}.")
    return labels, records[:, label_bytes:]
