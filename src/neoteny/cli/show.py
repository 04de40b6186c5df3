"""The commands that show something: list, status, claims, report and data."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

from neoteny.text import printable, render

if TYPE_CHECKING:
    import pandas as pd

    from neoteny.cli.analysis import Part
    from neoteny.report.analysis import Analysis
    from neoteny.suite.store.results import Results


def command_list() -> int:
    """List everything that has a name."""
    from neoteny.cli.catalogue import list_experiments, list_things

    tables = [
        *(render([group, "what it shows"], lines) for group, lines in list_experiments().items()),
        *(render([kind, "what it is"], lines) for kind, lines in list_things().items()),
    ]
    print("\n\n".join(tables))
    return 0


def command_status(folder: Path, follow: bool) -> int:
    """Print how far a results folder is, once or until it is finished; or each of those below it, once."""
    from neoteny.cli.trust import command_to_continue
    from neoteny.suite.progress import status_text
    from neoteny.suite.schedulers.queue import LIVE, describe_jobs, read_jobs, states_of
    from neoteny.suite.store.folder import ResultsFolder

    below = [] if (folder / "experiment.json").exists() else sorted(folder.glob("*/experiment.json"))
    if below and not follow:  # of `neoteny run field`
        for path in below:
            say(f"{path.parent}:")
            command_status(path.parent, follow)
        return 0
    results = ResultsFolder.open(folder)
    if follow:
        from neoteny.suite.follow import follow as show_again_and_again

        show_again_and_again(results)
    jobs = read_jobs(folder)
    states = states_of(jobs)
    text = status_text(results, command_to_continue(results), queued=any(state in LIVE for state in states.values()))
    say("\n".join(filter(None, [text, describe_jobs(jobs, states)])))
    return 0


def command_claims(folder: Path, file: Path | None, trust: bool, so_far: bool, tasks: int | None) -> int:
    """Print the verdict on every claim; the exit status is 1 where the experiment's own code failed."""
    from neoteny.cli.analysis import Part, analyse
    from neoteny.report.claim import Outcome
    from neoteny.suite.store.results import Results

    results = Results.open(folder)
    analysis, frame, note = analyse(results, Part(file, trust, so_far, tasks))
    counts = dict.fromkeys(Outcome, 0)
    for claim, verdict in analysis.claims:
        counts[verdict.outcome] += 1
        say(f"[{verdict.outcome}] {claim.statement} ({claim.source})\n    {verdict.evidence}")
    say("\n" + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    for what, text in _describe_part(frame, results, analysis.metric, tasks).items():
        say(f"{what}: {text}")
    if analysis.unchecked:
        say("\nNot checked:")
    for statement in analysis.unchecked:
        say(f"- {statement.statement} ({statement.source})\n    {statement.reason}")
    if note:
        say(f"\n{note}")
    return _complain(analysis)


def command_report(folder: Path, file: Path | None, trust: bool, so_far: bool, tasks: int | None) -> int:
    """Write the page and the figures; the exit status is 1 where the experiment's own code failed."""
    from neoteny.cli.made import Made
    from neoteny.suite.store.errors import StoreError
    from neoteny.suite.store.files import try_lock
    from neoteny.suite.store.folder import ResultsFolder

    results, width = ResultsFolder.open(folder), shutil.get_terminal_size((120, 24)).columns
    results.refuse_links()
    if not os.access(results.root, os.W_OK):
        raise StoreError(
            f"{results.root} cannot be written, and a report is written into its folder. Make a copy of the folder, or "
            "look at it with `neoteny claims` or `neoteny watch`, which write nothing."
        )
    with try_lock(results.root / "locks" / "report.lock") as mine, _keep_garbage():
        if not mine:
            raise StoreError(f"Another process is writing the report of {results.root} now; wait for it.")
        whole = file is None and not trust and not so_far and tasks is None
        made = Made(results, width) if whole else None
        said = made.recall() if made else None
        if said is not None:
            say(f"{said}\n(Made before: neither the results nor the code have changed since.)")
            return 0
        from neoteny.cli.analysis import Part

        written = _make_report(folder, Part(file, trust, so_far, tasks), width)
        if made and written.status == 0:
            made.keep(written.said, written.files, written.runs)
        return written.status


@contextlib.contextmanager
def _keep_garbage() -> Iterator[None]:
    """Do not look for garbage in a short command: among the objects of 20,000 runs that takes half a second."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Written(NamedTuple):
    """A report that was made: the exit status, what was printed, the files, and the number of finished runs."""

    status: int
    said: str
    files: list[Path]
    runs: int


def _complain(analysis: Analysis) -> int:
    """Print what failed in the experiment's own code; returns the exit status."""
    for failure in analysis.failures:
        say(f"neoteny: {failure}", sys.stderr)
    return 1 if analysis.failures else 0


def _make_report(folder: Path, part: Part, width: int) -> Written:
    """Write report.html and the figures; print the table, the verdicts and the page's path."""
    from neoteny.cli.analysis import analyse
    from neoteny.report.figures import write_figures
    from neoteny.report.page import Report, write_report
    from neoteny.report.tables import performance_table, to_text
    from neoteny.suite.store.results import Results

    results = Results.open(folder)
    analysis, frame, note = analyse(results, part, may_be_empty=False)
    table = performance_table(frame, analysis.metric, analysis.higher_is_better)
    figures = write_figures(results.root, analysis.charts)
    page = write_report(
        results.root,
        Report(
            title=analysis.title,
            experiment=results.about["experiment"],
            scale=results.about["scale"],
            description=analysis.description,
            charts=analysis.charts,
            tables=[table],
            claims=analysis.claims,
            unchecked=analysis.unchecked,
            chosen=analysis.chosen,
            configuration=results.about["configuration"],
            facts={**_facts(results), **_describe_part(frame, results, analysis.metric, part.tasks)},
            note=note,
            failures=analysis.failures,
        ),
    )
    lines = [
        to_text(table, width),
        "",
        *(f"[{verdict.outcome}] {claim.statement}" for claim, verdict in analysis.claims),
    ]
    lines += [*(["", note] if note else []), "", str(page)]
    said = "\n".join(lines)
    say(said)
    return Written(_complain(analysis), said, [page, *figures], len(results.finished_runs()))


def _facts(results: Results) -> dict[str, str]:
    from neoteny.suite.progress import format_seconds
    from neoteny.suite.store.records import runs_in

    parts = results.records()
    planned = results.plan()["runs"]
    finished = runs_in(parts)
    left = [run for run in planned if run not in finished]
    facts = {
        "Runs": f"{len(finished)} finished" + (f", {len(left)} left" if left else ""),
        "Diverged": str(sum(part.diverged for part in parts)),
        "Training time": f"{format_seconds(sum(part.seconds for part in parts))}, summed over finished stacks",
        "Machine": "; ".join(sorted({part.machine for part in parts})),
        "Backend": "; ".join(sorted({part.backend for part in parts})),
        "Versions": "; ".join(sorted({part.versions for part in parts})),
    }
    if results.about["data"]:
        facts["Data"] = results.about["data"]
    facts["Checksums"] = results.describe_missing_checksums(parts)
    return {name: text for name, text in facts.items() if text}  # where nothing has finished there is no machine


def _describe_part(frame: pd.DataFrame, results: Results, metric: str, tasks: int | None) -> dict[str, str]:
    """Which runs or tasks this report leaves out; `metric` is one that every task has."""
    from neoteny.text import say_count

    facts = {"Tasks shown": f"the first {tasks} of each run that has them"} if tasks is not None else {}
    rows = frame[(frame["metric"] == metric) & ~frame["run_id"].isin(results.finished_runs())]
    tasks_of = rows.groupby(["setting", "run_id"], observed=True).size()
    runs = tasks_of.groupby(level="setting", observed=True).agg(["count", "min", "max"])
    if len(runs):
        facts["Unfinished"] = "; ".join(
            f"{setting}, {say_count(count, 'run')} with "
            f"{'' if least == most else f'{least} to '}{say_count(most, 'task')}"
            for setting, count, least, most in runs.itertuples()
        )
    return facts


def command_data(action: str, name: str, data: Path | None) -> int:
    """List the datasets, or fetch one."""
    from neoteny.problems.data.texts import fetch_with_progress, list_text

    say(list_text(data) if action == "list" else fetch_with_progress(name, data))
    return 0


def say(text: str, to: TextIO | None = None) -> None:
    """Print text that may come from a folder of somebody else; at once, because a page's address may go to a log."""
    print(printable(text), file=to, flush=True)
