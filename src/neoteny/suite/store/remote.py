"""RemoteResults: a results folder in a storage that is no file system (`--out s3://bucket/prefix`).

The storage is the truth. A process has a copy of what it needs in a folder of its own, works there as in any results
folder, and what it writes goes to the storage: experiment, plan and progress as they change, checkpoints when they are
saved, a part when its stack is finished (`commits`). What it reads is fetched before, if it has changed. Claims are
leases in the storage.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from neoteny.suite.store.checkpoints import Checkpoints
from neoteny.suite.store.claims import Claims
from neoteny.suite.store.commits import commit
from neoteny.suite.store.documents import seal
from neoteny.suite.store.errors import Damaged, StoreError, TakenOver
from neoteny.suite.store.index import Signatures
from neoteny.suite.store.leases import FOLDER as LEASES
from neoteny.suite.store.objects import check_storage, open_storage
from neoteny.suite.store.records import PartRecord
from neoteny.suite.store.results import CHECKPOINT, Results
from neoteny.suite.store.storage import FolderStorage, Storage

TOP = ("experiment.json", "experiment.py", "plan.json", "analysis.json", "jobs.json")
_STAMPS = ".stamps.json"
"""Which state of each file the copy has."""
FIRST_ATTEMPTS = 3
"""When somebody waits to hear whether an address is right."""
_LOOK_SECONDS = 2.0
_FETCH_SECONDS = 3.0
_PROGRESS_SECONDS = 5.0


def copy_folder(address: str) -> Path:
    """Where this machine keeps its copy of a remote folder, for people to look at: in the cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(address.rstrip("/").encode()).hexdigest()[:16]
    return cache / "neoteny" / "results" / f"{address.rstrip('/').rpartition('/')[2]}-{digest}"


def fetch_results(address: str) -> Path:
    """Fetch a remote results folder, or what has changed of it, for commands that read; returns the copy.

    Raises:
        StoreError: it cannot be read, or there is none.
    """
    storage = open_storage(address, FIRST_ATTEMPTS)
    copy = _Copy(storage, copy_folder(address))
    copy.fetch_top()
    if not (copy.root / "experiment.json").exists():
        raise StoreError(f"{address} is not a results folder: it has no experiment.json.")
    for folder in ("parts", "progress", "unfinished"):
        copy.fetch(folder)
    begun = {path.stem for path in (copy.root / "progress").glob("[0-9a-f]*.json")}
    begun -= {path.stem for path in (copy.root / "parts").glob("*.parquet")}
    for path in (copy.root / LEASES).glob("*"):
        if path.name not in begun:
            shutil.rmtree(path, ignore_errors=True)
    for stack in begun:
        copy.fetch(f"{LEASES}/{stack}")  # they tell what is running
    return copy.root


@contextlib.contextmanager
def fetching(address: str) -> Iterator[None]:
    """Fetch what has changed of a remote folder again and again, for commands that show it while it is written.

    A storage that does not answer is asked again; until then its last state is shown.
    """
    stop = threading.Event()

    def fetch_again_and_again() -> None:
        took = 0.0
        while not stop.wait(max(_FETCH_SECONDS, 5 * took)):
            began = time.monotonic()
            with contextlib.suppress(StoreError, OSError):
                fetch_results(address)
            took = time.monotonic() - began

    threading.Thread(target=fetch_again_and_again, name="fetch", daemon=True).start()
    try:
        yield
    finally:
        stop.set()


def _own_copy() -> Path:
    """A new folder for the copy of this process; those of processes that are gone are removed."""
    space = os.stat("/proc/self/ns/pid").st_ino if Path("/proc/self/ns/pid").exists() else 0
    prefix = f"neoteny-copy-{space}-"
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        pid = left.name.removeprefix(prefix).partition("-")[0]
        if space and pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-"))


class RemoteResults(Results):
    """One results folder in a storage, with a copy on this machine."""

    def __init__(self, root: Path, storage: Storage) -> None:
        super().__init__(root)
        self._remote, self._copy = storage, _Copy(storage, root)
        self.claims = Claims(root, storage)
        self._looked: dict[str, float] = {}
        self._finished: set[str] = set()
        self._shown: dict[str, tuple[str, float]] = {}

    @property
    def address(self) -> str:
        """The storage's address."""
        return self._remote.address

    @classmethod
    def begin(
        cls, address: str, about: Mapping[str, Any], source: bytes | None = None, repair: bool = False
    ) -> RemoteResults:
        """Open a remote folder for a run, as `Results.create` does with a local one."""
        check_storage(open_storage(address, FIRST_ATTEMPTS))
        storage = open_storage(address)
        if not storage.exists("experiment.json"):
            shutil.rmtree(copy_folder(address), ignore_errors=True)  # of a folder that was removed
        results = cls(copy_folder(address), storage)
        for again in (True, False):
            results._copy.fetch_top()
            results._copy.fetch("parts")
            is_new = not (results.root / "experiment.json").exists()
            before = set(FolderStorage(results.root).list("parts"))
            Results.create(results.root, about, source, repair, shared=True)
            content = (results.root / "experiment.json").read_bytes()
            if not is_new or storage.create("experiment.json", content):
                break
            if not again:
                raise StoreError(f"{address}: another command began there at the same time. Repeat this one.")
            (results.root / "experiment.json").unlink()  # another command was first; ours must agree with it
        for name in TOP:
            results.push(name)
        for name in before.difference(FolderStorage(results.root).list("parts")):  # --repair has moved it away
            storage.remove(f"parts/{name}")
        return results

    @classmethod
    def join(cls, address: str) -> RemoteResults:
        """Open a remote folder that another process has begun, to train some of its stacks."""
        results = cls(_own_copy(), open_storage(address))
        results._copy.fetch_top()
        _ = results.about
        return results

    def discard(self) -> None:
        """Remove the copy."""
        shutil.rmtree(self.root, ignore_errors=True)

    @contextlib.contextmanager
    def lock(self, stack_id: str) -> Iterator[bool]:
        """Hold a stack, or yield False; the storage is asked whether it was finished meanwhile."""
        with super().lock(stack_id) as mine:
            keys = (f"parts/{stack_id}.json", f"parts/{stack_id}.parquet")
            if mine and stack_id not in self._finished and all(map(self._remote.exists, keys)):
                self._finished.add(stack_id)
            yield mine

    # Writing

    def _write(self, name: str, content: bytes, shared: bool) -> None:
        super()._write(name, content, shared=True)
        self.push(name)

    def push(self, name: str) -> None:
        """Send a file of the copy to the storage, where there is one."""
        with contextlib.suppress(FileNotFoundError):
            self._remote.write(name, (self.root / name).read_bytes())

    def checkpoints(self, stack_id: str) -> Checkpoints:
        """The checkpoints of a stack."""
        return _RemoteCheckpoints(self._copy, stack_id)

    def write_progress(self, stack_id: str, progress: Mapping[str, Any]) -> None:
        """Write how far a stack is; to the storage when its state changes, and now and then."""
        super().write_progress(stack_id, progress)
        state, at = self._shown.get(stack_id, ("", 0.0))
        if progress["state"] != state or time.monotonic() - at >= _PROGRESS_SECONDS:
            self._shown[stack_id] = (progress["state"], time.monotonic())
            self.push(f"progress/{stack_id}.json")

    def write_unfinished(self, stack: Any, training: Any) -> None:
        """Write the results of an unfinished stack so far."""
        super().write_unfinished(stack, training)
        self.push(f"unfinished/{stack.stack_id}.parquet")

    def _write_part(self, stack_id: str, about: Mapping[str, Any], table: bytes) -> None:
        lease = self.claims.lease(stack_id)
        if lease is None:
            raise TakenOver(f"stack {stack_id} is not held by this process")
        commit(self._remote, lease, stack_id, seal({**about, "lease": lease.token}), table)
        self._finished.add(stack_id)
        with contextlib.suppress(StoreError):  # the next command removes it
            self._remote.remove(f"unfinished/{stack_id}.parquet")

    def clear_finished(self) -> None:
        """Nothing: what is left of a finished stack in the storage does no harm, and is removed when it is finished."""

    # Reading

    def progress_of(self, stack_id: str) -> dict[str, Any] | None:
        """How far one stack is."""
        with contextlib.suppress(StoreError, FileNotFoundError):
            key = f"progress/{stack_id}.json"
            FolderStorage(self.root).write(key, self._remote.read(key), durable=False)
        return super().progress_of(stack_id)

    def is_finished(self, stack_id: str) -> bool:
        """Whether the stack's results are there."""
        if stack_id not in self._finished and self._is_time("finished"):
            names = self._remote.list("parts")
            tables = {name.removesuffix(".parquet") for name in names if name.endswith(".parquet")}
            self._finished = {each for each in tables if f"{each}.json" in names}
        return stack_id in self._finished

    def check_progress(self, skip_finished: bool = False) -> tuple[dict[str, dict[str, Any]], list[Damaged]]:
        """How far each begun stack is, and the damaged files."""
        if self._is_time("progress"):
            with contextlib.suppress(StoreError):  # what was fetched before is shown
                self._copy.fetch("progress")
        return super().check_progress(skip_finished)

    def signatures(self) -> Signatures:
        """The stacks whose parts count, as the storage has them."""
        self._fetch_parts()
        return super().signatures()

    def records(self) -> list[PartRecord]:
        """What is known about each finished stack, as the storage has them."""
        self._fetch_parts()
        return super().records()

    def _fetch_parts(self) -> None:
        if self._is_time("parts"):
            self._copy.fetch("parts")

    def refresh(self) -> None:
        """Look at the storage again at the next question."""
        self._looked.clear()

    def _is_time(self, what: str) -> bool:
        now = time.monotonic()
        if now - self._looked.get(what, -_LOOK_SECONDS) < _LOOK_SECONDS:
            return False
        self._looked[what] = now
        return True


class _RemoteCheckpoints(Checkpoints):
    """Checkpoints that are fetched before they are loaded, and sent when they are saved."""

    def __init__(self, copy: _Copy, stack_id: str) -> None:
        super().__init__(copy.root / "checkpoints" / stack_id, CHECKPOINT)
        self._copy, self._key = copy, f"checkpoints/{stack_id}"

    def save(self, state: dict[str, Any]) -> Path:
        """Write the next checkpoint, send it, and drop the oldest, here and there."""
        path = super().save(state)
        self._copy.storage.write(f"{self._key}/{path.name}", path.read_bytes())
        kept = {each.name for each in self._files()}
        for name in self._copy.storage.list(self._key):
            if name not in kept:
                self._copy.storage.remove(f"{self._key}/{name}")
        return path

    def load(self, device: Any) -> tuple[dict[str, Any] | None, list[str]]:
        """The newest checkpoint that is whole, of those in the storage."""
        self._copy.fetch(self._key)
        return super().load(device)

    def clear(self) -> None:
        """Remove them, as far as that is possible."""
        super().clear()
        with contextlib.suppress(StoreError):
            for name in self._copy.storage.list(self._key):
                self._copy.storage.remove(f"{self._key}/{name}")


class _Copy:
    """Files of a storage in a folder of this machine: fetched if they have changed, removed if they are gone."""

    def __init__(self, storage: Storage, root: Path) -> None:
        self.storage, self.root = storage, root
        self._files = FolderStorage(root)
        self._stamps: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError):
            self._stamps = dict(json.loads((root / _STAMPS).read_bytes()))

    def fetch_top(self) -> None:
        """The files of the folder itself."""
        self._fetch("", {name: stamp for name, stamp in self.storage.list("").items() if name in TOP}, TOP)

    def fetch(self, folder: str) -> None:
        """The files of a folder."""
        self._fetch(f"{folder}/", self.storage.list(folder), self._files.list(folder))

    def _fetch(self, folder: str, there: Mapping[str, str], here: Any) -> None:
        changed = False
        for name in here:
            if name not in there:
                with contextlib.suppress(OSError):
                    self._files.remove(f"{folder}{name}")
        # Descriptions come before tables, so that a part is whole when its table appears.
        for name in sorted(there, key=lambda each: (not each.endswith(".json"), each)):
            key = f"{folder}{name}"
            if self._stamps.get(key) == there[name] and self._files.exists(key):
                continue
            with contextlib.suppress(FileNotFoundError):  # it is gone again
                self._files.write(key, self.storage.read(key), durable=False)
                self._stamps[key] = there[name]
                changed = True
        if changed:
            self._files.write(_STAMPS, json.dumps(self._stamps).encode(), durable=False)
