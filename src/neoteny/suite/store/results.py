"""The results folder: what an experiment has given so far, in files that are written once and never changed.

experiment.json            what this folder is for: experiment, scale, versions, data, configuration
experiment.py              a copy of a user's own experiment file: a record, which nothing runs unasked
analysis.json              what that file said of the results when it last ran: charts, verdicts (report/analysis.py)
plan.json                  what the last `run` set out to do
parts/<stack>.parquet      results of one stack of runs; its being there means that they are finished
parts/<stack>.json         full configuration of these runs, versions, device, timings
unfinished/<stack>.parquet results of the finished tasks of an unfinished stack, as of its newest checkpoint
progress/<stack>.json      how far a stack is, for `neoteny status`
checkpoints/<stack>/       the newest checkpoints of an unfinished stack
locks/<stack>.lock         held by the process that trains the stack
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neoteny.suite.identity import RESULTS_VERSION, setting_digest
from neoteny.suite.store.checkpoints import Checkpoints
from neoteny.suite.store.errors import StoreError
from neoteny.suite.store.files import (
    hold_lock,
    make_folder,
    read_file,
    read_json,
    try_lock,
    write_atomically,
    write_json,
)
from neoteny.suite.store.folder import FOLDER_FORMAT, ResultsFolder
from neoteny.suite.store.tables import make_table
from neoteny.suite.sweep import COLUMNS

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from neoteny.suite.rl.agent import AgentTraining
    from neoteny.suite.stacks import PlannedStack
    from neoteny.suite.training import Training

_SETTINGS = b"settings"
_IDENTITY = ("experiment", "scale", "results_version", "data")


class Results(ResultsFolder):
    """One results folder, to write into and to read tables from."""

    @classmethod
    def create(cls, root: Path, about: Mapping[str, Any], source: bytes | None = None) -> Results:
        """Open the folder for a run; it is made if it does not exist.

        Args:
            root: where.
            about: experiment, scale, data (its fingerprint), configuration, versions.
            source: the text of a user's experiment file.

        Raises:
            StoreError: it holds something else, or cannot be written.
        """
        results = cls(root)
        results.refuse_links()
        wanted = {"format": FOLDER_FORMAT, "results_version": RESULTS_VERSION, **about}
        path = root / "experiment.json"
        try:
            if root.exists() and not _is_empty(root) and not path.exists():  # in this order: see below
                raise StoreError(
                    f"{root} exists and is not a results folder (it has no experiment.json). Choose a new or empty "
                    "folder with --out."
                )
            make_folder(root)
        except OSError as error:
            raise StoreError(f"{root} cannot be made ({error.strerror}). Choose another folder with --out.") from error
        if path.exists():
            results._check(read_json(path), wanted)
        with hold_lock(root / ".create.lock"):  # two commands may begin at once
            if path.exists():
                results._check(read_json(path), wanted)
            # Written again each time: the user may have changed the figure or a claim since. This file first: another
            # command that begins now takes a folder with anything else in it for somebody's own.
            write_json(path, wanted)
            if source is not None:
                write_atomically(root / "experiment.py", lambda file: file.write(source))
        return results

    def _check(self, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        """Refuse a folder that is for something else."""
        if found.get("format") != wanted["format"] or found.get("results_version") != wanted["results_version"]:
            raise StoreError(
                f"{self.root} was written by neoteny {found.get('versions', {}).get('neoteny', '(unknown)')} (folder "
                f"format {found.get('format')}, results version {found.get('results_version')}); this is format "
                f"{wanted['format']}, results version {wanted['results_version']}, whose numbers are not comparable. "
                "Nothing was changed. Choose another folder with --out, or use the version that wrote it."
            )
        for key in _IDENTITY:
            if found.get(key) != wanted.get(key):
                raise StoreError(
                    f"{self.root} holds {key} {found.get(key)!r}, but this run is of {key} {wanted.get(key)!r}. Choose "
                    "another folder with --out."
                )

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        """Write what is wanted: runs (ids), settings (hashes), left_out (methods), more (text), command, folder."""
        with hold_lock(self.root / ".create.lock"):
            write_json(self.root / "plan.json", plan)

    def add_to_plan(self, runs: Sequence[str]) -> None:
        """Add the runs of a second stage."""
        with hold_lock(self.root / ".create.lock"):
            plan = self.plan()
            plan["runs"] += [run for run in runs if run not in plan["runs"]]
            write_json(self.root / "plan.json", {**plan, "more": ""})

    # Stacks

    def checkpoints(self, stack_id: str) -> Checkpoints:
        """The checkpoints of a stack."""
        return Checkpoints(self.root / "checkpoints" / stack_id)

    def lock(self, stack_id: str):
        """`with results.lock(stack_id) as mine:`; mine is False where another process trains it."""
        return try_lock(self.root / "locks" / f"{stack_id}.lock")

    def write_progress(self, stack_id: str, progress: Mapping[str, Any]) -> None:
        """Write how far a stack is."""
        write_json(self.root / "progress" / f"{stack_id}.json", progress, durable=False)

    def write_part(self, stack: PlannedStack, training: Training | AgentTraining, facts: Mapping[str, Any]) -> None:
        """Write the results of a finished stack: what they are, then the table, whose presence makes them count."""
        import pyarrow.parquet as parquet

        diverged = training.diverged_at.tolist()
        described = [
            {
                "run_id": run.run_id,
                "setting": run.setting.label,
                "configuration": run.configuration,
                "diverged_at_update": at if at >= 0 else None,
            }
            for run, at in zip(stack.runs, diverged, strict=True)
        ]
        path = self.root / "parts" / f"{stack.stack_id}.parquet"
        write_json(path.with_suffix(".json"), {**facts, "runs": described})
        table = make_table(stack, training)
        write_atomically(path, lambda file: parquet.write_table(table, file, compression="zstd"))
        with contextlib.suppress(OSError):  # the next command removes it
            for left in self.root.glob(f"unfinished/*{stack.stack_id}.parquet*"):  # with what a crash left of it
                left.unlink()

    def clear_finished(self) -> None:
        """Remove what a crash has left of finished stacks: checkpoints, unfinished tables, temporary files."""
        left: dict[str, list[Path]] = {}
        for path in [*self.root.glob("checkpoints/*"), *self.root.glob("unfinished/*"), *self.root.glob("*/.*.tmp")]:
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
        import pyarrow.parquet as parquet

        settings = {run.run_id: setting_digest(run.configuration) for run in stack.runs}
        table = make_table(stack, training).replace_schema_metadata({_SETTINGS: json.dumps(settings)})
        path = self._unfinished(stack.stack_id)
        write_atomically(path, lambda file: parquet.write_table(table, file, compression="zstd"), durable=False)

    def _unfinished(self, stack_id: str) -> Path:
        return self.root / "unfinished" / f"{stack_id}.parquet"

    # Reading

    def frame(self, so_far: bool = False) -> pd.DataFrame:
        """All results as one tidy table, sorted, with a column for each detail of the settings and one for the scale.

        Runs of settings that the experiment no longer has are kept in the folder and left out here.

        Args:
            so_far: whether unfinished runs count too, with the tasks they have finished.

        Raises:
            StoreError: a part cannot be read; it is named.
        """
        import pandas as pd

        unfinished = self._read_unfinished() if so_far else []  # first: what finishes now is then among the parts
        tables = []
        seen = self.other_runs()
        for path in self._tables():
            part = _read_table(path, "Move it away to run its runs again.").to_pandas()
            tables.append(part[~part["run_id"].isin(seen)])  # two processes may have trained one run twice
            seen.update(part["run_id"].unique())
        for part in unfinished:
            tables.append(part[~part["run_id"].isin(seen)])
            seen.update(part["run_id"].unique())
        tables = [table for table in tables if len(table)]
        if not tables:
            return pd.DataFrame(columns=pd.Index(COLUMNS))
        frame = pd.concat(tables, ignore_index=True)
        for name in ("run_id", "method", "setting", "hyperparameters", "metric"):
            frame[name] = frame[name].astype(str)
        frame = frame.sort_values(["method", "setting", "seed", "metric", "task"], kind="stable", ignore_index=True)
        details = {text: json.loads(text) for text in frame["hyperparameters"].unique()}
        for name in dict.fromkeys(key for detail in details.values() for key in detail):
            frame[name] = frame["hyperparameters"].map({text: detail.get(name) for text, detail in details.items()})
        frame["scale"] = self.about["scale"]
        return frame

    def _read_unfinished(self) -> list[pd.DataFrame]:
        """Tables of unfinished stacks: the runs that are planned, or of settings that the experiment has.

        The furthest stack comes first: a run is in two where another number of runs was asked for meanwhile.
        """
        plan = self.plan()
        settings = set(plan["settings"])
        found = []
        for path in sorted((self.root / "unfinished").glob("[0-9a-f]*.parquet")):
            try:
                table = _read_table(path, "Move it away; the stack's next checkpoint writes it again.")
            except StoreError:
                if path.exists():
                    raise
                continue  # it has finished meanwhile
            about = json.loads((table.schema.metadata or {}).get(_SETTINGS, "{}"))
            wanted = {run for run, setting in about.items() if not settings or setting in settings}
            part = table.to_pandas()
            found.append(part[part["run_id"].isin(wanted.union(plan["runs"]))])
        return sorted((part for part in found if len(part)), key=lambda part: int(part["task"].max()), reverse=True)


def _read_table(path: Path, remedy: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        return parquet.read_table(pa.BufferReader(read_file(path)))
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{path} cannot be read ({error}). {remedy}") from error


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and all(entry.name.startswith(".") for entry in folder.iterdir())
