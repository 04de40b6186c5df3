"""Leases: which process trains a stack, where locks of the operating system cannot tell (NFS, object stores).

A stack's leases are numbered: `leases/<stack>/000001.json`, 000002, ... Each is created exclusively by the process that
claims the stack, and the highest number holds it. The holder renews its own file ("heartbeat"). A lease may be followed
by the next number if it was released, if its process is known to be dead, or if it was not renewed while somebody
watched it for its whole time. No clocks of two machines are compared.

The number is the fence. A process that was paused, or cut off, and comes back finds a higher one. It is refused before
it writes a checkpoint or results (`Lease.check`), and results are created, never replaced (`commits`).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from neoteny.suite.store.errors import StoreError, TakenOver
from neoteny.suite.store.storage import Storage

LEASE_SECONDS = 60.0
"""A lease that was not renewed for this long may be taken over."""
FOLDER = "leases"
_BEATS_PER_LEASE = 6
_LOOKS_PER_LEASE = 12


@dataclass(frozen=True)
class Entry:
    """What a lease file holds.

    Args:
        token: the fencing number, also the file's name.
        owner: of this claim alone.
        command: of all claims of one `neoteny run` on a cluster; such a command knows when its own workers are dead.
        host: the machine (and its process numbers' name space), for "is that process still there?".
        machine: the machine's name, for people.
        pid, started: the process, and when it began in ticks of its machine.
        beat: how often it was renewed.
        at: when, by the holder's clock; for people and for `status`.
        seconds: how long it is valid after each renewal.
        released: whether its holder gave it back.
    """

    token: int
    owner: str
    command: str
    host: str
    machine: str
    pid: int
    started: int
    beat: int
    at: float
    seconds: float
    released: bool = False

    def to_bytes(self) -> bytes:
        """As the content of a file."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def parse(cls, content: bytes) -> Entry | None:
        """From the content of a file; None where it is no such file."""
        try:
            entry = cls(**json.loads(content))
        except (ValueError, TypeError, RecursionError):
            return None
        numbers = (entry.token, entry.pid, entry.started, entry.beat, entry.at, entry.seconds)
        texts = (entry.owner, entry.command, entry.host, entry.machine)
        right = all(isinstance(each, (int, float)) for each in numbers) and all(isinstance(each, str) for each in texts)
        return entry if right else None


class Leases:
    """The leases of a results folder.

    Args:
        storage: where they are.
        seconds: how long a lease is valid without being renewed.
        command: the id of this `neoteny run`; "": this process is by itself.
    """

    def __init__(self, storage: Storage, seconds: float = LEASE_SECONDS, command: str = "") -> None:
        self._storage, self.seconds, self.command = storage, seconds, command
        self._watched: dict[str, _Watched] = {}

    def claim(self, stack_id: str) -> Lease | None:
        """Take a stack, or None where another process holds it."""
        watched = self._watched.get(stack_id)
        now = time.monotonic()
        if watched is not None and now < watched.next_look:
            return None
        head = self.head(stack_id)
        if head is not None and not self._is_free(stack_id, head, now):
            return None
        self._watched.pop(stack_id, None)
        token = 1 if head is None else head.token + 1
        entry = Entry(
            token=token,
            owner=uuid.uuid4().hex,
            command=self.command,
            host=_this_host(),
            machine=socket.gethostname(),
            pid=os.getpid(),
            started=_started(os.getpid()),
            beat=0,
            at=time.time(),
            seconds=self.seconds,
        )
        if not self._storage.create(_key(stack_id, token), entry.to_bytes(), durable=False):
            return None
        return Lease(self, self._storage, stack_id, entry)

    def head(self, stack_id: str) -> Entry | None:
        """The newest lease of a stack."""
        for token in sorted(self._tokens(stack_id), reverse=True):
            try:
                content = self._storage.read(_key(stack_id, token))
            except FileNotFoundError:
                continue  # its stack has just finished
            entry = Entry.parse(content)
            if entry is None or entry.token != token:  # a damaged file: it is held until it was watched for long enough
                return Entry(token, "", "", "", "", 0, 0, 0, 0.0, self.seconds)
            return entry
        return None

    def is_held(self, stack_id: str) -> bool:
        """Whether some process seems to train the stack now; by the clock, so for people only."""
        head = self.head(stack_id)
        if head is None or head.released:
            return False
        return _is_alive(head) if head.host == _this_host() else time.time() - head.at < 2 * head.seconds

    def _is_free(self, stack_id: str, head: Entry, now: float) -> bool:
        if head.released or (self.command and head.command == self.command):
            return True
        if head.host == _this_host() and not _is_alive(head):
            return True
        state = (head.token, head.owner, head.beat)
        watched = self._watched.get(stack_id)
        if watched is None or watched.state != state:
            watched = self._watched[stack_id] = _Watched(state, now)
        watched.next_look = now + head.seconds / _LOOKS_PER_LEASE
        return now - watched.since >= head.seconds

    def _tokens(self, stack_id: str) -> list[int]:
        names = (name.removesuffix(".json") for name in self._storage.list(f"{FOLDER}/{stack_id}"))
        return [int(name) for name in names if name.isdigit()]


@dataclass
class _Watched:
    """A lease of somebody else, and since when it has looked the same."""

    state: tuple[int, str, int]
    since: float
    next_look: float = field(default=0.0)


class Lease:
    """A stack that this process holds, renewed by a thread until it is released or lost."""

    def __init__(self, leases: Leases, storage: Storage, stack_id: str, entry: Entry) -> None:
        self._leases, self._storage, self._stack_id, self._entry = leases, storage, stack_id, entry
        self._lost = False
        self._ended = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._renew, name=f"lease {stack_id}", daemon=True)
        self._thread.start()

    @property
    def token(self) -> int:
        """The fencing number: how often the stack was claimed, this time included."""
        return self._entry.token

    @property
    def lost(self) -> bool:
        """Whether it is known that another process has taken over; `check` asks."""
        return self._lost

    def check(self) -> None:
        """Make sure, before something is written, that no other process has taken over.

        Raises:
            TakenOver: one has.
            StoreError: the storage does not answer.
        """
        if not self._lost:
            head = self._leases.head(self._stack_id)
            self._lost = head is None or (head.token, head.owner) != (self.token, self._entry.owner)
        if self._lost:
            raise TakenOver(
                f"stack {self._stack_id} was taken over by another process while this one did not answer; what it "
                "computed since is left to that process"
            )

    def release(self, finished: bool) -> None:
        """Give it back; those of a finished stack are removed, lowest first, so that the fence stands to the end."""
        self._ended.set()
        with self._writing, contextlib.suppress(StoreError, OSError, TakenOver):
            self.check()
            if finished:
                for token in sorted(self._leases._tokens(self._stack_id)):
                    self._storage.remove(_key(self._stack_id, token))
            else:
                self._write(released=True)

    def _renew(self) -> None:
        while not self._ended.wait(self._entry.seconds / _BEATS_PER_LEASE):
            with self._writing, contextlib.suppress(StoreError, OSError):  # the next beat tries again
                if self._ended.is_set():
                    return
                try:
                    self.check()
                except TakenOver:
                    return
                self._write(released=False)

    def _write(self, released: bool) -> None:
        before = asdict(self._entry)
        self._entry = Entry(**{**before, "beat": self._entry.beat + 1, "at": time.time(), "released": released})
        self._storage.write(_key(self._stack_id, self.token), self._entry.to_bytes(), durable=False)


def _key(stack_id: str, token: int) -> str:
    return f"{FOLDER}/{stack_id}/{token:06d}.json"


def _is_alive(entry: Entry) -> bool:
    """Whether the process of a lease of this machine is still there: the same, not another with its number."""
    return _started(entry.pid) == entry.started


def _started(pid: int) -> int:
    """When a process began, in ticks since the machine did; -1 where there is none, 0 where it cannot be known."""
    if not Path("/proc/self/stat").exists():
        return 0
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return -1 if fields[0] in "ZX" else int(fields[19])


@cache
def _this_host() -> str:
    """The running system and the name space of its process numbers: containers of one machine differ."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # then nobody's process is known to be dead
        return uuid.uuid4().hex
