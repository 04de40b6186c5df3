"""Claims: which process trains which stack of a results folder, by locks of this machine or by leases.

On one machine a lock (`flock`) is enough: it costs nothing and goes with its process. A folder in which a cluster has
worked has `leases/`, and every process uses leases there, local ones too. A local process that began before that holds
a lock alone. It is not disturbed on its own machine. Where its lock cannot be seen, a lease outranks it, and its
results are refused like those of any process that was overtaken.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from neoteny.suite.store.errors import NoLocks, StoreError, TakenOver
from neoteny.suite.store.files import is_locked, make_folder, try_lock
from neoteny.suite.store.leases import FOLDER, LEASE_SECONDS, Lease, Leases
from neoteny.suite.store.storage import FolderStorage, PatientStorage, Storage


class Claims:
    """The claims of one process on the stacks of a folder.

    Args:
        root: the folder.
        storage: where leases are; None: in the folder, as soon as it has some.
    """

    def __init__(self, root: Path, storage: Storage | None = None) -> None:
        self._root = root
        self._storage: Storage = storage or PatientStorage(FolderStorage(root))
        self._shared = storage is not None
        self._leases = Leases(self._storage)
        self._held: dict[str, Lease] = {}

    def share(self, seconds: float = LEASE_SECONDS, command: str = "") -> None:
        """Use leases from now on, because other machines work here; see `Leases`."""
        if not self._shared:
            try:
                make_folder(self._root / FOLDER)
            except OSError as error:
                raise StoreError(f"{self._root / FOLDER} cannot be made ({error.strerror}).") from error
        self._leases = Leases(self._storage, seconds, command)

    def folder_id(self, make: bool = True) -> str:
        """A name that the folder has for good, by which another machine knows that it sees the same one."""
        key = f"{FOLDER}/id"
        if make:
            self._storage.create(key, uuid.uuid4().hex.encode())
        try:
            return self._storage.read(key).decode()
        except FileNotFoundError:
            return ""

    @property
    def shared(self) -> bool:
        """Whether leases are used."""
        return self._shared or (self._root / FOLDER).is_dir()

    @contextlib.contextmanager
    def lock(self, stack_id: str, is_finished: Callable[[str], bool]) -> Iterator[bool]:
        """Hold a stack, or yield False at once if another process does."""
        lock = self._root / "locks" / f"{stack_id}.lock"
        if not self.shared:
            with try_lock(lock) as mine:
                yield mine
            return
        lease = None if _has_lock(lock) else self._leases.claim(stack_id)
        if lease is None:
            yield False
            return
        self._held[stack_id] = lease
        try:
            yield True
        finally:
            del self._held[stack_id]
            lease.release(finished=is_finished(stack_id))

    def is_held(self, stack_id: str) -> bool:
        """Whether some process trains the stack now, as far as can be seen."""
        lock = self._root / "locks" / f"{stack_id}.lock"
        if not self.shared:
            return is_locked(lock)
        return _has_lock(lock) or self._leases.is_held(stack_id)

    def lease(self, stack_id: str) -> Lease | None:
        """The lease on a stack that this process holds; None where it holds a lock."""
        return self._held.get(stack_id)

    def is_lost(self, stack_id: str) -> bool:
        """Whether this process is known to have lost a stack; costs nothing."""
        lease = self._held.get(stack_id)
        return lease is not None and lease.lost

    def guard(self, stack_id: str) -> None:
        """Refuse to write for a stack that another process has taken over.

        Raises:
            TakenOver: one has.
        """
        lease = self._held.get(stack_id)
        if lease is not None:
            lease.check()
        elif self.shared and self._leases.head(stack_id) is not None:
            raise TakenOver(f"stack {stack_id} was taken over by a process on another machine")


def _has_lock(path: Path) -> bool:
    """Whether a process that uses locks alone holds it, as far as this machine can see."""
    try:
        return is_locked(path)
    except NoLocks:
        return False
