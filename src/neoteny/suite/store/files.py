"""Atomic file writes and process-bound locks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from neoteny.suite.store.errors import NoLocks, StoreError

_LOCK_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""A lock is a file of its folder: no link is followed, and no pipe is waited for."""


def write_atomically(path: Path, write: Callable[[BinaryIO], Any], durable: bool = True) -> None:
    """Write a file under a temporary name, flush it to the disk, then rename it.

    A reader sees the old file or the new one, never a half. The temporary name starts with a dot and is the same for
    every attempt, so that what a killed process left behind is overwritten, not collected; two writers of one path must
    hold a lock. `durable=False` leaves the flushing to the system, for files that are only looked at.

    What has the temporary name is removed first and never followed: in a folder from elsewhere it may be a link to
    another file. The folder itself may be a link, for example to a larger disk.

    Raises:
        StoreError: the disk is full or the folder not writable; the old file is as it was.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        make_folder(path.parent, durable)
        temporary.unlink(missing_ok=True)  # were it a link, this would write to where it points
        with open(temporary, "xb") as file:
            write(file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StoreError(_explain(path, error)) from error
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def rename_durably(path: Path, other: Path) -> None:
    """Rename a file within its folder, and make sure that a lost power supply does not undo it.

    Raises:
        StoreError: it cannot be done.
    """
    try:
        os.replace(path, other)
        sync_folder(other.parent)
    except OSError as error:
        raise StoreError(_explain(other, error)) from error


def make_folder(folder: Path, durable: bool = True) -> None:
    """Make a folder with its parents where they are missing; `durable`: a lost power supply does not undo it."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()] if durable else []
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_folder(each.parent)


def read_file(path: Path) -> bytes:
    """The contents of a regular file; OSError for anything else, which could make a reader wait without end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read()


def set_aside(root: Path, files: Iterable[Path], copy: bool = False) -> None:
    """Move files of a results folder to `damaged/`, or copy them; what is there already is never overwritten.

    Raises:
        StoreError: one cannot be moved.
    """
    target = root / "damaged"
    for path in files:
        try:
            target.mkdir(exist_ok=True)
            number, free = 1, target / path.name
            while os.path.lexists(free):
                number += 1
                free = target / f"{path.stem}-{number}{path.suffix}"
            if copy:
                free.write_bytes(read_file(path))
            else:
                path.rename(free)
        except FileNotFoundError:
            continue  # it is gone already
        except OSError as error:
            raise StoreError(f"{path} cannot be moved to {target} ({error.strerror or error}).") from error


def read_json(path: Path) -> Any:
    """A JSON file; StoreError names it if it cannot be read."""
    try:
        return json.loads(read_file(path))
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(
            f"{path} cannot be read ({error}). It may have been edited or damaged; repair it, or move it away."
        ) from error


@contextlib.contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Hold an exclusive lock, or yield False at once if another process holds it.

    The lock goes when the process ends, however it ends.
    """
    with _opened_lock(path) as descriptor:
        yield _lock(path, descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock, waiting for it: for moments, such as the writing of one small file."""
    with _opened_lock(path) as descriptor:
        _lock(path, descriptor, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _opened_lock(path: Path) -> Iterator[int]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _LOCK_FLAGS, 0o666)
    except OSError as error:
        raise StoreError(_explain(path, error)) from error
    try:
        yield descriptor
    finally:
        with contextlib.suppress(OSError):  # nothing was written, and the lock goes in any case
            os.close(descriptor)


def _lock(path: Path, descriptor: int, operation: int) -> bool:
    """Whether the lock was free."""
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        raise NoLocks(
            f"{path} cannot be locked ({error.strerror}). The file system must support locks (flock): choose a folder "
            "on another one with --out."
        ) from error
    return True


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _LOCK_FLAGS)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):  # no file, or a link, which nobody can lock
            return False
        raise StoreError(f"{path} cannot be read ({error.strerror}).") from error
    try:
        return not _lock(path, descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make names in the folder last; folders that may be written but not read cannot be synced."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _explain(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return (
            f"No space left to write {path}. Nothing that was finished is lost: free some space and repeat the "
            "command; it continues from the last checkpoint."
        )
    if error.errno == errno.ELOOP:
        return f"{path} is a symbolic link, which is not followed for writing. Remove it and repeat the command."
    return f"{path} cannot be written ({error.strerror or error}). Choose another folder with --out, or fix this one."
