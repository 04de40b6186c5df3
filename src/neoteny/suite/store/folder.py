"""A results folder as its JSON files show it: what was planned, what is finished, what is running.

`neoteny status` reads no more than this, so nothing heavy is imported here; `results` adds the tables and the writing.
"""

from __future__ import annotations

import contextlib
import os
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from neoteny.suite.identity import setting_digest
from neoteny.suite.store.errors import StoreError
from neoteny.suite.store.files import is_locked, read_json

FOLDER_FORMAT = 1


class ResultsFolder:
    """One results folder, to look at; the files are described in `results`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def open(cls, root: Path) -> Self:
        """Open the folder to read it."""
        path = root / "experiment.json"
        if not path.is_file():
            raise StoreError(
                f"{root} is not a results folder: expected {path}. `neoteny run NAME --out {root}` makes one."
            )
        found = read_json(path)
        if found.get("format") != FOLDER_FORMAT:
            raise StoreError(
                f"{root} is of folder format {found.get('format')}, this version of neoteny reads format "
                f"{FOLDER_FORMAT}. Read it with neoteny {found.get('versions', {}).get('neoteny', 'that wrote it')}."
            )
        return cls(root)

    def refuse_links(self) -> None:
        """Refuse a folder in which a folder is a link, before anything is written: that would land elsewhere."""
        for where, folders, _ in os.walk(self.root):
            for name in folders:
                path = Path(where, name)
                if path.is_symlink():
                    raise StoreError(
                        f"{path} is a link to another folder. Nothing is written through it: replace it by the folder "
                        "itself, or choose another results folder."
                    )

    @cached_property
    def about(self) -> dict[str, Any]:
        """What is in experiment.json."""
        return read_json(self.root / "experiment.json")

    def plan(self) -> dict[str, Any]:
        """The contents of plan.json, what the last `run` set out to do; empty if it cannot be read."""
        nothing = {"runs": [], "settings": [], "left_out": [], "more": "", "command": "neoteny run", "folder": ""}
        try:
            return {**nothing, **read_json(self.root / "plan.json")}
        except StoreError:
            return nothing

    def is_running(self, stack_id: str) -> bool:
        """Whether some process trains the stack now."""
        return is_locked(self.root / "locks" / f"{stack_id}.lock")

    def is_finished(self, stack_id: str) -> bool:
        """Whether the stack's results are there."""
        path = self.root / "parts" / f"{stack_id}.parquet"
        return path.exists() and path.with_suffix(".json").exists()

    def finished_runs(self) -> set[str]:
        """Ids of all runs whose results are there."""
        return {run["run_id"] for part in self.parts() for run in part["runs"]}

    def progress(self) -> dict[str, dict[str, Any]]:
        """How far each begun stack is; files that cannot be read are skipped, since nothing depends on them."""
        found = {}
        for path in sorted((self.root / "progress").glob("[0-9a-f]*.json")):
            with contextlib.suppress(StoreError):
                found[path.stem] = read_json(path)
        return found

    def parts(self) -> list[dict[str, Any]]:
        """What is known about each finished stack: configuration, versions, timings."""
        return [read_json(path.with_suffix(".json")) for path in self._tables()]

    def _tables(self) -> list[Path]:
        """The Parquet parts that count: those with a description beside them."""
        found = sorted((self.root / "parts").glob("[0-9a-f]*.parquet"))
        return [path for path in found if path.with_suffix(".json").exists()]

    def other_runs(self) -> set[str]:
        """Ids of finished runs whose setting is no longer one of the experiment's, as after an edit of its file."""
        settings = set(self.plan()["settings"])
        runs = [run for part in self.parts() for run in part["runs"]]
        return {run["run_id"] for run in runs if settings and setting_digest(run["configuration"]) not in settings}
