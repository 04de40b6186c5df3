"""Errors that the user can fix: the command line shows their text without a traceback."""

from __future__ import annotations


class StoreError(RuntimeError):
    """The results folder cannot be used: of another experiment or version, not writable, full, or broken."""


class Stopped(RuntimeError):
    """The run was asked to stop (Ctrl-C); its state is in its checkpoint."""
