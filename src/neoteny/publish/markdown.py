"""Tables in Markdown, for the pages of `docs/` that are made from code and kept results."""

from __future__ import annotations

from collections.abc import Sequence


def write_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; a bar within a cell becomes a slash.

    Example:
        >>> print(write_table(["method", "cost"], [["L2", "1.2"]]))
        | method | cost |
        | --- | --- |
        | L2 | 1.2 |
    """
    cells = [list(head), ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in cells)
