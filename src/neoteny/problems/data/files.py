"""One file of a dataset: its published size and checksum, and whether a copy of it is correct.

After this: `download.py` fetches files, `datasets.py` knows which files a dataset has.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 1 << 18
_checksums: dict[tuple[str, int, int], str] = {}


class DataError(Exception):
    """Data is missing or corrupt: the message names the file, what was expected, and the command that repairs it."""


@dataclass(frozen=True)
class File:
    """A published file."""

    name: str
    size_bytes: int
    sha256: str


def checksum(path: Path) -> str:
    """The sha256 of a file, in hexadecimal; read again only after its size or time of change differ."""
    status = path.stat()
    key = (str(path.resolve()), status.st_size, status.st_mtime_ns)
    if key not in _checksums:
        digest = hashlib.sha256()
        with path.open("rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
        _checksums[key] = digest.hexdigest()
    return _checksums[key]


def fault_of(path: Path, file: File) -> str | None:
    """What is wrong with a copy of a file, in words, or None."""
    if not path.is_file():
        return f"{path} is missing (expected {file.size_bytes:,} bytes, sha256 {file.sha256})."
    size = path.stat().st_size
    if size != file.size_bytes:
        return f"{path} is corrupt: expected {file.size_bytes:,} bytes with sha256 {file.sha256}; found {size:,} bytes."
    found = checksum(path)
    if found != file.sha256:
        return f"{path} is corrupt: expected sha256 {file.sha256}; found {found}."
    return None


def content_of(folder: Path, file: File) -> bytes:
    """What a file holds, stored as it is or with the ending .gz; its size and checksum are those of the content.

    Raises:
        DataError: it is missing or corrupt.
    """
    plain, packed = folder / file.name, folder / f"{file.name}.gz"
    path = plain if plain.is_file() else packed
    if not path.is_file():
        raise DataError(f"{plain} is missing, with the ending .gz and without (expected sha256 {file.sha256}).")
    try:
        content = path.read_bytes() if path is plain else gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as fault:
        raise DataError(f"{path} is corrupt: {fault}.") from fault
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise DataError(
            f"{path} is corrupt: expected {file.size_bytes:,} bytes with sha256 {file.sha256} in it; found "
            f"{len(content):,} with {found}."
        )
    return content


def fingerprint(kind: str, paths: Iterable[Path], sample_bytes: int = 4096) -> str:
    """A digest of the names, sizes and first bytes of files: enough to tell apart sets that may be confused."""
    digest = hashlib.sha256(kind.encode())
    for path in paths:
        with path.open("rb") as stream:
            start = stream.read(sample_bytes)
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode() + start)
    return f"{kind}-{digest.hexdigest()[:16]}"
