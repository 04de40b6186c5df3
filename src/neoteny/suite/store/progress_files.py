"""ProgressFiles: how far each begun stack of a results folder is; nothing depends on these files but what is shown."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from neoteny.suite.identity import digest
from neoteny.suite.store.documents import read_document
from neoteny.suite.store.errors import Damaged
from neoteny.suite.store.index import Index, is_worthwhile, list_files, list_names
from neoteny.suite.store.shapes import PROGRESS


class ProgressFiles:
    """The folder `progress/`, one file per stack."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._ended: dict[str, dict[str, Any]] = {}

    @property
    def sealed(self) -> bool:
        """Whether every file of the folder must carry a checksum."""
        raise NotImplementedError

    def progress(self) -> dict[str, dict[str, Any]]:
        """How far each begun stack is; files that are damaged are skipped, since nothing depends on them.

        What was read as finished is not looked at again: this is called twice per second while a sweep runs.
        """
        return self.check_progress(skip_finished=True)[0]

    def check_progress(self, skip_finished: bool = False) -> tuple[dict[str, dict[str, Any]], list[Damaged]]:
        """How far each begun stack is, and the damaged files."""
        folder = self.root / "progress"
        names = list_names(folder, ".json")
        if not names:  # the folder may not be there yet
            return {}, []
        index = self._progress_index
        damaged, found = [], {}
        if skip_finished:
            found = {stack_id: entry for stack_id, entry in self._ended.items() if stack_id in names}
        files = list_files(folder, ".json", names.difference(found))
        for stack_id, signature in files.items():
            entry = index.find(stack_id, signature)
            if entry is None:
                try:
                    entry = self._read_progress(self.root / "progress" / f"{stack_id}.json")
                except FileNotFoundError:
                    continue
                except Damaged as error:
                    damaged.append(error)
                    continue
                index.put(stack_id, entry, signature)
            found[stack_id] = entry
        if is_worthwhile(sum(len(entry["runs"]) for entry in found.values())):
            index.save(names)
        self._ended = {stack_id: entry for stack_id, entry in found.items() if entry["state"] == "finished"}
        return dict(sorted(found.items())), damaged

    @functools.cached_property
    def _progress_index(self) -> Index:
        return Index(self.root, "progress.json", {"sealed": self.sealed})

    def progress_of(self, stack_id: str) -> dict[str, Any] | None:
        """How far one stack is; None where it has not begun or its file is damaged."""
        try:
            return self._read_progress(self.root / "progress" / f"{stack_id}.json")
        except (FileNotFoundError, Damaged):
            return None

    def _read_progress(self, path: Path) -> dict[str, Any]:
        entry = read_document(path, PROGRESS, self.sealed)
        if digest(entry["runs"]) != path.stem:
            raise Damaged(path, "it is of another stack", PROGRESS.remedy)
        return entry
