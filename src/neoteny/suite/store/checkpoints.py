"""Checkpoints of one stack: a few, the newest last, each written whole and known by its checksum.

The checksum is part of the file's name. A file that does not match, cannot be loaded, or is of another stack is skipped
with a note, and the one before it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from neoteny.suite.store.errors import Damaged
from neoteny.suite.store.files import rename_durably, write_atomically

KEEP = 2
FORMAT = 2
"""Since 2 a checkpoint says of which stack it is."""
_REMEDY = "It is skipped."
_NAME = re.compile(r"(\d+)-([0-9a-f]{16})\.pt")


class Checkpoints:
    """The checkpoints in one folder, which has its stack's id as its name.

    Args:
        folder: where they are.
        fields: what a state must have, with the type of each.
    """

    def __init__(self, folder: Path, fields: Mapping[str, type] | None = None) -> None:
        self.folder = folder
        self._fields = dict(fields or {})

    def save(self, state: dict[str, Any]) -> Path:
        """Write the next checkpoint, then drop the oldest beyond `KEEP`."""
        check_plain(state, "checkpoint")
        present = self._files()
        number = _number(present[-1]) + 1 if present else 1
        unnamed = self.folder / "next.pt"
        hashing: list[str] = []

        def write(file: BinaryIO) -> None:
            hashed = _Hashing(file)
            content = {"format": FORMAT, "stack": self.folder.name, **state}
            try:
                torch.save(content, hashed)  # pyright: ignore[reportArgumentType]
            except RuntimeError as error:  # torch ends its file even where that cannot be written, and hides why
                raise hashed.failure or error from None
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
                return self._read(path, device), notes
            except Damaged as error:
                notes.append(str(error))
        if notes:
            notes.append("No checkpoint is left that can be used: the stack starts from the beginning.")
        return None, notes

    def _read(self, path: Path, device: torch.device) -> dict[str, Any]:
        """One checkpoint; Damaged where it cannot be used."""
        try:
            if _checksum(path) != path.stem.split("-")[1]:
                raise Damaged(path, "its checksum differs from the one in its name", _REMEDY)
            state = torch.load(path, map_location=device, weights_only=True)
        except Damaged:
            raise
        except Exception as error:  # any at all: the checksum is right, so this is a file of another kind
            reason = str(error).partition("\n")[0].rstrip(".")
            raise Damaged(path, f"it cannot be loaded ({type(error).__name__}: {reason:.200})", _REMEDY) from error
        if not isinstance(state, dict) or state.get("format") not in (1, FORMAT):
            found = f"format {state.get('format')!r:.60}" if isinstance(state, dict) else f"a {type(state).__name__}"
            raise Damaged(path, f"it must be a checkpoint of format {FORMAT}, found {found}", _REMEDY)
        if state["format"] == FORMAT and state.get("stack") != self.folder.name:
            raise Damaged(path, f"it is of stack {state.get('stack')!r:.60}", _REMEDY)
        for name, kind in self._fields.items():
            if not isinstance(state.get(name), kind):
                found = type(state[name]).__name__ if name in state else "nothing"
                raise Damaged(path, f"its field {name} must be of type {kind.__name__}, found {found}", _REMEDY)
        return state

    def clear(self) -> None:
        """Remove them, as far as that is possible: the results are written."""
        with contextlib.suppress(OSError):
            for path in [*self.folder.glob(".*.tmp"), self.folder / "next.pt", *self._files()]:
                path.unlink(missing_ok=True)
            self.folder.rmdir()

    def _files(self) -> list[Path]:
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        mine = (path for path in found if _NAME.fullmatch(path.name) and path.is_file() and not path.is_symlink())
        return sorted(mine, key=_number)


def _number(path: Path) -> int:
    return int(path.name.split("-")[0])


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
    """A file that also hashes what is written, and keeps the error of a write that failed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.hash = hashlib.sha256()
        self.failure: OSError | None = None

    def write(self, content: bytes) -> int:
        self.hash.update(content)
        try:
            return self._file.write(content)
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        self._file.flush()


def _checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
