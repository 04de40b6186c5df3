"""Atomic downloads that resume after an interruption and are verified.

A file grows under a dot-prefixed name with the ending .part; only when its checksum is right does it get its own
name. A part survives a broken connection or a killed process, and the next download goes on where it ended. Before
this: `files.py`; after it: `datasets.fetch`.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

from neoteny.problems.data.files import CHUNK_BYTES, DataError, File, checksum

Progress = Callable[[str, int, int], None]
"""Called with a file's name, the bytes there are, and the bytes there will be."""

_ATTEMPTS = 4
_TIMEOUT_SECONDS = 30.0
_CUT_SHORT = (OSError, http.client.HTTPException)  # URLError, timeouts and resets are OSErrors


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A lock on a folder: one process at a time, the others wait. It is released when its process dies."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    with (folder / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def download(file: File, mirrors: Sequence[str], folder: Path, progress: Progress | None = None) -> Path:
    """Download a file into a folder from the first mirror that has the right one.

    Raises:
        DataError: no mirror gave it. What came of it is kept for the next attempt, unless its checksum was wrong.
    """
    path = folder / file.name
    part = folder / f".{file.name}.part"
    faults: list[str] = []
    for mirror in mirrors:
        url = mirror + file.name
        for _ in range(_ATTEMPTS):
            before = part.stat().st_size if part.exists() else 0
            try:
                _continue(url, part, file, progress)
            except _CUT_SHORT as fault:
                faults.append(f"{url}: {str(fault) or type(fault).__name__}")
                now = part.stat().st_size if part.exists() else 0
                if now <= before:  # nothing came: another attempt now would also fail
                    break
                continue
            found = checksum(part)
            if found == file.sha256:
                _publish(part, path)
                return path
            part.unlink()
            faults.append(f"{url}: expected sha256 {file.sha256}; found {found}")
            if not before:  # a part of another mirror or time may have been at fault; a whole file was not
                break
    kept = f" {part.stat().st_size:,} bytes are kept; the next attempt goes on from there." if part.exists() else ""
    raise DataError(
        f"Could not download {file.name} (expected sha256 {file.sha256}): {'; '.join(faults)}.{kept} Check the "
        f"connection and try again, or place the file into {folder} yourself."
    )


def _continue(url: str, part: Path, file: File, progress: Progress | None) -> None:
    """Append what a part lacks, up to one byte beyond the expected size, which is enough to recognise a wrong file."""
    have = part.stat().st_size if part.exists() else 0
    if have > file.size_bytes:
        part.unlink()
        have = 0
    if have == file.size_bytes:
        return
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
        resumes = answer.status == 206 and (answer.headers.get("Content-Range") or "").startswith(f"bytes {have}-")
        if have and not resumes:  # a server that does not know ranges sends the whole
            have = 0
        with _opened(part, "ab" if have else "wb") as stream:
            while have <= file.size_bytes and (chunk := answer.read(CHUNK_BYTES)):
                _write(stream, chunk, part)
                have += len(chunk)
                if progress is not None:
                    progress(file.name, min(have, file.size_bytes), file.size_bytes)
    if have < file.size_bytes:
        raise ConnectionError(f"the connection ended after {have:,} of {file.size_bytes:,} bytes")


def _opened(part: Path, mode: Literal["ab", "wb"]) -> BinaryIO:
    try:
        return part.open(mode, buffering=0)  # nothing is held back that closing would have to write
    except OSError as fault:
        raise DataError(f"Could not write {part}: {fault.strerror}. Choose another folder.") from fault


def _write(stream: BinaryIO, chunk: bytes, part: Path) -> None:
    rest = memoryview(chunk)
    try:
        while rest:
            rest = rest[stream.write(rest) :]
    except OSError as fault:
        raise DataError(f"Could not write {part}: {fault.strerror}. Make room, or choose another folder.") from fault


def _publish(part: Path, path: Path) -> None:
    """Rename a verified part to its final name; its bytes and then its name are forced to the disk."""
    with part.open("rb") as stream:
        os.fsync(stream.fileno())
    os.replace(part, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
