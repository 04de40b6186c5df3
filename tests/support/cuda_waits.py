"""A guard against code that waits for the CUDA device: such a wait raises RuntimeError inside it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """Set torch's synchronisation debug mode to "error", and always put it back."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        _set_mode("error")
        yield
    finally:
        _set_mode(before)


def _set_mode(mode: int | str) -> None:
    """Set the mode without torch's warning that it is a prototype, which pytest would turn into an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)
