"""Folders of images of every kind that is a source of classes."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

COUNT = 6


def some_images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def batches_of(classes: dict[str, np.ndarray]) -> list[tuple[np.ndarray, list[int]]]:
    """Three files of mixed classes, which keep the order of the images within each class."""
    parts = []
    for start in range(0, COUNT, 2):
        mixed = [(int(name), images[i]) for i in (start, start + 1) for name, images in classes.items()]
        data = np.stack([image.transpose(2, 0, 1).reshape(-1) for _, image in mixed])
        parts.append((data, [label for label, _ in mixed]))
    return parts


def make_batches(folder: Path, write: Callable[[Path, dict[str, Any]], None] | None = None) -> dict[str, np.ndarray]:
    classes = {f"{label:04d}": some_images(COUNT, label) for label in (1, 2, 1000)}
    names = ("train_data_batch_1", "train_data_batch_2", "val_data")
    for name, (data, labels) in zip(names, batches_of(classes), strict=True):
        content = {"data": data, "labels": labels, "mean": data.mean(0)}
        if write is None:
            with (folder / name).open("wb") as stream:
                pickle.dump(content, stream)
        else:
            write(folder / name, content)
    return classes


def make_npz_batches(folder: Path) -> dict[str, np.ndarray]:
    return make_batches(folder, lambda path, content: np.savez(f"{path}.npz", **content))


class Trap:
    """Unpickled by plain pickle, it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def make_cifar10(folder: Path) -> dict[str, np.ndarray]:
    """Two files of records: label, then pixels with the channels first."""
    return _write_records(folder, ("data_batch_1.bin", "data_batch_2.bin"), {"0": 0, "4": 4, "9": 9}, ())


def make_cifar100(folder: Path) -> dict[str, np.ndarray]:
    """One file of records: coarse label, fine label, pixels."""
    return _write_records(folder, ("train.bin",), {"03": 3, "40": 40, "99": 99}, (17,))


def _write_records(
    folder: Path, names: tuple[str, ...], labels: dict[str, int], before: tuple[int, ...]
) -> dict[str, np.ndarray]:
    classes = {name: some_images(COUNT, label) for name, label in labels.items()}
    records = [
        bytes([*before, labels[name]]) + images[number].transpose(2, 0, 1).tobytes()
        for number in range(COUNT)
        for name, images in classes.items()
    ]
    share = len(records) // len(names)
    for part, name in enumerate(names):
        (folder / name).write_bytes(b"".join(records[part * share : (part + 1) * share]))
    return classes
