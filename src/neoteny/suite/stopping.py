"""StopFlag: how a sweep is asked to stop, by a signal or by another thread."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

_LOOK_SECONDS = 0.05


class StopFlag:
    """Set by the first Ctrl-C (or SIGTERM), looked at between blocks of updates; a second Ctrl-C interrupts at once.

    A plain value: the lock of an event, taken in a signal handler that a second signal interrupts, stays taken.
    """

    def __init__(self) -> None:
        self._asked = False

    def __bool__(self) -> bool:
        return self._asked

    def set(self) -> None:
        """Ask to stop."""
        self._asked = True

    def wait(self, seconds: float) -> bool:
        """Sleep, but not (long) past being set."""
        end = time.monotonic() + seconds
        while not self._asked and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))
        return self._asked

    @contextlib.contextmanager
    def after(self, minutes: float | None) -> Iterator[None]:
        """Set it when this time has passed; None: never."""
        timer = threading.Timer(60 * (minutes or 0.0), self.set)
        timer.daemon = True
        if minutes is not None:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    @contextlib.contextmanager
    def listening(self, *more: signal.Signals) -> Iterator[StopFlag]:
        """Let SIGINT and SIGTERM, and more signals, set it, in the main thread."""

        def handle(number: int, _frame: Any) -> None:
            if self and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.set()

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, *more)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
