"""The results folder: what an experiment has given so far, in files that are written once and never changed.

experiment.json            what this folder is for: experiment, scale, versions, data, configuration; its format
experiment.py              a copy of a user's own experiment file: a record, which nothing runs unasked
analysis.json              what that file said of the results when it last ran: charts, verdicts (report/analysis.py)
plan.json                  what the last `run` set out to do
parts/<stack>.parquet      results of one stack of runs; its being there means that they are finished
parts/<stack>.json         full configuration of these runs, versions, device, timings, checksum of the table
unfinished/<stack>.parquet results of the finished tasks of an unfinished stack, as of its newest checkpoint
progress/<stack>.json      how far a stack is, for `neoteny status`
checkpoints/<stack>/       the newest checkpoints of an unfinished stack
index/                     what many of these files say, in few files; never the truth (see `index`)
track/                     files of trackers, and how far they were told (see `trackers.tracking`)
locks/<stack>.lock         held by the process that trains the stack
leases/<stack>/<n>.json    the same where several machines work in the folder; see `leases`
jobs.json                  the jobs of a batch system that work in the folder
damaged/                   what `neoteny run --repair` has moved out of the way

Every file carries a checksum (see `documents`) or stands beside it, and is checked when it is read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neoteny.suite.identity import RESULTS_VERSION, setting_digest
from neoteny.suite.store.checkpoints import Checkpoints
from neoteny.suite.store.commits import commit
from neoteny.suite.store.documents import add_trailer, read_document, seal, sha256, write_document
from neoteny.suite.store.errors import Damaged, NoLocks, StoreError
from neoteny.suite.store.files import hold_lock, make_folder, set_aside, write_atomically
from neoteny.suite.store.folder import EXPERIMENT_DIGEST, FOLDER_FORMAT, IDENTITY, ResultsFolder, index_owner
from neoteny.suite.store.index import is_settled, is_worthwhile
from neoteny.suite.store.records import PartRecord
from neoteny.suite.store.rows import Rows, load_rows, save_rows
from neoteny.suite.store.shapes import PART
from neoteny.suite.store.storage import FolderStorage, PatientStorage, Storage
from neoteny.suite.store.tables import SETTINGS, make_table, parse_part, parse_unfinished, to_parquet
from neoteny.suite.sweep import COLUMNS

if TYPE_CHECKING:
    import pandas as pd

    from neoteny.suite.rl.agent import AgentTraining
    from neoteny.suite.stacks import PlannedStack
    from neoteny.suite.training import Training

CHECKPOINT = {"training": dict, "device": str, "kernel": str, "threads": int, "seconds": float, "resumed": int}
"""What a checkpoint of a stack has; `session` writes it."""


class Results(ResultsFolder):
    """One results folder, to write into and to read tables from."""

    @classmethod
    def create(
        cls,
        root: Path,
        about: Mapping[str, Any],
        source: bytes | None = None,
        repair: bool = False,
        shared: bool = False,
    ) -> Results:
        """Open the folder for a run; it is made if it does not exist.

        Args:
            root: where.
            about: experiment, scale, data (its fingerprint), configuration, versions.
            source: the text of a user's experiment file.
            repair: whether damaged parts are moved to `damaged/`, so that their runs are trained again, and a damaged
                experiment.json is written again.
            shared: whether other machines may open it at the same moment, where locks may not be seen.

        Raises:
            StoreError: it holds something else, has damaged files, or cannot be written. Nothing was changed.
        """
        wanted = {"format": FOLDER_FORMAT, "results_version": RESULTS_VERSION, **about}
        if source is not None:
            wanted[EXPERIMENT_DIGEST] = sha256(source)
        results, path = cls.look(root, wanted, repair), root / "experiment.json"
        try:
            make_folder(root)
        except OSError as error:
            raise StoreError(f"{root} cannot be made ({error.strerror}). Choose another folder with --out.") from error
        with _hold(root, shared):  # two commands may begin at once
            if path.exists():
                wanted["format"], damaged = results._check(wanted, repair)
                set_aside(root, results._find_damaged_parts(wanted, repair))
                if damaged:
                    set_aside(root, [path], copy=True)
            # Written again each time: the user may have changed the figure or a claim since. This file first: another
            # command that begins now takes a folder with anything else in it for somebody's own.
            results._write("experiment.json", seal(wanted), shared)
            if source is not None:
                results._write("experiment.py", source, shared)
            if not (root / "plan.json").exists():
                results._write("plan.json", seal(results.empty_plan()), shared)
        return results

    @classmethod
    def look(cls, root: Path, about: Mapping[str, Any], repair: bool = False) -> Results:
        """Open the folder as `create` does, but write nothing; it need not exist.

        Raises:
            StoreError: it holds something else.
        """
        results = cls(root)
        results.refuse_links()
        path = root / "experiment.json"
        try:
            if root.exists() and not _is_empty(root) and not path.exists():  # in this order: see `create`
                raise StoreError(
                    f"{root} exists and is not a results folder (it has no experiment.json). Choose a new or empty "
                    "folder with --out."
                )
        except OSError as error:
            raise StoreError(f"{root} cannot be read ({error.strerror}). Choose another folder with --out.") from error
        if path.exists():
            results._check({"format": FOLDER_FORMAT, "results_version": RESULTS_VERSION, **about}, repair)
        return results

    def _write(self, name: str, content: bytes, shared: bool) -> None:
        """Write a file of the folder itself; `shared`: under a temporary name that no other process has."""
        if shared:
            self._storage().write(name, content)
        else:
            write_atomically(self.root / name, lambda file: file.write(content))

    def _storage(self) -> Storage:
        return PatientStorage(FolderStorage(self.root))

    def _check(self, wanted: Mapping[str, Any], repair: bool) -> tuple[int, bool]:
        """Refuse a folder that is for something else; returns its format, and whether experiment.json is damaged."""
        try:
            found, damaged = self.read_about(), False
        except Damaged as error:
            if not repair:
                raise
            found, damaged = {"versions": {}, **wanted, **self._find_owner(wanted, error)}, True
        if found["results_version"] != wanted["results_version"]:
            raise StoreError(
                f"{self.root} was written by neoteny {found['versions'].get('neoteny', '(unknown)')} (results version "
                f"{found['results_version']}); this is results version {wanted['results_version']}, whose numbers are "
                "not comparable. Nothing was changed. Choose another folder with --out, or use the version that wrote "
                "it."
            )
        for key in IDENTITY:
            if found[key] != wanted.get(key):
                raise StoreError(
                    f"{self.root} holds {key} {found[key]!r}, but this run is of {key} {wanted.get(key)!r}. Choose "
                    "another folder with --out."
                )
        return found["format"], damaged

    def _find_owner(self, wanted: Mapping[str, Any], error: Damaged) -> dict[str, Any]:
        """To what the parts of a folder with a damaged experiment.json belong; of several, one that is not wanted."""
        owners = []
        stacks = self.signatures()
        for stack in stacks:
            path = self.root / "parts" / f"{stack}.json"
            with contextlib.suppress(Damaged, FileNotFoundError):
                owners.append(read_document(path, PART, must_be_sealed=True)["belongs_to"])
        if stacks and not owners:
            raise StoreError(f"{error} But no part of {self.root} says to what it belongs, so only a copy helps.")
        return next((owner for owner in owners if any(wanted.get(key) != owner[key] for key in owner)), {})

    def _find_damaged_parts(self, about: Mapping[str, Any], repair: bool) -> list[Path]:
        """The files of damaged parts.

        Raises:
            StoreError: there are some, and they are not to be repaired.
        """

        if repair:  # the person asks for a thorough look: no index
            _, damaged = self.check_parts(read=self._check_unsealed, about=about)
        else:
            _, damaged = self.check_records(about=about)
        if damaged and not repair:
            raise self.refuse(damaged)
        return [error.path.with_suffix(suffix) for error in damaged for suffix in (".parquet", ".json")]

    def _check_unsealed(self, path: Path, part: Mapping[str, Any], content: bytes) -> None:
        if content and "table_sha256" not in part:
            parse_part(path, content)

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        """Write what is wanted: runs (ids), settings (hashes), left_out (methods), more (text), command, folder."""
        with _hold(self.root, self.claims.shared):
            self._write("plan.json", seal(plan), self.claims.shared)

    def add_to_plan(self, runs: Sequence[str]) -> None:
        """Add the runs of a second stage."""
        with _hold(self.root, self.claims.shared):
            plan = self.plan()
            both = list(dict.fromkeys([*plan["runs"], *runs]))
            if both != plan["runs"] or plan["more"]:
                self._write("plan.json", seal({**plan, "runs": both, "more": ""}), self.claims.shared)

    def refresh(self) -> None:
        """Nothing: a folder is looked at each time. A copy of a storage would be brought up to date."""

    def push(self, name: str) -> None:
        """Nothing: the folder is the truth. A copy of a storage would send the file there."""

    # Stacks

    def checkpoints(self, stack_id: str) -> Checkpoints:
        """The checkpoints of a stack."""
        return Checkpoints(self.root / "checkpoints" / stack_id, CHECKPOINT)

    def lock(self, stack_id: str):
        """`with results.lock(stack_id) as mine:`; mine is False where another process trains it."""
        return self.claims.lock(stack_id, self.is_finished)

    def write_progress(self, stack_id: str, progress: Mapping[str, Any]) -> None:
        """Write how far a stack is."""
        write_document(self.root / "progress" / f"{stack_id}.json", progress, durable=False)

    def write_part(self, stack: PlannedStack, training: Training | AgentTraining, facts: Mapping[str, Any]) -> None:
        """Write the results of a finished stack: what they are, then the table, whose presence makes them count."""
        diverged = training.diverged_at.tolist()
        described = [
            {
                "run_id": run.run_id,
                "setting": run.setting.label,
                "configuration": run.configuration,
                "diverged_at_update": at if at >= 0 else None,
                **({"initial": initial} if initial else {}),
            }
            for run, at, initial in zip(stack.runs, diverged, training.initial, strict=True)
        ]
        table = to_parquet(make_table(stack, training))
        about = {
            **facts,
            "stack": stack.stack_id,
            "table_sha256": sha256(table),
            "belongs_to": {key: self.about[key] for key in IDENTITY},
            "runs": described,
        }
        self._write_part(stack.stack_id, about, table)
        with contextlib.suppress(OSError):  # the next command removes it
            for left in self.root.glob(f"unfinished/*{stack.stack_id}.parquet*"):  # with what a crash left of it
                left.unlink()

    def _write_part(self, stack_id: str, about: Mapping[str, Any], table: bytes) -> None:
        """Write the two files of a part; TakenOver where another process has the stack, or has finished it."""
        self.claims.guard(stack_id)
        lease = self.claims.lease(stack_id)
        if lease is not None:
            commit(self._storage(), lease, stack_id, seal({**about, "lease": lease.token}), table)
            return
        path = self.root / "parts" / f"{stack_id}.parquet"
        if path.exists():  # it had no description, so it did not count; beside this one it would
            set_aside(self.root, [path])
        write_document(path.with_suffix(".json"), about)
        write_atomically(path, lambda file: file.write(table))

    def clear_finished(self) -> None:
        """Remove what a crash has left of finished stacks: checkpoints, unfinished tables, temporary files."""
        left: dict[str, list[Path]] = {}
        temporary = [
            folder / name
            for folder in self.root.iterdir()
            if folder.is_dir()
            for name in os.listdir(folder)
            if name.startswith(".") and name.endswith(".tmp")
        ]
        for path in [*self.root.glob("checkpoints/*"), *self.root.glob("unfinished/*"), *temporary]:
            left.setdefault(path.name.removeprefix(".").partition(".")[0], []).append(path)
        for stack_id in filter(self.is_finished, left):
            with self.lock(stack_id) as mine, contextlib.suppress(OSError):
                for path in left[stack_id] if mine else ():
                    if path.is_dir():
                        Checkpoints(path).clear()
                    else:
                        path.unlink(missing_ok=True)

    def write_unfinished(self, stack: PlannedStack, training: Training | AgentTraining) -> None:
        """Write the results of an unfinished stack so far, for `--so-far`."""
        settings = {run.run_id: setting_digest(run.configuration) for run in stack.runs}
        table = make_table(stack, training).replace_schema_metadata({SETTINGS: json.dumps(settings)})
        content = add_trailer(stack.stack_id, to_parquet(table))
        write_atomically(self._unfinished(stack.stack_id), lambda file: file.write(content), durable=False)

    def _unfinished(self, stack_id: str) -> Path:
        return self.root / "unfinished" / f"{stack_id}.parquet"

    # Reading

    def frame(self, so_far: bool = False, categories: bool = False) -> pd.DataFrame:
        """All results as one tidy table, sorted, with a column for each detail of the settings and one for the scale.

        Runs of settings that the experiment no longer has are kept in the folder and left out here.

        Args:
            so_far: whether unfinished runs count too, with the tasks they have finished.
            categories: whether columns of texts are categories, which are made and searched several times faster.

        Raises:
            StoreError: parts are damaged; they are named.
        """
        import pandas as pd

        unfinished = self._read_unfinished() if so_far else []  # first: what finishes now is then among the parts
        rows = [piece for piece in (self._read_rows(), *unfinished) if piece is not None]
        if not rows:
            return pd.DataFrame(columns=pd.Index(COLUMNS))
        wanted = Rows.join(rows).without_runs(self.other_runs())
        if not len(wanted.value):
            return pd.DataFrame(columns=pd.Index(COLUMNS))
        return wanted.sorted().frame({"scale": self.about["scale"]}, categories)

    def _read_rows(self) -> Rows | None:
        """The rows of all parts; those that the index has, and that have not changed since, are not read again."""
        files, owner = self.signatures(), index_owner(self.about)
        known = load_rows(self.root, owner, files)
        old = set() if known is None else set(known.parts)
        sealed: set[str] = set()
        index = self._parts_index(self.about)

        def read(path: Path, part: dict[str, Any], content: bytes) -> Rows:
            if "table_sha256" in part:
                sealed.add(path.stem)
                index.put(path.stem, PartRecord.of(path.stem, part).to_json(), *files[path.stem])
            return Rows.of(path.stem, parse_part(path, content))

        new, damaged = self.check_parts(read=read, stacks=[stack for stack in files if stack not in old])
        if damaged:
            raise self.refuse(damaged)
        self._recall_records(files)
        pieces = [*([known] if known is not None else []), *new]
        if not pieces:
            return None
        rows = Rows.join(pieces).sorted() if new else pieces[0]
        settled = {stack for stack in sealed if is_settled(*files[stack])}
        if len(settled) >= max(1, len(old) // 50) and is_worthwhile(len(rows.owners)):
            index.save(files)
            save_rows(self.root, owner, rows.of_parts(settled | old), files)
        return rows

    def _read_unfinished(self) -> list[Rows]:
        """Rows of unfinished stacks: the runs that are planned, or of settings that the experiment has.

        The furthest stack comes first: a run is in two where another number of runs was asked for meanwhile.
        """
        plan = self.plan()
        settings = set(plan["settings"])
        found = []
        for path in self.unfinished_tables():
            try:
                part, about = parse_unfinished(path, self.read_unfinished(path))
            except FileNotFoundError:
                continue  # it has finished meanwhile
            wanted = {run for run, setting in about.items() if not settings or setting in settings}
            rows = Rows.of(path.stem, part)
            found.append(rows.without_runs({owner.run_id for owner in rows.owners} - wanted.union(plan["runs"])))
        found = sorted((rows for rows in found if len(rows.task)), key=lambda rows: int(rows.task.max()), reverse=True)
        # A name after those of all parts: where a run is in two, the part counts, then the furthest.
        return [dataclasses.replace(rows, parts=(f"~{number:06}",)) for number, rows in enumerate(found)]


@contextlib.contextmanager
def _hold(root: Path, shared: bool) -> Iterator[None]:
    """Keep others from writing the files of the folder itself; where machines share it, as far as locks are seen."""
    lock = hold_lock(root / ".create.lock")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock)
        except NoLocks:
            if not shared:
                raise
        yield


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and all(entry.name.startswith(".") for entry in folder.iterdir())
