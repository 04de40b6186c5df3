"""A line on stderr while tracing takes long.

`sandbox.py` counts every pass here. Nothing is written in the first two seconds.
"""

from __future__ import annotations

import sys
import time

_QUIET_SECONDS = 2.0
_TERMINAL_SECONDS = 0.2  # between two updates of the line
_LOG_SECONDS = 30.0  # between two lines where stderr is not a terminal


class Progress:
    """Counts passes and says how long tracing a model has taken.

    Args:
        model: the name of the model.

    Attributes:
        passes: forward passes so far.
        stage: what the passes are for.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self.passes = 0
        self.stage = "recording"
        self._start = time.monotonic()
        self._next = self._start + _QUIET_SECONDS
        self._width = 0

    def tick(self) -> None:
        """Count a pass, and write where it is time to."""
        self.passes += 1
        now = time.monotonic()
        if now < self._next:
            return
        terminal = sys.stderr.isatty()
        self._next = now + (_TERMINAL_SECONDS if terminal else _LOG_SECONDS)
        line = f"tracing {self.model}: {self.stage}, {self.passes} passes, {now - self._start:.0f} s"
        sys.stderr.write(f"\r{line.ljust(self._width)}" if terminal else f"{line}\n")
        sys.stderr.flush()
        self._width = len(line) if terminal else 0

    def close(self) -> None:
        """Clear the terminal's line."""
        if self._width:
            sys.stderr.write(f"\r{' ' * self._width}\r")
            sys.stderr.flush()
            self._width = 0
