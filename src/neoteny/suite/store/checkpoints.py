"""Checkpoints of one stack: a few, the newest last, each written whole and known by its checksum.

The checksum is part of the file's name. A file that does not match is skipped with a note, and the one
before it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from neoteny.suite.store.files import rename_durably, write_atomically

KEEP = 2
FORMAT = 1


class Checkpoints:
    """The checkpoints in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, state: dict[str, Any]) -> Path:
        """Write the next checkpoint, then drop the oldest beyond `KEEP`."""
        check_plain(state, "checkpoint")
        present = self._files()
        number = int(present[-1].name.split("-")[0]) + 1 if present else 1
        unnamed = self.folder / "next.pt"
        hashing: list[str] = []

        def write(file: BinaryIO) -> None:
            hashed = _Hashing(file)
            torch.save({"format": FORMAT, **state}, hashed)  # pyright: ignore[reportArgumentType]
            hashing.append(hashed.hash.hexdigest()[:16])

        write_atomically(unnamed, write)
        path = self.folder / f"{number:06d}-{hashing[0]}.pt"
        rename_durably(unnamed, path)  # before older ones go
        for old in self._files()[:-KEEP]:
            with contextlib.suppress(OSError):  # one too many does no harm
                old.unlink()
        return path

    def load(self, device: torch.device) -> tuple[dict[str, Any] | None, list[str]]:
        """The newest checkpoint that is whole (or None), and notes on those that were skipped."""
        notes: list[str] = []
        for path in reversed(self._files()):
            try:
                found = _checksum(path)
            except OSError as error:
                notes.append(f"{path} cannot be read ({error.strerror}) and is skipped.")
                continue
            if found != path.stem.split("-")[1]:
                notes.append(f"{path} is damaged (its checksum differs) and is skipped.")
                continue
            state = torch.load(path, map_location=device, weights_only=True)
            if state.get("format") == FORMAT:
                return state, notes
            notes.append(f"{path} is of format {state.get('format')}, this version writes {FORMAT}; it is skipped.")
        if notes:
            notes.append("No checkpoint is left that can be used: the stack starts from the beginning.")
        return None, notes

    def clear(self) -> None:
        """Remove them, as far as that is possible: the results are written."""
        with contextlib.suppress(OSError):
            for path in [*self.folder.glob(".*.tmp"), self.folder / "next.pt", *self._files()]:
                path.unlink(missing_ok=True)
            self.folder.rmdir()

    def _files(self) -> list[Path]:
        found = self.folder.glob("[0-9]*-*.pt") if self.folder.is_dir() else ()
        return sorted(path for path in found if path.is_file() and not path.is_symlink())


def check_plain(value: Any, place: str) -> None:
    """Refuse what could be saved but not loaded again; only plain values are loaded, never code."""
    if isinstance(value, dict):
        for key, item in value.items():
            check_plain(item, f"{place}.{key}")
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            check_plain(item, f"{place}[{number}]")
    elif (value is not None and not isinstance(value, (torch.Tensor, bool, int, float, str))) or isinstance(
        value, np.generic
    ):
        raise TypeError(
            f"{place} is a {type(value).__name__}. A state may hold tensors, numbers, strings, lists and dicts; turn "
            "it into one of these (of a method: in its `export`)."
        )


class _Hashing:
    """A file that also hashes what is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.hash = hashlib.sha256()

    def write(self, content: bytes) -> int:
        self.hash.update(content)
        return self._file.write(content)

    def flush(self) -> None:
        self._file.flush()


def _checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
