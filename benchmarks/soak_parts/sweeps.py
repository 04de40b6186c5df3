"""What the suite does for a long time: one sweep of many tasks, and reports of a folder while it is written."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from neoteny.cli import main as neoteny
from neoteny.cli.run import STOPPED
from neoteny.suite.store.folder import ResultsFolder
from soak_parts.growth import Growth, Limits, look, sample_points

FILE = "watched.py"
EXPERIMENT = '''
"""A sweep that is watched while it runs."""
from neoteny.methods import SGD, ContinualBackprop
from neoteny.nets import MLP
from neoteny.problems import SlowlyChangingRegression
from neoteny.report.chart import Chart
from neoteny.report.claim import Claim, above
from neoteny.report.statistics import curve, paired, per_run, select
from neoteny.suite.sweep import Setting, Sweep, network


def sweep(scale):
    settings = [
        Setting(f"CBP {width}", network(MLP, hidden=(width,)), (SGD(0.01), ContinualBackprop(1e-2)), {"width": width})
        for width in range(5, 5 + SETTINGS)
    ]
    problem = SlowlyChangingRegression(tasks=TASKS, examples_per_task=EXAMPLES)
    return Sweep(problem, tuple(settings), runs=2, measures=("dead_units",), measure_every=10, probe_examples=50)


def figure(frame):
    return [Chart("error", "task", "error", [curve(select(frame, "error", width=5), "CBP 5")])]


def check(frame):
    rows = select(frame, "error", width=5)
    return above(paired(per_run(rows, start=-5), per_run(rows, start=0)), what="change of the error")


claims = (Claim("changes", "The error changes.", "nowhere", check),)
'''


@contextlib.contextmanager
def running_sweep(settings: int, tasks: int, examples: int) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process that trains the experiment, with a checkpoint every half second; it is ended on leaving."""
    with tempfile.TemporaryDirectory() as place:
        file, folder = Path(place, FILE), Path(place, "results")
        text = EXPERIMENT.lstrip()
        for name, value in {"SETTINGS": settings, "TASKS": tasks, "EXAMPLES": examples}.items():
            text = text.replace(name, str(value))
        file.write_text(text)
        options = ["--jobs", "1", "--kernel", "reference", "--checkpoint-seconds", "0.5", "--out", str(folder)]
        command = [sys.executable, "-m", "neoteny", "run", str(file), *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield process, folder
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()


def wait_for(process: subprocess.Popen[bytes], happened: Callable[[], bool]) -> bool:
    """Whether it happened before the process ended."""
    while not (done := happened()) and process.poll() is None:
        time.sleep(0.02)
    return done


def finished_tasks(folder: Path) -> int:
    """How many tasks all stacks of a sweep have finished together."""
    return sum(int(entry["task"]) for entry in ResultsFolder(folder).progress().values())


def sweep(iterations: int) -> Growth:
    """The process of one long sweep, looked at from outside.

    It is not quite flat: the results of every task are kept, about 1.2 KiB, or 3.4 with what saving them leaves in the
    allocator.
    """
    growth = Growth("tasks of a sweep", Limits(memory_mib=2.0 + 2.5 * iterations / 1024))  # 5 KiB per task
    examples = max(60, 12_000 // iterations)  # long enough for the progress, written every half second, to keep up
    with running_sweep(1, iterations + iterations // 2, examples) as (process, folder):  # it does not come to its end
        for stop in sample_points(iterations):
            if not wait_for(process, lambda stop=stop: finished_tasks(folder) >= max(1, stop)):
                break
            with contextlib.suppress(OSError):
                growth.add(look(finished_tasks(folder), process.pid))
    if process.returncode != STOPPED:
        growth.faults.append(f"the sweep ended with status {process.returncode}, expected {STOPPED} after a signal")
    return growth


def reports(iterations: int) -> Growth:
    """Reports, claims and statuses of a folder, while a sweep writes it."""
    growth = Growth(
        "reports", Limits(memory_mib=8.0 if iterations >= 50 else 40.0, blocks=5000.0)
    )  # buffers come and go
    seen: list[int] = []
    live = 0

    with running_sweep(settings=iterations, tasks=40, examples=150) as (process, folder):
        unfinished = folder / "unfinished"
        wait_for(process, lambda: any(unfinished.glob("[0-9a-f]*.parquet")))

        def act() -> None:
            nonlocal live
            live += process.poll() is None
            with_file = [str(folder), str(folder.with_name(FILE)), "--so-far"]
            for command in (["report", *with_file], ["claims", *with_file], ["status", str(folder)]):
                told = io.StringIO()
                with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
                    code = neoteny(command)
                if code:
                    growth.faults.append(f"{command[0]} {len(seen)}: {told.getvalue().strip()}")
            page = folder / "report.html"
            if not page.exists() or not page.read_text().rstrip().endswith("</html>"):
                growth.faults.append(f"report {len(seen)} is cut short")
            seen.append(finished_tasks(folder))

        growth.repeat(iterations, act)
        parts = len(list((folder / "parts").glob("*.parquet")))
    growth.note = (
        f"the sweep was running at {live} of {len(seen)}, and went from {seen[0]} to {seen[-1]} tasks and {parts} "
        "finished stacks meanwhile"
    )
    return growth
