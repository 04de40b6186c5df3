"""The commands that show something: list, status, claims, report and data."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from neoteny.text import render

if TYPE_CHECKING:
    import pandas as pd

    from neoteny.experiments import Experiment
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


def command_status(folder: Path) -> int:
    """Print how far a results folder is."""
    from neoteny.suite.progress import status_text
    from neoteny.suite.store.folder import ResultsFolder

    print(status_text(ResultsFolder.open(folder)))
    return 0


def command_claims(folder: Path, so_far: bool, tasks: int | None) -> int:
    """Print the verdict on every claim."""
    from neoteny.report.claim import Outcome
    from neoteny.suite.store.results import Results

    results = Results.open(folder)
    experiment = find_experiment(results)
    frame = read_frame(results, experiment, so_far, tasks)
    counts = dict.fromkeys(Outcome, 0)
    for claim in experiment.claims:
        verdict = experiment.evaluate(claim, frame)
        counts[verdict.outcome] += 1
        print(f"[{verdict.outcome}] {claim.statement} ({claim.source})\n    {verdict.evidence}")
    print("\n" + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    metric = experiment.make_sweep(results.about["scale"]).problem.performance
    for what, text in _describe_part(frame, results, metric, tasks).items():
        print(f"{what}: {text}")
    if experiment.unchecked:
        print("\nNot checked:")
    for statement in experiment.unchecked:
        print(f"- {statement.statement} ({statement.source})\n    {statement.reason}")
    return 0


def command_report(folder: Path, so_far: bool, tasks: int | None) -> int:
    """Write the page and the figures."""
    from neoteny.suite.store.errors import StoreError
    from neoteny.suite.store.files import try_lock
    from neoteny.suite.store.results import Results

    results = Results.open(folder)
    with try_lock(results.root / "locks" / "report.lock") as mine:
        if not mine:
            raise StoreError(f"Another process is writing the report of {results.root} now; wait for it.")
        _make_report(results, find_experiment(results), so_far, tasks)
    return 0


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
    from neoteny.suite.store.errors import StoreError
    from neoteny.suite.store.tables import take_first_tasks

    frame = results.frame(so_far=so_far or tasks is not None)
    if tasks is not None:
        frame = take_first_tasks(frame, tasks, experiment.make_sweep(results.about["scale"]).points_per_task)
        if frame.empty:
            raise StoreError(
                f"--tasks {tasks}: no run of {results.root} has finished that many tasks; "
                f"`neoteny status {results.root}` says how far it is."
            )
    return frame


def _make_report(results: Results, experiment: Experiment, so_far: bool, tasks: int | None) -> None:
    """Write report.html and the figures; print the table, the verdicts and the page's path."""
    from neoteny.report.figures import write_figures
    from neoteny.report.page import Report, write_report
    from neoteny.report.tables import performance_table, to_text

    frame = read_frame(results, experiment, so_far, tasks)
    if frame.empty:
        from neoteny.suite.store.errors import StoreError

        what = "runs with a finished task yet" if so_far else "finished runs yet (--so-far counts unfinished ones too)"
        raise StoreError(f"{results.root} has no {what}; `neoteny status {results.root}` says how far it is.")
    sweep = experiment.make_sweep(results.about["scale"])
    charts = experiment.draw(frame)
    table = performance_table(frame, sweep.problem.performance, sweep.problem.higher_is_better)
    verdicts = [(claim, experiment.evaluate(claim, frame)) for claim in experiment.claims]
    write_figures(results.root, charts)
    page = write_report(
        results.root,
        Report(
            title=experiment.title,
            experiment=experiment.name,
            scale=results.about["scale"],
            description=experiment.description,
            charts=charts,
            tables=[table],
            claims=verdicts,
            unchecked=experiment.unchecked,
            chosen=[(item.what, item.value, item.reason) for item in sweep.chosen],
            configuration=results.about["configuration"],
            facts={**_facts(results), **_describe_part(frame, results, sweep.problem.performance, tasks)},
        ),
    )
    print(to_text(table, shutil.get_terminal_size((120, 24)).columns), end="\n\n")
    for claim, verdict in verdicts:
        print(f"[{verdict.outcome}] {claim.statement}")
    print(f"\n{page}")


def _facts(results: Results) -> dict[str, str]:
    from neoteny.suite.progress import format_seconds

    parts = results.parts()
    planned = results.plan()["runs"]
    finished = results.finished_runs()
    left = [run for run in planned if run not in finished]
    diverged = sum(run["diverged_at_update"] is not None for part in parts for run in part["runs"])
    facts = {
        "Runs": f"{len(finished)} finished" + (f", {len(left)} left" if left else ""),
        "Diverged": str(diverged),
        "Training time": f"{format_seconds(sum(part['seconds'] for part in parts))}, summed over finished stacks",
        "Machine": "; ".join(sorted({part["machine"] for part in parts})),
        "Backend": "; ".join(sorted({f"{part['kernel']} on {part['device']}" for part in parts})),
        "Versions": "; ".join(
            sorted({", ".join(f"{name} {number}" for name, number in part["versions"].items()) for part in parts})
        ),
    }
    if results.about["data"]:
        facts["Data"] = results.about["data"]
    return {name: text for name, text in facts.items() if text}  # where nothing has finished there is no machine


def _describe_part(frame: pd.DataFrame, results: Results, metric: str, tasks: int | None) -> dict[str, str]:
    """Which runs or tasks this report leaves out; `metric` is one that every task has."""
    from neoteny.report.statistics import say_count

    facts = {"Tasks shown": f"the first {tasks} of each run that has them"} if tasks is not None else {}
    rows = frame[(frame["metric"] == metric) & ~frame["run_id"].isin(results.finished_runs())]
    runs = rows.groupby(["setting", "run_id"]).size().groupby(level="setting").agg(["count", "min", "max"])
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

    print(list_text(data) if action == "list" else fetch_with_progress(name, data))
    return 0


def find_experiment(results: Results) -> Experiment:
    """The experiment of a results folder: the package's, or the copy of the user's file beside the results."""
    from neoteny import experiments

    name, copied = results.about["experiment"], results.root / "experiment.py"
    if name in experiments.VARIANTS or not copied.exists():  # variants were files once: their old folders have a copy
        return experiments.load(name)
    return experiments.load(str(copied), name, results.plan()["folder"])
