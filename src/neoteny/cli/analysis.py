"""What `neoteny claims` and `neoteny report` show of a results folder: made by the experiment's code, or saved before.

Before this: `trust`, which says whose code may run; after it: `show`.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from neoteny.cli.trust import DIGEST, find_experiment
from neoteny.experiments import Experiment
from neoteny.report.analysis import Analysis, read_saved
from neoteny.suite.store.errors import StoreError
from neoteny.suite.store.results import Results
from neoteny.suite.store.tables import take_first_tasks
from neoteny.suite.sweep import Sweep
from neoteny.text import say_count


@dataclass(frozen=True)
class Part:
    """Which part of a results folder to show, and by which file.

    Args:
        file: the experiment file that the user gives; None: the package's own, or what was saved.
        trust: whether to run a file that is not known to have made the folder.
        so_far: whether unfinished runs count as far as they are.
        tasks: the first tasks of each run, finished or not, that has them; None: all.
    """

    file: Path | None = None
    trust: bool = False
    so_far: bool = False
    tasks: int | None = None


def analyse(results: Results, part: Part, may_be_empty: bool = True) -> tuple[Analysis, pd.DataFrame, str]:
    """What the experiment says of a folder's results, the results, and a note where it was saved before.

    Args:
        results: the folder.
        part: of it.
        may_be_empty: whether a folder without results is no error.
    """
    experiment = find_experiment(results, part.file, part.trust)
    if experiment is None:
        return _read_analysis(results, part, may_be_empty)
    frame = read_frame(results, experiment, part.so_far, part.tasks)
    if not may_be_empty:
        _refuse_empty(results, frame, part)
    sweep = experiment.make_sweep(results.about["scale"])
    try:
        return experiment.analyse(frame, sweep), frame, ""
    except Exception as error:
        _check_settings(results, frame, sweep, error)
        raise


def _check_settings(results: Results, frame: pd.DataFrame, sweep: Sweep, error: Exception) -> None:
    """Say so where results cannot be read because they are not of the experiment that the folder names."""
    unknown = set(frame["setting"]) - {setting.label for setting in sweep.settings}
    if unknown:
        raise StoreError(
            f"{results.root} says that it is of {results.about['experiment']}, but has settings that this has not: "
            f"{', '.join(sorted(unknown)[:3])}. It is of something else, or of another version of neoteny."
        ) from error


def _read_analysis(results: Results, part: Part, may_be_empty: bool) -> tuple[Analysis, pd.DataFrame, str]:
    """The analysis that was saved in a folder when its experiment's file ran."""

    root = results.root
    options = (" --so-far" if part.so_far else "") + (f" --tasks {part.tasks}" if part.tasks is not None else "")
    again = f"neoteny report {shlex.quote(str(root))} FILE.py{options}"
    how = f"give its file, `{again}`, or if you trust the folder run its copy with --trust"
    if options:
        raise StoreError(
            f"--so-far and --tasks need the code of the experiment, and {root} is of a file of its own, which is not "
            f"run unless you say so: {how}."
        )
    frame = results.frame()
    if not may_be_empty:
        _refuse_empty(results, frame, part)
    saved = read_saved(root, results.sealed)
    if saved is None:
        raise StoreError(
            f"The figures and claims of {root} are made by a file of its own, which is not run unless you say so, and "
            f"none were saved (`neoteny run` saves them when runs are finished). To make them, {how}."
        )
    note = f"The figures and claims are those that `neoteny run` saved on {saved.when}"
    if saved.sha256 != results.about.get(DIGEST):
        note += ", with another version of the file"
    finished = len(results.finished_runs())
    if saved.runs != finished:
        note += f", of {say_count(saved.runs, 'finished run')} where there are {finished} now"
    return saved.analysis, frame, f"{note}. To make them again, {how}."


def _refuse_empty(results: Results, frame: pd.DataFrame, part: Part) -> None:
    if frame.empty:
        finished = "finished runs yet (--so-far counts unfinished ones too)"
        what = "runs with a finished task yet" if part.so_far else finished
        raise StoreError(f"{results.root} has no {what}; {_see_status(results)}")


def _see_status(results: Results) -> str:
    return f"`neoteny status {shlex.quote(str(results.root))}` says how far it is."


def read_frame(
    results: Results, experiment: Experiment, so_far: bool = False, tasks: int | None = None
) -> pd.DataFrame:
    """The results of a folder.

    Args:
        results: the folder.
        experiment: what it is of.
        so_far: whether unfinished runs count as far as they are.
        tasks: the first tasks of each run, finished or not, that has them; None: all.
    """
    # A user's file gets the texts as they are; the package's own experiments are several times faster with categories.
    frame = results.frame(so_far=so_far or tasks is not None, categories=experiment.code is None)
    if tasks is not None:
        frame = take_first_tasks(frame, tasks, experiment.make_sweep(results.about["scale"]).points_per_task)
        if frame.empty:
            raise StoreError(
                f"--tasks {tasks}: no run of {results.root} has finished that many tasks; {_see_status(results)}"
            )
    return frame
