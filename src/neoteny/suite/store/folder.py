"""A results folder as its files show it: what was planned, what is finished, what is running, what is damaged.

`neoteny status` reads no more than this, so nothing heavy is imported here; `results` adds the tables and the writing.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from neoteny.suite.store.claims import Claims
from neoteny.suite.store.documents import parse_document, read_document, remove_trailer, sha256
from neoteny.suite.store.errors import Damaged, StoreError
from neoteny.suite.store.files import read_file
from neoteny.suite.store.index import Index, Signatures, is_worthwhile, list_names, list_paired_names, list_pairs
from neoteny.suite.store.progress_files import ProgressFiles
from neoteny.suite.store.records import PartRecord, runs_in
from neoteny.suite.store.shapes import ANALYSIS, EXPERIMENT, PART, PLAN
from neoteny.text import say_count

FOLDER_FORMAT = 2
"""Of new folders: every file has a checksum. In folders of format 1 those that this version writes have one."""
UNSEALED_FORMAT = 1
EXPERIMENT_DIGEST = "experiment_sha256"
"""The field of experiment.json with the SHA-256 of a user's experiment file."""
IDENTITY = ("experiment", "scale", "results_version", "data")
"""The fields of experiment.json in which all that is in a folder must agree."""
_EMPTY_PLAN = {"runs": [], "settings": [], "left_out": [], "more": "", "command": "neoteny run", "folder": ""}
_SOURCE_REMEDY = "Repeat the folder's `neoteny run` command: it writes the file again."
UNFINISHED_REMEDY = "Move it away; the stack's next checkpoint writes it again."
_WRITER_SECONDS = 0.05
"""Files that belong together are replaced one after the other; a reader that came between looks again after this."""


class ResultsFolder(ProgressFiles):
    """One results folder, to look at; the files are described in `results`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._indexed: tuple[dict[str, Any], Index] | None = None
        self._known: dict[str, PartRecord] = {}
        self.claims = Claims(root)

    @property
    def address(self) -> str:
        """Where it is, for people: the folder, or the storage that it is a copy of."""
        return str(self.root)

    @classmethod
    def open(cls, root: Path | str) -> Self:
        """Open the folder to read it."""
        root = Path(root)
        path = root / "experiment.json"
        if not path.is_file():
            raise StoreError(
                f"{root} is not a results folder: expected {path}. `neoteny run NAME --out {root}` makes one."
            )
        folder = cls(root)
        _ = folder.about  # is checked
        return folder

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

    @functools.cached_property
    def about(self) -> dict[str, Any]:
        """What is in experiment.json."""
        return self.read_about()

    def read_about(self) -> dict[str, Any]:
        """What is in experiment.json now."""
        path = self.root / "experiment.json"
        found, sealed = parse_document(path, EXPERIMENT)
        number = found.get("format")
        if number not in (UNSEALED_FORMAT, FOLDER_FORMAT) or isinstance(number, (bool, float)):
            versions = found.get("versions")
            writer = versions.get("neoteny") if isinstance(versions, dict) else None
            raise StoreError(
                f"{self.root} is of folder format {number!r:.60}, this version of neoteny reads formats "
                f"{UNSEALED_FORMAT} and {FOLDER_FORMAT}. Read it with neoteny {writer or 'that wrote it'!s:.60}."
            )
        if number == FOLDER_FORMAT and not sealed:
            raise Damaged(path, "its checksum is missing", EXPERIMENT.remedy)
        fault = EXPERIMENT.misfit(found, number == FOLDER_FORMAT)
        if fault:
            raise Damaged(path, fault, EXPERIMENT.remedy)
        return {"results_version": None, "data": "", "configuration": {}, "versions": {}, **found}

    @property
    def sealed(self) -> bool:
        """Whether every file must have a checksum; so in all folders but those that an earlier version began."""
        return self.about["format"] != UNSEALED_FORMAT

    def plan(self) -> dict[str, Any]:
        """The contents of plan.json, what the last `run` set out to do; empty if nothing was planned yet.

        Raises:
            Damaged: it is not what was written, or is missing though runs are finished.
        """
        path = self.root / "plan.json"
        try:
            return {**_EMPTY_PLAN, **read_document(path, PLAN, self.sealed)}
        except FileNotFoundError:
            if self.sealed and self.signatures():
                raise Damaged(path, "it is missing", PLAN.remedy) from None
            return self.empty_plan()

    @staticmethod
    def empty_plan() -> dict[str, Any]:
        """A plan of nothing."""
        return {**_EMPTY_PLAN}

    def find_source(self) -> Path | None:
        """The copy of the user's experiment file, checked; None where the experiment is the package's.

        Raises:
            Damaged: it is not the file that experiment.json is about.
        """
        path = self.root / "experiment.py"
        about = self.about
        for again in (True, False):
            expected = about.get(EXPERIMENT_DIGEST)
            if expected is None:
                return path if not self.sealed and path.exists() else None
            if path.is_file() and sha256(read_file(path)) == expected:
                return path
            if again:
                time.sleep(_WRITER_SECONDS)
                about = self.read_about()
        reason = "its checksum differs from the one in experiment.json" if path.exists() else "it is missing"
        raise Damaged(path, reason, _SOURCE_REMEDY)

    def find_damage(self) -> list[Damaged]:
        """What is wrong with experiment.py, analysis.json, tables of unfinished stacks, and tables that stand alone."""
        analysis = functools.partial(read_document, self.root / "analysis.json", ANALYSIS, self.sealed)
        checks: list[Callable[[], Any]] = [self.find_source, analysis]
        checks += [functools.partial(self.read_unfinished, path) for path in self.unfinished_tables()]
        damaged = [
            Damaged(path, "it has no description, so it does not count", "`neoteny run` trains its runs again.")
            for path in (
                self.root / "parts" / f"{stack}.parquet"
                for stack in sorted(list_names(self.root / "parts", ".parquet") - self._finished_stacks())
            )
            if not path.with_suffix(".json").exists()
        ]
        for check in checks:
            try:
                check()
            except FileNotFoundError:
                continue
            except Damaged as error:
                damaged.append(error)
        return damaged

    # Stacks

    def is_running(self, stack_id: str) -> bool:
        """Whether some process trains the stack now."""
        return self.claims.is_held(stack_id)

    def is_finished(self, stack_id: str) -> bool:
        """Whether the stack's results are there."""
        path = self.root / "parts" / f"{stack_id}.parquet"
        return path.exists() and path.with_suffix(".json").exists()

    # Parts

    def parts(self) -> list[dict[str, Any]]:
        """What is known about each finished stack: configuration, versions, timings. Tables are not looked at.

        Raises:
            StoreError: some are damaged; they are named.
        """
        parts, damaged = self.check_parts(tables=False)
        if damaged:
            raise self.refuse(damaged)
        return parts

    def check_parts(
        self,
        tables: bool = True,
        read: Callable[[Path, dict[str, Any], bytes], Any] = lambda table, description, content: description,
        about: Mapping[str, Any] | None = None,
        stacks: Iterable[str] | None = None,
    ) -> tuple[list[Any], list[Damaged]]:
        """Read every part and check it; what is damaged is looked at twice.

        Args:
            tables: whether tables are read and checked, too.
            read: what to make of a part that is whole; its path, description and the bytes of its table are given.
            about: instead of experiment.json.
            stacks: the parts of these stacks; None: all.

        Returns:
            What was made of the parts that are whole, and what is wrong with the others.
        """
        about = about or self.about
        parts, damaged = [], []
        for stack_id in self.signatures() if stacks is None else stacks:
            path = self.root / "parts" / f"{stack_id}.parquet"
            for again in (True, False):
                try:
                    parts.append(read(path, *_read_part(path, about, tables)))
                except FileNotFoundError:
                    pass  # it was moved away meanwhile
                except Damaged as error:
                    if again:
                        time.sleep(_WRITER_SECONDS)
                        continue
                    damaged.append(error)
                break
        return parts, damaged

    def refuse(self, damaged: Sequence[Damaged]) -> StoreError:
        """An error that names damaged parts and says what to do."""
        lines = [f"{say_count(len(damaged), 'part is', 'parts are')} damaged in {self.root}; nothing was changed:"]
        lines += [f"  {error.path}: {error.reason}" for error in damaged]
        lines.append(
            f"Repeat the folder's `neoteny run` command with --repair: it moves them to {self.root / 'damaged'} and "
            "trains their runs again."
        )
        return StoreError("\n".join(lines))

    def signatures(self) -> Signatures:
        """The stacks whose parts count: those with a table and a description; sorted, each with its files' signatures.

        A link to nowhere is no file.
        """
        return list_pairs(self.root / "parts", ".parquet", ".json")

    def _finished_stacks(self) -> set[str]:
        """The same stacks, without a look at each file."""
        return list_paired_names(self.root / "parts", ".parquet", ".json")

    def records(self) -> list[PartRecord]:
        """What is known about each finished stack, in short. Tables are not looked at, nor what was read before.

        Raises:
            StoreError: some are damaged; they are named.
        """
        stacks = self._finished_stacks()
        if not stacks <= self._known.keys():
            records, damaged = self.check_records(tables=False)
            if damaged:
                raise self.refuse(damaged)
            return records
        return [self._known[stack] for stack in sorted(stacks)]

    def check_records(
        self, tables: bool = True, about: Mapping[str, Any] | None = None
    ) -> tuple[list[PartRecord], list[Damaged]]:
        """What is known about each finished stack that is whole, and what is wrong with the others.

        Parts that the index knows, and that have not changed since, are not read again.

        Args:
            tables: whether tables must have been read and checked, too.
            about: instead of experiment.json.
        """
        index, files = self._parts_index(self.about if about is None else about), self.signatures()
        found = _find_records(index, files, tables)

        def read(path: Path, part: dict[str, Any], content: bytes) -> None:
            self._check_unsealed(path, part, content)
            found[path.stem] = PartRecord.of(path.stem, part)
            if tables and "table_sha256" in part:  # others cannot be checked without reading them
                index.put(path.stem, found[path.stem].to_json(), *files[path.stem])

        _, damaged = self.check_parts(tables, read, about, [stack for stack in files if stack not in found])
        if tables and is_worthwhile(sum(len(record.runs) for record in found.values())):
            index.save(files)
        self._known = found
        return [found[stack] for stack in files if stack in found], damaged

    def _recall_records(self, files: Signatures) -> None:
        """Keep what the index knows of parts that were just read, for those who then ask for the records."""
        self._known = _find_records(self._parts_index(self.about), files)

    def _check_unsealed(self, path: Path, part: Mapping[str, Any], content: bytes) -> None:
        """Look at a table that has no checksum; `results` does."""

    def _parts_index(self, about: Mapping[str, Any]) -> Index:
        owner = index_owner(about)
        if self._indexed is None or self._indexed[0] != owner:
            self._indexed = owner, Index(self.root, "parts.json", owner)
        return self._indexed[1]

    def finished_runs(self) -> set[str]:
        """Ids of all runs whose results are there."""
        return runs_in(self.records())

    def other_runs(
        self, records: Iterable[PartRecord] | None = None, plan: Mapping[str, Any] | None = None
    ) -> set[str]:
        """Ids of finished runs whose setting is no longer one of the experiment's, as after an edit of its file.

        Args:
            records, plan: where they were read already.
        """
        wanted = set((self.plan() if plan is None else plan)["settings"])
        if not wanted:
            return set()
        records = self.records() if records is None else records
        return {
            run
            for record in records
            for run, setting in zip(record.runs, record.settings, strict=True)
            if setting not in wanted
        }

    def describe_missing_checksums(self, records: Sequence[PartRecord]) -> str:
        """A line on a folder that an earlier version began, and its parts; "" for others."""
        if self.sealed:
            return ""
        count = len([record for record in records if not record.has_checksum])
        return (
            f"This folder was begun by an earlier version: of {say_count(len(records), 'finished stack')} {count} "
            f"{'has no checksum' if count == 1 else 'have no checksums'}, so damage there may go unnoticed."
        )

    # Unfinished stacks

    def unfinished_tables(self) -> list[Path]:
        """The tables of unfinished stacks."""
        return sorted((self.root / "unfinished").glob("[0-9a-f]*.parquet"))

    def read_unfinished(self, path: Path) -> bytes:
        """One of them, checked.

        Raises:
            FileNotFoundError: the stack has finished meanwhile.
            Damaged: it is not what was written.
        """
        return remove_trailer(path, self.sealed, UNFINISHED_REMEDY)


def _find_records(index: Index, files: Signatures, tables: bool = True) -> dict[str, PartRecord]:
    """What the index knows of parts that have these signatures; `tables`: whether that of the table counts."""
    found = {}
    for stack, (table, described) in files.items():
        entry = index.find(stack, table if tables else None, described)
        if entry is not None:
            found[stack] = PartRecord.from_json(entry)
    return found


def index_owner(about: Mapping[str, Any]) -> dict[str, Any]:
    """What the index of a folder's parts depends on besides their files."""
    return {key: about.get(key) for key in ("format", *IDENTITY)}


def _read_part(table: Path, about: Mapping[str, Any], with_table: bool) -> tuple[dict[str, Any], bytes]:
    """A part's description and table, checked.

    Raises:
        FileNotFoundError: one of its files is not there.
        Damaged: one is not what was written, or they belong elsewhere.
    """
    sealed = about["format"] != UNSEALED_FORMAT
    path = table.with_suffix(".json")
    found = read_document(path, PART, sealed)
    if found.get("stack", table.stem) != table.stem:
        raise Damaged(path, f"it is of stack {found['stack']}", PART.remedy)
    for key, value in found.get("belongs_to", {}).items():
        if value != about.get(key):
            reason = f"it belongs to a folder of {key} {value!r:.60}, this one is of {about.get(key)!r:.60}"
            raise Damaged(path, reason, PART.remedy)
    if not with_table:
        return found, b""
    try:
        content = read_file(table)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(table, f"it cannot be read ({error})", PART.remedy) from error
    if found.get("table_sha256") not in (None, sha256(content)):
        raise Damaged(table, f"its checksum differs from the one in {path.name}", PART.remedy)
    return found, content
