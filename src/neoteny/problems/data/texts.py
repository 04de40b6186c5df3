"""What `neoteny data` prints: the table of datasets, and the progress of a download.

Before this: `datasets.py`; after it: `cli/`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from neoteny.problems.data.datasets import describe, fetch, search_folders
from neoteny.text import render


def list_text(data: Path | str | None = None) -> str:
    """Every dataset: found where, checksum good or not, size, terms; below, what is wrong and how to repair it."""
    found = describe(data)
    rows = [
        [
            row.dataset.name,
            row.state,
            _megabytes(row.size_bytes) if row.folder else "-",
            row.dataset.terms,
            str(row.folder or "-"),
        ]
        for row in found
    ]
    table = render(["dataset", "checksum", "size", "terms", "found in"], rows)
    faults = [f"{row.dataset.name} ({row.dataset.about}):\n  {row.fault}" for row in found if row.fault]
    looked = "Looked in " + ", then ".join(str(folder) for folder in search_folders(data)) + "."
    return "\n\n".join([table, looked, *faults])


def fetch_with_progress(name: str, folder: Path | str | None = None) -> str:
    """Download a dataset, showing progress on the standard error, and say where it is."""
    target = _fetch_with_bars(name, folder) if sys.stderr.isatty() else fetch(name, folder, _print_when_whole)
    return f"{name} is in {target}; its checksums are right."


def _fetch_with_bars(name: str, folder: Path | str | None) -> Path:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        tasks = {}

        def show(file: str, done: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=done)

        return fetch(name, folder, show)


def _print_when_whole(file: str, done: int, total: int) -> None:
    if done == total:
        print(f"{file}: {_megabytes(total)}", file=sys.stderr)


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"
