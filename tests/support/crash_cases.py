"""One small sweep with one fault in it: what it says, what it keeps, and how it ends when it is repeated."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from neoteny.suite.progress import status_text
from neoteny.suite.store.errors import StoreError
from neoteny.suite.store.results import Results
from support.failing_calls import NO_FAULT, Call, Fault, PowerFailure, arming, read_log
from support.suite import Zygote, write_experiment

AFTERMATHS = ("as it was left", "unsynced files empty", "unsynced files half", "unsynced files and names lost")
"""What is found after a crash: what the process left, or less where the power went as well."""


@dataclass(frozen=True)
class Ending:
    """How a case ended: in which aftermath, whether the fault was reached, and what was wrong ("": nothing)."""

    fault: Fault
    aftermath: str
    injected: bool
    problem: str
    traceback: bool = False

    def __str__(self) -> str:
        return f"{self.fault}, {self.aftermath}: {self.problem or 'fine'}"


class Sweeps:
    """The same small sweep again and again, in new folders under one folder.

    Attributes:
        calls: the system calls of an undisturbed run.
        table: its results.
    """

    def __init__(self, folder: Path, zygote: Zygote) -> None:
        self._folder, self._zygote = folder, zygote
        self._experiment = write_experiment(folder / "small.py", tasks=3, examples=10, first=1)
        status, text = self._run(NO_FAULT)
        assert status == 0, text
        self.calls = read_log(self._log)
        self.table = Results.open(self._root).frame()
        assert len(self.table) > 0
        assert not self._leftovers()

    @property
    def _root(self) -> Path:
        return self._watched / "results"

    @property
    def _watched(self) -> Path:
        return self._folder / "watched"  # with the results folder's own name

    @property
    def _log(self) -> Path:
        return self._folder / "calls.txt"

    @property
    def _shadows(self) -> Path:
        return self._folder / "shadows"

    def check(self, fault: Fault, aftermaths: tuple[str, ...] = AFTERMATHS) -> list[Ending]:
        """Run with the fault, look at what is left, and run again without it, once per aftermath."""
        status, text = self._run(fault)
        calls = read_log(self._log)
        injected = any(call.mark == "injected" for call in calls)
        if not fault.crashes:
            problem = self._judge(fault, status, text) or self._look() or self._repeat()
            return [Ending(fault, "", injected, problem, "Traceback" in text)]
        if injected != (status == -9):
            return [Ending(fault, "", injected, f"status {status}: {text}")]
        left = self._folder / "left"
        shutil.rmtree(left, ignore_errors=True)
        self._watched.rename(left)
        endings: list[Ending] = []
        for aftermath in aftermaths:
            shutil.rmtree(self._watched, ignore_errors=True)
            shutil.copytree(left, self._watched)
            self._age(aftermath, calls)
            problem = self._look(_lasting(calls)) or self._repeat()
            endings.append(Ending(fault, aftermath, injected, problem))
        return endings

    def _age(self, aftermath: str, calls: list[Call]) -> None:
        failure = PowerFailure(calls)
        if aftermath != AFTERMATHS[0]:
            failure.lose_contents(0.5 if "half" in aftermath else 0.0)
        if "names" in aftermath:
            failure.lose_names(self._shadows)

    def _run(self, fault: Fault) -> tuple[int, str]:
        for folder in (self._watched, self._shadows):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        self._log.unlink(missing_ok=True)
        return self._command(arming(fault, self._watched, self._log, self._shadows))

    def _command(self, fault: tuple[str | int, ...] = ()) -> tuple[int, str]:
        output = self._folder / "output.txt"
        output.unlink(missing_ok=True)
        seconds = "0" if fault else "60"  # repeated without checkpoints, which would overwrite what was left
        command = ("run", self._experiment, "--kernel", "reference", "--jobs", "1", "--checkpoint-seconds", seconds)
        status = self._zygote.run(*command, "--out", self._root, output=output, fault=fault)
        return status, output.read_text()

    def _judge(self, fault: Fault, status: int, text: str) -> str:
        """What is wrong with how the command ended."""
        if status not in (0, 1) or "Traceback" in text:
            return f"status {status}: {text}"
        if status == 1 and "neoteny: " not in text:
            return f"no message: {text}"
        left = [path.name for path in self._root.rglob("*.tmp")]
        if left and fault.kind != "unlink":
            return f"left {left}"
        return ""

    def _look(self, lasting: frozenset[str] = frozenset()) -> str:
        """What is wrong with the folder as it is: results that are not those of the undisturbed run, or lost ones."""
        try:
            results = Results.open(self._root)
            status_text(results)
            found, finished = results.frame(), results.finished_runs()
        except StoreError as error:
            return f"lost: {error}" if lasting or list(self._root.glob("parts/*.parquet")) else ""
        expected = self.table[self.table["run_id"].isin(finished)].reset_index(drop=True)
        if not _same(found, expected):
            return "another table"
        present = {path.stem for path in self._root.glob("parts/*.parquet")}
        return "" if lasting <= present else f"finished stacks {sorted(lasting - present)} are lost"

    def _repeat(self) -> str:
        """What is wrong after the same command without a fault."""
        status, text = self._command()
        if status:
            return f"repeated, status {status}: {text}"
        if not _same(Results.open(self._root).frame(), self.table):
            return "another table at the end"
        left = self._leftovers()
        return f"leftovers {left}" if left else ""

    def _leftovers(self) -> list[str]:
        """Files that a finished sweep does not need."""
        temporary = [*self._root.rglob("*.tmp"), *self._root.glob("checkpoints/*"), *self._root.glob("unfinished/*")]
        return sorted(str(path.relative_to(self._root)) for path in temporary)


def _same(found: pd.DataFrame, expected: pd.DataFrame) -> bool:
    return (found.empty and expected.empty) or found.equals(expected)


def _lasting(calls: list[Call]) -> frozenset[str]:
    """The stacks whose table had its final name when its folder was synced: no crash may take them away."""
    named: set[str] = set()
    lasting: set[str] = set()
    for call in calls:
        if call.mark == "done" and call.kind == "rename" and call.other is not None and call.other.suffix == ".parquet":
            if call.other.parent.name == "parts":
                named.add(call.other.stem)
        elif call.mark == "done" and call.kind == "fsync" and call.path.name == "parts":
            lasting |= named
    return frozenset(lasting)
