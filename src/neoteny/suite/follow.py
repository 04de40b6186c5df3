"""`neoteny status --follow`: a table that renews itself in a terminal, and plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

from neoteny.suite.overview import Overview, StackView, look
from neoteny.suite.progress import format_seconds
from neoteny.suite.store.folder import ResultsFolder
from neoteny.text import printable, say_count, shorten_names

REFRESH_SECONDS = 1.0
LINE_SECONDS = 10.0
LONGEST_NAME = 60
"""Of a stack, beside the seven other columns."""
_MARGIN = 8
"""Lines of the terminal that are not for stacks."""


def follow(results: ResultsFolder, wait: Callable[[float], None] = time.sleep) -> None:
    """Show how far a folder is until nothing is left to do.

    Raises:
        ModuleNotFoundError: standard output is a terminal, and rich is not installed.
    """
    if sys.stdout.isatty():
        _follow_table(results, wait)
    else:
        _follow_lines(results, wait)


def _follow_lines(results: ResultsFolder, wait: Callable[[float], None]) -> None:
    """A line when the number of finished runs or a state changes, and now and then."""
    before, said_at = None, 0.0
    while True:
        now = look(results)
        key = (now.finished, now.waiting, *((stack.stack, stack.state) for stack in now.stacks))
        if key != before or now.at - said_at >= LINE_SECONDS:
            print(printable(now.describe()), flush=True)
            before, said_at = key, now.at
        if now.ended:
            return
        wait(REFRESH_SECONDS)


def _follow_table(results: ResultsFolder, wait: Callable[[float], None]) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            now = look(results)
            live.update(draw(now, max(3, console.size.height - _MARGIN)), refresh=True)
            if now.ended:
                return
            wait(REFRESH_SECONDS)


def draw(now: Overview, most: int) -> Any:
    """The table of rich: a line on the whole, then at most so many stacks."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("stack", "state", "runs", "task", "done", "speed", "to go", "latest"):
        table.add_column(name, justify="left" if name in ("stack", "state", "latest") else "right", no_wrap=True)
    names = shorten_names([stack.name for stack in now.stacks[:most]], LONGEST_NAME)
    for stack, name in zip(now.stacks, names, strict=False):
        cells = (name, *_cells(stack))
        table.add_row(*(Text(printable(cell), style=_STYLES.get(stack.state, "")) for cell in cells))
    lines = [Text(printable(f"{now.experiment}, scale {now.scale}: {now.describe()}"), style="bold"), table]
    if len(now.stacks) > most:
        lines.append(Text(f"and {say_count(len(now.stacks) - most, 'more stack')}"))
    lines += [Text(printable(text), style="red") for text in now.damage[:3]]
    return Group(*lines)


_STYLES = {"running": "green", "failed": "red", "damaged": "red", "stopped": "yellow", "finished": "dim"}


def _cells(stack: StackView) -> list[str]:
    return [
        stack.state + (" (retried)" if stack.retried and stack.state != "finished" else ""),
        str(stack.runs),
        f"{stack.task}/{stack.tasks}",
        f"{stack.done:.0%}",
        f"{stack.rate:,.0f} {stack.unit}s/s" if stack.rate else "",
        format_seconds(stack.to_go) if math.isfinite(stack.to_go) else "",
        stack.error or stack.latest + (f", {stack.diverged} diverged" if stack.diverged else ""),
    ]
