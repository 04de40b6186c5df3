"""Faults of real system calls (`failing_calls.c`), and what a power failure would leave of a folder."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
ACTIONS = ("count", "fails", "fails from here on", "writes half", "killed before", "killed after")
"""In the order of the enumeration in the C file."""

ERRORS = {
    "create": (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EMFILE),
    "reopen": (errno.EIO, errno.EROFS, errno.EMFILE),
    "open": (errno.EIO, errno.EMFILE),
    "read": (errno.EIO,),
    "write": (errno.ENOSPC, errno.EIO),
    "fsync": (errno.ENOSPC, errno.EIO),
    "ftruncate": (errno.EIO,),
    "close": (errno.ENOSPC, errno.EIO),
    "rename": (errno.ENOSPC, errno.EIO, errno.EROFS),
    "unlink": (errno.EIO, errno.EROFS),
    "mkdir": (errno.ENOSPC, errno.EIO, errno.EROFS),
    "rmdir": (errno.EIO, errno.EROFS),
    "flock": (errno.EIO, errno.ENOLCK),
}
"""The kinds of calls, and the errors with which each may fail. `reopen`: to write into a file that exists."""
CRASHES = ("create", "fsync", "rename", "unlink", "mkdir", "rmdir")
"""The kinds of calls before and after which a crash leaves different files."""


@dataclass(frozen=True)
class Fault:
    """One system call that goes wrong: which of its kind, and how."""

    kind: str
    number: int
    action: str
    error: int = 0

    def __str__(self) -> str:
        how = f" with {errno.errorcode[self.error]}" if self.error else ""
        return f"{self.kind} {self.number} {self.action}{how}"

    @property
    def crashes(self) -> bool:
        """Whether the process does not survive it."""
        return self.action.startswith("killed")


NO_FAULT = Fault("", 0, "count")


@dataclass(frozen=True)
class Call:
    """A line of the log: a call that was done or refused by the system, or the one that was chosen ("injected")."""

    mark: str
    kind: str
    path: Path
    other: Path | None


def compile_library(folder: Path) -> Path | None:
    """The library to preload; None where no C compiler is found, or not this system's libc."""
    library = folder / "failing_calls.so"
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    return library if subprocess.run(command, capture_output=True).returncode == 0 else None


def arming(fault: Fault, folder: Path, log: Path, shadows: Path) -> tuple[str | int, ...]:
    """The arguments of the C function `arm`."""
    action = ACTIONS.index(fault.action)
    return (str(folder), fault.kind, fault.number, action, fault.error, str(log), str(shadows))


def read_log(path: Path) -> list[Call]:
    """All calls, in order."""
    rows = [line.split("\t") for line in path.read_text().splitlines()] if path.exists() else []
    return [
        Call(mark, kind, Path(first), Path(second) if second not in ("", "empty") else None)
        for mark, kind, first, second in rows
    ]


def all_faults(calls: list[Call]) -> list[Fault]:
    """Every failure and every crash that the calls of an undisturbed command give room for."""
    faults: list[Fault] = []
    for kind, count in Counter(call.kind for call in calls).items():
        for number in range(count):
            errors = ERRORS[kind]
            faults += [Fault(kind, number, "fails", error) for error in errors]
            faults.append(Fault(kind, number, "fails from here on", errors[number % len(errors)]))
            if kind == "write":
                faults.append(Fault(kind, number, "writes half"))
            if kind in CRASHES:
                faults += [Fault(kind, number, action) for action in ("killed before", "killed after")]
    return faults


class PowerFailure:
    """What the disk may not have of the calls in a log: contents and names that were never synced.

    Strict, as the standard allows it: a name lasts once its folder was synced, contents once the file was.
    """

    def __init__(self, calls: list[Call]) -> None:
        self.unsynced: set[Path] = set()
        self._names: list[tuple[int, Call]] = []
        for line, call in enumerate(calls):
            if call.mark == "done":
                self._follow(line, call)

    def _follow(self, line: int, call: Call) -> None:
        if call.kind == "fsync":
            self.unsynced.discard(call.path)
            self._names = [(at, name) for at, name in self._names if name.path.parent != call.path]
        elif call.kind == "write":
            self.unsynced.add(call.path)
        elif call.kind == "unlink":
            self.unsynced.discard(call.path)
        elif call.kind == "rename" and call.other is not None:
            self.unsynced.discard(call.other)
            if call.path in self.unsynced:
                self.unsynced.remove(call.path)
                self.unsynced.add(call.other)
        if call.kind in ("create", "rename", "unlink", "mkdir", "rmdir"):
            self._names.append((line, call))

    def lose_contents(self, share: float) -> None:
        """Cut every file that was not synced to this share of its length."""
        for path in self.unsynced:
            if path.exists():
                os.truncate(path, int(path.stat().st_size * share))

    def lose_names(self, shadows: Path) -> None:
        """Undo what was done in folders since they were last synced, the latest first."""
        for line, call in reversed(self._names):
            kept = shadows / str(line)
            if not call.path.parent.exists():
                continue  # its folder was removed for good, or made in vain
            if call.kind == "rename" and call.other is not None:
                call.other.rename(call.path)
                if kept.exists():
                    os.link(kept, call.other)
            elif call.kind == "unlink":
                os.link(kept, call.path)
            elif call.kind == "create":
                call.path.unlink(missing_ok=True)
            elif call.kind == "mkdir":
                shutil.rmtree(call.path)
            elif call.kind == "rmdir":
                with contextlib.suppress(FileExistsError):
                    call.path.mkdir()
