"""The public downsampled ImageNet as a source of classes: `train_data_batch_1`, ..., pickled or as .npz.

Each file holds `data`, uint8 (N, 3072), channel first, and `labels` from 1 to 1000, with the classes mixed. So the
images are sorted by class once, into one memory-mapped array in the user's cache folder, from which a class is a
slice. A class has its training images in the order of the files, then those of `val_data`, where that file is
present.

Pickles can run any code when they are loaded. These are read by an unpickler that knows numpy arrays of numbers,
lists, dicts and numbers, and refuses everything else. Before this: `data/files.py` and `data/download.py`;
after it: `classes.py`.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from neoteny.problems.data.datasets import cache_folder
from neoteny.problems.data.download import locked
from neoteny.problems.data.files import DataError, fingerprint

PIXELS = 3 * 32 * 32
_NUMBERS = frozenset({"u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"})


def batch_files(folder: Path) -> list[Path]:
    """The batch files in a folder, in order; empty if there are none."""
    train = []
    while (path := _either(folder, f"train_data_batch_{len(train) + 1}")) is not None:
        train.append(path)
    last = _either(folder, "val_data")
    return [*train, last] if train and last is not None else train


def _either(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.npz") if path.is_file()), None)


class Batches:
    """Classes 0001 to 1000 of batch files."""

    def __init__(self, files: list[Path]) -> None:
        self.fingerprint = fingerprint("batches", files)
        folder = cache_folder() / self.fingerprint
        if not folder.is_dir():
            cache_folder().mkdir(parents=True, exist_ok=True)
            with locked(cache_folder()):
                if not folder.is_dir():
                    sort_by_class(files, folder)
        self._images = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
        labels, starts = np.load(folder / "starts.npy", allow_pickle=False)
        ends = [*starts[1:], len(self._images)]
        self._ranges = {f"{label:04d}": slice(a, b) for label, a, b in zip(labels, starts, ends, strict=True)}
        self.names = tuple(self._ranges)

    def count(self, name: str) -> int:
        """How many images a class has."""
        return self._ranges[name].stop - self._ranges[name].start

    def load(self, name: str) -> np.ndarray:
        """The images of a class."""
        return np.array(self._images[self._ranges[name]])


def sort_by_class(files: list[Path], folder: Path) -> None:
    """Write the images of all files, sorted by class, into a new folder: images.npy, and starts.npy (2, classes).

    The rows of starts.npy are the labels and the number of each one's first image. The files are read twice, one at a
    time: together they may be larger than the memory.
    """
    labels = [read_batch(path)[1] for path in files]
    order = np.argsort(np.concatenate(labels), kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))  # image i of all goes to places[i]
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as made:
        new = Path(made) / "new"
        new.mkdir()
        shape = (len(order), 32, 32, 3)
        images = np.lib.format.open_memmap(new / "images.npy", mode="w+", dtype=np.uint8, shape=shape)
        done = 0
        for path in files:
            data = read_batch(path)[0].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            images[places[done : done + len(data)]] = data
            done += len(data)
        images.flush()
        del images
        np.save(new / "starts.npy", np.stack(np.unique(np.concatenate(labels)[order], return_index=True)))
        for path in new.iterdir():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
        os.rename(new, folder)


def read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pixels uint8 (N, 3072) and labels int64 (N,) of one file.

    Raises:
        DataError: the file is corrupt, or holds anything but such arrays.
    """
    try:
        with path.open("rb") as stream:
            if path.suffix == ".npz":
                with np.load(stream, allow_pickle=False) as arrays:
                    content: Any = {name: arrays[name] for name in ("data", "labels")}
            else:
                content = ArrayUnpickler(stream, encoding="latin1").load()
        data, labels = _plain(content["data"]), _plain(content["labels"])
    except (pickle.UnpicklingError, zipfile.BadZipFile, EOFError, OSError) as fault:
        raise DataError(f"{path} is corrupt or not a batch of images: {fault}") from fault
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as fault:
        raise DataError(f"{path} is not a batch of images with data and labels: {fault!r}.") from fault
    whole = data.dtype == np.uint8 and data.ndim == 2 and data.shape[1] == PIXELS
    if not whole or labels.shape != data.shape[:1] or labels.dtype.kind not in "iu":
        raise DataError(
            f"{path}: expected data uint8 (N, {PIXELS}) and N whole labels; found {data.dtype} {data.shape} and "
            f"{labels.dtype} {labels.shape}."
        )
    return data, labels.astype(np.int64)


class ArrayUnpickler(pickle.Unpickler):
    """Loads arrays of numbers in lists and dicts, and refuses everything else before it is made.

    Arrays and their dtypes become `PickledArray` and `PickledType`: numpy itself trusts the states in a pickle.
    """

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        """Stand-ins for the few functions by which arrays are rebuilt."""
        home = module.replace("numpy._core.", "numpy.core.", 1)
        if (home, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, not part of an array of numbers; refused.")
        return _ADMITTED[home, name]


class PickledType:
    """A dtype of numbers of one size, in either byte order."""

    def __init__(self, code: str, *flags: Any) -> None:
        if code not in _NUMBERS:
            raise pickle.UnpicklingError(f"it holds an array of {code!r}, expected numbers; refused.")
        self.code = code
        self.byte_order = "="

    def __setstate__(self, state: Any) -> None:
        _version, byte_order, *parts = state
        if byte_order not in ("<", ">", "|", "=") or any(part is not None for part in parts[:3]):
            raise pickle.UnpicklingError("it holds an array with fields, expected plain numbers; refused.")
        self.byte_order = byte_order

    def read(self, content: bytes | bytearray, shape: tuple[int, ...], order: Literal["C", "F"]) -> np.ndarray:
        """The array with this content."""
        return np.frombuffer(content, np.dtype(self.byte_order + self.code)).reshape(shape, order=order)


class PickledArray:
    """An array on its way out of a pickle: made empty, then given its state."""

    def __init__(self, *description: Any) -> None:
        self.array = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _version, shape, kind, fortran, content = state
        self.array = _from_buffer(content, kind, shape, "F" if fortran else "C")


def _from_buffer(content: Any, kind: Any, shape: Any, order: Any) -> np.ndarray:
    if isinstance(content, str):  # bytes of a pickle made by Python 2
        content = content.encode("latin1")
    if not isinstance(kind, PickledType) or not isinstance(content, (bytes, bytearray)):
        raise pickle.UnpicklingError("it holds an array that is not one of numbers; refused.")
    return kind.read(content, shape, "F" if order == "F" else "C")


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it holds bytes encoded as {encoding!r}, expected latin1; refused.")
    return text.encode("latin1")


def _plain(value: Any) -> np.ndarray:
    return value.array if isinstance(value, PickledArray) else np.asarray(value)


_ADMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): PickledType,
    ("numpy", "ndarray"): PickledArray,
    ("numpy.core.multiarray", "_reconstruct"): PickledArray,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _encode,
}
