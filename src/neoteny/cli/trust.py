"""What may run to read a results folder, which somebody else may have made.

Results of the package's experiments are read by the package, by name. A user's experiment is read by its file when the
user gives it, or by the copy in the folder with --trust; otherwise what was saved when the file ran is shown. No other
file of a folder is ever run. SECURITY.md has the rules in full.
"""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

from neoteny.cli.parser import SCALES, RunOptions
from neoteny.experiments import EVERY, Experiment, UserCode, load, load_file
from neoteny.suite.store.errors import Damaged, StoreError
from neoteny.suite.store.folder import EXPERIMENT_DIGEST, ResultsFolder

COPY = "experiment.py"
DIGEST = EXPERIMENT_DIGEST


def find_experiment(results: ResultsFolder, file: Path | None = None, trust: bool = False) -> Experiment | None:
    """The experiment that reads a folder, or None where only what was saved can be shown.

    Args:
        results: the folder.
        file: the experiment file that the user gives.
        trust: whether the user trusts this file, or without one the copy in the folder.

    Raises:
        StoreError: the file is not the one that made the folder.
        ExperimentError: the file fails.
    """
    name, root = results.about["experiment"], results.root
    if results.about["scale"] not in SCALES:
        raise StoreError(
            f"{root} says that it is of scale {results.about['scale']!r:.80}; known are {', '.join(SCALES)}."
        )
    if file is not None:
        code = UserCode.read(file)
        if not trust:
            _check_digest(results, code)
        return load_file(code, name)
    if is_ours(results):
        return load(name)
    if not trust:
        return None
    copied = results.find_source()
    if copied is None:
        again = f"`neoteny report {shlex.quote(str(root))} FILE.py`"
        raise StoreError(f"{root} has no {COPY} to run. Give the experiment's file: {again}.")
    return load_file(UserCode.read(copied, results.plan()["folder"]), name)


def is_ours(results: ResultsFolder) -> bool:
    """Whether a folder is of an experiment of the package: by its name, which no user's file may have."""
    return results.about["experiment"] in EVERY


def _check_digest(results: ResultsFolder, code: UserCode) -> None:
    """Refuse a file that is not the one whose runs are in the folder."""
    root, file = results.root, code.path
    if is_ours(results):
        raise StoreError(
            f"{root} has results of {results.about['experiment']}, an experiment of the package, which needs no file. "
            f"Leave {file} out, or add --trust to read the results with it."
        )
    recorded = results.about.get(DIGEST)
    if recorded is None and (root / COPY).is_file():  # made by an earlier version
        recorded = UserCode.read(root / COPY).digest
    if code.digest != recorded:
        again = shlex.join(["neoteny", "run", str(file), "--out", str(root)])
        raise StoreError(
            f"{file} is not the file that {root} was made with. `{again}` records it as it is now and keeps the runs "
            "that it still has; --trust takes it as it is, this time."
        )


def command_to_continue(results: ResultsFolder) -> str:
    """The command that continues a folder, or "" where the folder's own text is not one that is safe to paste.

    It is made again from the options in that text, so that it can hold nothing else.
    """
    try:
        found = RunOptions.from_command(results.plan()["command"])
    except Damaged:  # `status` names it
        found = None
    if found is not None and ":" in (found.track or ""):  # a module's name, which would be imported
        found = dataclasses.replace(found, track=None)
    if is_ours(results):
        name, scale = results.about["experiment"], results.about["scale"]
        found = dataclasses.replace(found or RunOptions(name), experiment=name, scale=scale)
    elif found is None or not found.experiment.endswith(".py") or _is_inside(Path(found.experiment), results.root):
        return ""
    command = found.command(results.root)
    return command if command.isprintable() else ""


def _is_inside(file: Path, folder: Path) -> bool:
    """Whether a file lies in a folder; the copy there is a record, not a program."""
    return file.resolve().is_relative_to(folder.resolve())
