"""Errors that the user can fix: the command line shows their text without a traceback."""

from __future__ import annotations

from pathlib import Path


class StoreError(RuntimeError):
    """The results folder cannot be used: of another experiment or version, not writable, full, or broken."""


class Damaged(StoreError):
    """A file of a results folder is not what was written.

    Args:
        path: the file.
        reason: what is wrong with it, as the end of "it is damaged: ...".
        remedy: what to do, a sentence.
    """

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        super().__init__(f"{path} is damaged: {reason}. {remedy}")
        self.path, self.reason = path, reason


class NoLocks(StoreError):
    """The file system has no locks (flock)."""


class Stopped(RuntimeError):
    """The run was asked to stop (Ctrl-C); its state is in its checkpoint."""


class TakenOver(RuntimeError):
    """Another process trains this stack now, or has finished it; this one must not write."""
