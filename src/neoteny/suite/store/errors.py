"""Errors that a user can fix: the command line shows only their text, without a traceback."""

from __future__ import annotations


class StoreError(RuntimeError):
    """The results folder cannot serve: of another experiment or version, not writable, full, or broken."""


class Stopped(RuntimeError):
    """The run was asked to stop (Ctrl-C); what it had is in its checkpoint."""
