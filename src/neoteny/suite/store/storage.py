"""Storage: where several machines meet. A folder that all of them see, or (see `objects`) a bucket of objects.

Six verbs are enough, and each is atomic: a reader sees a whole file or none. `create` is the one that leases and
results rest on: of any number of processes that create the same key, one succeeds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from neoteny.suite.store.errors import StoreError
from neoteny.suite.store.files import make_folder, read_file, sync_folder

T = TypeVar("T")
ATTEMPTS = 7
_FIRST_WAIT_SECONDS = 0.05


class Storage(Protocol):
    """Keys such as `parts/0123.json`, each with some bytes."""

    @property
    def address(self) -> str:
        """Where it is, for people."""
        ...

    def create(self, key: str, content: bytes, durable: bool = True) -> bool:
        """Write a key that is not there; False, and nothing is changed, where it is."""
        ...

    def write(self, key: str, content: bytes, durable: bool = True) -> None:
        """Write a key, or replace it."""
        ...

    def read(self, key: str) -> bytes:
        """Its content; FileNotFoundError where it is not there."""
        ...

    def exists(self, key: str) -> bool:
        """Whether it is there."""
        ...

    def list(self, folder: str) -> dict[str, str]:
        """The names directly in a folder, each with a stamp that changes when the content does."""
        ...

    def remove(self, key: str) -> None:
        """Remove a key, where it is there."""
        ...


class FolderStorage:
    """A folder of a file system that all machines see (NFS, Lustre, one machine's own disk).

    Exclusive creation is a hard link to a finished temporary file. That is atomic on NFS too, where `flock` may not be.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def address(self) -> str:
        """The folder."""
        return str(self.root)

    def create(self, key: str, content: bytes, durable: bool = True) -> bool:
        """Write a key that is not there; False where it is."""
        path = self.root / key
        if path.exists():
            return False
        temporary = self._write_temporary(path, content, durable)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
                raise StoreError(
                    f"{path} cannot be created: the file system has no hard links ({error.strerror}), which work on "
                    "several machines needs. Choose a folder on another file system with --out."
                ) from error
            raise
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
        if durable:
            sync_folder(path.parent)
        return True

    def write(self, key: str, content: bytes, durable: bool = True) -> None:
        """Write a key, or replace it."""
        path = self.root / key
        temporary = self._write_temporary(path, content, durable)
        try:
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        if durable:
            sync_folder(path.parent)

    def read(self, key: str) -> bytes:
        """Its content."""
        return read_file(self.root / key)

    def exists(self, key: str) -> bool:
        """Whether it is there."""
        return (self.root / key).exists()

    def list(self, folder: str) -> dict[str, str]:
        """The names of the files in a folder, with size, time and number of each."""
        found: dict[str, str] = {}
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.root / folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if not entry.name.startswith(".") and entry.is_file(follow_symlinks=False):
                        about = entry.stat(follow_symlinks=False)
                        found[entry.name] = f"{about.st_size}-{about.st_mtime_ns}-{about.st_ino}"
        return found

    def remove(self, key: str) -> None:
        """Remove a key, and its folder if nothing else is in it."""
        path = self.root / key
        path.unlink(missing_ok=True)
        if path.parent != self.root:
            with contextlib.suppress(OSError):
                path.parent.rmdir()

    def _write_temporary(self, path: Path, content: bytes, durable: bool) -> Path:
        """A file beside the path, under a name of its own: two writers never share one."""
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
        for again in (True, False):
            make_folder(path.parent, durable)
            try:
                with open(temporary, "xb") as file:
                    file.write(content)
                    file.flush()
                    if durable:
                        os.fsync(file.fileno())
            except FileNotFoundError:  # the folder was empty, and another process has removed it
                if not again:
                    raise
            except OSError:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                raise
            else:
                break
        return temporary


class PatientStorage:
    """Another storage, whose failures are tried again with growing pauses.

    A creation that failed may have happened all the same, its answer lost on the way. So the key is read again, and
    what is there decides: the content must tell its writer, as a lease and a part do.
    """

    def __init__(self, storage: Storage, attempts: int = ATTEMPTS) -> None:
        self._storage, self._attempts = storage, attempts

    @property
    def address(self) -> str:
        """Where it is."""
        return self._storage.address

    def create(self, key: str, content: bytes, durable: bool = True) -> bool:
        """Write a key that is not there; False where it is."""
        failed = False

        def attempt() -> bool:
            nonlocal failed
            try:
                if self._storage.create(key, content, durable):
                    return True
            except Exception:
                failed = True
                raise
            if not failed:
                return False
            try:
                return self._storage.read(key) == content
            except FileNotFoundError:
                return False

        return self._repeat(f"{key} cannot be written", attempt)

    def write(self, key: str, content: bytes, durable: bool = True) -> None:
        """Write a key, or replace it."""
        self._repeat(f"{key} cannot be written", lambda: self._storage.write(key, content, durable))

    def read(self, key: str) -> bytes:
        """Its content."""
        return self._repeat(f"{key} cannot be read", lambda: self._storage.read(key))

    def exists(self, key: str) -> bool:
        """Whether it is there."""
        return self._repeat(f"{key} cannot be looked for", lambda: self._storage.exists(key))

    def list(self, folder: str) -> dict[str, str]:
        """The names in a folder."""
        return self._repeat(f"{folder}/ cannot be read", lambda: self._storage.list(folder))

    def remove(self, key: str) -> None:
        """Remove a key."""
        self._repeat(f"{key} cannot be removed", lambda: self._storage.remove(key))

    def _repeat(self, what: str, attempt: Callable[[], T]) -> T:
        wait = _FIRST_WAIT_SECONDS
        for left in reversed(range(self._attempts)):
            try:
                return attempt()
            except (FileNotFoundError, StoreError):
                raise
            except Exception as error:  # of a driver of a storage, which has its own
                if not left or isinstance(error, (PermissionError, TypeError, ValueError)):
                    reason = " ".join(str(error).split())
                    raise StoreError(
                        f"{self.address}: {what} ({type(error).__name__}: {reason:.300}). Nothing that was finished is "
                        "lost: repeat the command when the storage answers again."
                    ) from error
            time.sleep(wait)
            wait = min(2 * wait, 3.0)
        raise AssertionError("unreachable")
