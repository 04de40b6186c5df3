"""The index of a results folder: what its many small files say, kept in one file, so that 20,000 need not be read.

The index is never the truth. An entry is used only while its file has the size, times and inode that it had when it was
read and checked; anything else is read again, as if there were no index. A missing, old or damaged index costs time and
nothing more. Small folders have none.

Only the standard library is used here, so that `neoteny status` starts at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from neoteny.suite.store.errors import StoreError
from neoteny.suite.store.files import read_file, try_lock, write_atomically

FORMAT = 1
FOLDER = "index"
"""The folder of a results folder that the index is in."""
FEWEST_RUNS = 500
"""Folders with fewer finished runs are read in a moment, and have no index."""
SETTLED_SECONDS = 2.0
"""A file that changed less than this before it was read may change once more within one tick of the file system's
clock, which its times would not show. It is read again the next time."""

_FIRST = "0123456789abcdef"

Signature = list[int]
"""Size, time of the last change of content, time of the last change of anything, inode."""
Signatures = Mapping[str, tuple[Signature, Signature]]
"""Of the table and the description of each part."""


def sign(found: os.stat_result) -> Signature:
    """What an entry of the index is compared with."""
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def is_worthwhile(runs: int) -> bool:
    """Whether a folder with so many runs gets an index."""
    return runs >= FEWEST_RUNS


def is_settled(*signatures: Signature) -> bool:
    """Whether files have not changed for a while, so that the next change will show in their times."""
    return max(max(one[1], one[2]) for one in signatures) < time.time_ns() - SETTLED_SECONDS * 1e9


def list_names(folder: Path, suffix: str) -> set[str]:
    """The files of a folder whose names end so, without the ending; hidden ones are left out."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return {name.removesuffix(suffix) for name in os.listdir(folder) if name.endswith(suffix) and name[0] in _FIRST}
    return set()


def list_paired_names(folder: Path, first: str, second: str) -> set[str]:
    """The names of a folder that have a file of either ending; hidden ones are left out."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        found = set(os.listdir(folder))
        names = (name.removesuffix(first) for name in found if name.endswith(first) and name[0] in _FIRST)
        return {name for name in names if name + second in found}
    return set()


def list_files(folder: Path, suffix: str, names: Container[str] | None = None) -> dict[str, Signature]:
    """The files of a folder whose names end so: their names without the ending, sorted, with their signatures.

    Hidden files and links to nowhere are left out.

    Args:
        folder: where.
        suffix: the ending.
        names: of the files that are wanted, without the ending; None: all.
    """
    return dict(sorted(_scan(folder, (suffix,), names)[suffix].items()))


def list_pairs(folder: Path, first: str, second: str) -> dict[str, tuple[Signature, Signature]]:
    """The names that have a file of either ending, sorted, with the signatures of both; otherwise as `list_files`."""
    found = _scan(folder, (first, second))
    others = found[second]
    return {name: (signature, others[name]) for name, signature in sorted(found[first].items()) if name in others}


def _scan(
    folder: Path, suffixes: tuple[str, ...], names: Container[str] | None = None
) -> dict[str, dict[str, Signature]]:
    """The signatures of a folder's files by ending and name; one look at the folder for all endings."""
    found: dict[str, dict[str, Signature]] = {suffix: {} for suffix in suffixes}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            name, dot, ending = entry.name.rpartition(".")
            if dot + ending in found and name[:1] in _FIRST and name and (names is None or name in names):
                with contextlib.suppress(OSError):
                    found[dot + ending][name] = sign(entry.stat())
    return found


class Index:
    """The entries of one kind, read from their file when first asked for.

    Args:
        root: the results folder.
        name: of the file.
        owner: what the entries depend on besides their files; where it differs, there are no entries.
    """

    def __init__(self, root: Path, name: str, owner: Mapping[str, Any]) -> None:
        self._path = root / FOLDER / name
        self._head = {"format": FORMAT, "owner": dict(owner)}
        self._entries: dict[str, list[Any]] = self._load()
        self._new = 0

    def find(self, name: str, *signatures: Signature | None) -> Any:
        """What was made of a file, or of several; None where it must be read. None for a signature: any will do."""
        entry = self._entries.get(name)
        if entry is None or len(entry[0]) != len(signatures):
            return None
        known = entry[0]
        return entry[1] if all(one is None or one == known[i] for i, one in enumerate(signatures)) else None

    def put(self, name: str, content: Any, *signatures: Signature) -> None:
        """Keep what was made of files that had these signatures before they were read; content is what JSON holds."""
        if is_settled(*signatures):
            self._entries[name] = [list(signatures), content]
            self._new += 1

    def save(self, names: Container[str]) -> None:
        """Write the file where enough has changed; entries of other names than these are forgotten.

        A folder that cannot be written has no index, which is no error.
        """
        if self._new < max(1, len(self._entries) // 50):
            return
        self._entries = {name: entry for name, entry in self._entries.items() if name in names}
        self._new = 0
        text = json.dumps({**self._head, "entries": self._entries}, separators=(",", ":")).encode()
        save_sealed(self._path, text)

    def _load(self) -> dict[str, list[Any]]:
        content = read_sealed(self._path)
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            found = json.loads(content or b"null")
            if {key: found[key] for key in self._head} == self._head:
                return {name: [signatures, content] for name, (signatures, content) in found["entries"].items()}
        return {}


def read_sealed(path: Path) -> bytes | None:
    """The content of a file that `save_sealed` wrote; None where it is missing or is not what was written."""
    try:
        content = memoryview(read_file(path))
    except OSError:
        return None
    return bytes(content[65:]) if bytes(content[:64]) == _digest(content[65:]) else None


def save_sealed(path: Path, content: bytes) -> None:
    """Write a file of the index with its checksum in front; where it cannot be written, nothing happens.

    The index of somebody else's folder may be a link to another folder: nothing is written there.
    """
    if path.parent.is_symlink():
        return
    with contextlib.suppress(StoreError, OSError):
        path.parent.mkdir(exist_ok=True)
        with try_lock(path.with_name(f".{path.name}.lock")) as mine:
            if mine:
                pieces = (_digest(content), b"\n", content)
                write_atomically(path, lambda file: file.writelines(pieces), durable=False)


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
