"""Errors that a person can mend: the command line shows their text alone, without a traceback."""

from __future__ import annotations


class StoreError(RuntimeError):
    """The results folder cannot serve: of another experiment or version, not writable, full, or broken."""


class Stopped(RuntimeError):
    """The run was asked to stop (Ctrl-C); what it had is in its checkpoint."""
