"""Keeping a results folder: from `results/NAME`, where it was made, to what is committed of it in `evidence/NAME`.

A small folder is kept whole, less what only an unfinished run needs: `neoteny claims evidence/NAME` judges it again. Of
a large one the summary stays (`summary`), where its entry says so with each run's means over bins of tasks (`means`),
on which its claims are judged; its command makes the rest again.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from neoteny import experiments
from neoteny.publish.entries import Entry
from neoteny.publish.means import MEANS, average_bins, read_means, write_made, write_means
from neoteny.publish.summary import Summary, judge, read_summary, summarise, write_summary
from neoteny.suite.store.documents import write_document
from neoteny.suite.store.files import read_json
from neoteny.suite.store.results import Results

LARGEST_WHOLE = 2_000_000
"""Bytes; a folder above this is kept as its summary alone."""
LARGEST_EVIDENCE = 9_000_000
"""Bytes of all that is kept."""
TABLES = {"parts": "parts", "unfinished": "progress"}
"""Where a folder has its tables, and for each of them what is known of its runs."""
_COMMITTED = (".json", ".parquet", ".py", ".md")
_ABSOLUTE = re.compile(r"""(?:^|[\s='"(])(?:~?/[\w.]+|[A-Za-z]:[\\/])""")


class EvidenceError(ValueError):
    """Something that a person has to put right before it can be kept or published."""


def keep(root: Path, views: Sequence[Entry], largest_whole: int = LARGEST_WHOLE) -> Path:
    """Keep a folder of `results/`, or summarise again what is kept of it; returns the folder in `evidence/`.

    Args:
        root: of the repository.
        views: all entries of that folder, its own first.
        largest_whole: bytes up to which it is kept whole.

    Raises:
        EvidenceError: it is not there, differs once copied, or names a path of this machine.
    """
    entry = views[0]
    made, kept = root / "results" / entry.folder, root / "evidence" / entry.folder
    source = made if made.is_dir() else kept
    if source == kept and (kept / MEANS).exists():
        _judge_means(kept, views)
        return kept
    if not any((source / name).is_dir() for name in TABLES):
        raise EvidenceError(f"{made} is not there, or has no results yet. Make it: {write_command(entry)}")
    results = Results.open(source)
    command = write_command(entry, results.about["scale"])
    new = kept.with_name(f".{entry.folder}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        _copy(results, new, command)
        whole = measure(new) <= largest_whole
        if whole and not Results.open(new).frame(so_far=True).equals(results.frame(so_far=True)):
            raise EvidenceError(f"{source}, once copied, does not read back to the same table; nothing was kept.")
        if whole or not entry.bin_tasks:
            summaries = [summarise(Results.open(new), command, view.so_far, view.tasks) for view in views]
            if not whole:
                shutil.rmtree(new)
                new.mkdir()
        else:
            shutil.rmtree(new)
            new.mkdir()
            write_means(new, average_bins(results.frame(), entry.bin_tasks))
            write_made(new, results)
            judged = read_means(new)
            summaries = [summarise(results, command, judged=judged) for _ in views]
        for view, summary in zip(views, summaries, strict=True):
            write_summary(new / view.summary, summary)
        _refuse_paths(new, entry.folder)
        shutil.rmtree(kept, ignore_errors=True)
        new.rename(kept)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return kept


def _judge_means(kept: Path, views: Sequence[Entry]) -> None:
    """Judge the claims of a folder again on the means that are kept of it; charts stay as they are."""
    for view in views:
        summary = read_summary(kept / view.summary)
        verdicts = judge(experiments.load(summary.experiment), read_means(kept))
        write_summary(kept / view.summary, replace(summary, verdicts=verdicts))


def find_kept(root: Path, entry: Entry) -> Summary | None:
    """The summary that is kept of a view of a folder, or None."""
    path = root / "evidence" / entry.folder / entry.summary
    return read_summary(path) if path.exists() else None


def is_whole(root: Path, entry: Entry) -> bool:
    """Whether the tables are kept, too."""
    return any((root / "evidence" / entry.folder / name).is_dir() for name in TABLES)


def write_command(entry: Entry, scale: str = "") -> str:
    """The command that makes a folder again; without the scale it guesses by the folder's name."""
    scale = scale or ("laptop" if entry.folder.endswith("-laptop") else "paper")
    methods = f' --methods "{",".join(entry.methods)}"' if entry.methods else ""
    return f"neoteny run {entry.run} --scale {scale}{methods} --out results/{entry.folder}"


def measure(folder: Path) -> int:
    """Bytes of all files in a folder, but for what reports and locks leave there, which is not committed."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.suffix in _COMMITTED)


def _copy(results: Results, to: Path, command: str) -> None:
    """Copy what counts: no checkpoints, locks or report, and of progress that of unfinished runs with results."""
    shutil.copyfile(results.root / "experiment.json", to / "experiment.json")
    write_document(to / "plan.json", {**results.plan(), "command": command, "folder": ""})
    for tables, about in TABLES.items():
        for table in sorted((results.root / tables).glob("[0-9a-f]*.parquet")):
            described = results.root / about / f"{table.stem}.json"
            if described.exists():
                for name in (tables, about):
                    (to / name).mkdir(exist_ok=True)
                shutil.copyfile(table, to / tables / table.name)
                text = json.dumps(read_json(described), sort_keys=True)
                (to / about / described.name).write_text(text + "\n")


def _refuse_paths(folder: Path, name: str) -> None:
    for path in sorted(folder.rglob("*.json")):
        for text in _find_strings(read_json(path)):
            if _ABSOLUTE.search(text):
                raise EvidenceError(
                    f"{path.name} of {name} names a path of this machine, {text!r}; it must not be published. "
                    "Correct the file in the results folder and keep it again."
                )


def _find_strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _find_strings(one)
