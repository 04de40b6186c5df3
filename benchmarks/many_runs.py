"""How long `neoteny status`, `run` (with nothing left to do) and `report` take on a results folder of 20,000 runs.

    python benchmarks/many_runs.py                       # stacks as they are planned: some dozen parts
    python benchmarks/many_runs.py --runs-per-part 1     # 20,000 parts of one run each
    python benchmarks/many_runs.py --scale paper         # four times as many rows, and the second stage of the sweep

The folder is one of scr-cbp. Its parts, progress files and plan are written by the code that writes them in a real run;
only the numbers in the tables are drawn instead of trained. Every command is a process of its own, from its start to
its end. Three columns: without an index (which is removed first), with the index but without a report that is up to
date, and with both. Seconds of wall time and of processor time: on a machine that is busy with other things only the
second says something.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from neoteny.cli.parser import RunOptions
from neoteny.cli.run import Launch, prepare
from neoteny.suite.stacks import PlannedStack, Run, stacks_of, stages
from neoteny.text import render
from support.drawn_results import Drawn, write_drawn

SETTINGS = {"smoke": 10, "laptop": 54, "paper": 434}
"""Settings of scr-cbp at each scale."""
MORE = {"smoke": 0, "laptop": 0, "paper": 3500}
"""Runs of the second stage."""
SETTLED_SECONDS = 3.0
"""Files that have just been written are not indexed."""


def make_folder(root: Path, scale: str, runs: int, runs_per_part: int | None) -> int:
    """Write a finished results folder of about this many runs; returns the value of --runs that it was made with."""
    count = max(1, round((runs - MORE[scale]) / SETTINGS[scale]))
    launch = Launch.of(prepare(RunOptions("scr-cbp", scale=scale, runs=count, out=root, jobs=1)))
    launch._write_plan()
    draws = torch.Generator().manual_seed(0)
    for number, stage in enumerate(stages(launch.sweep, launch.results, launch.kernel)):
        if number:
            launch.results.add_to_plan([run.run_id for run in stage])
        for stack in split(launch, stage, runs_per_part):
            write_drawn(launch.results, stack, Drawn(stack, draws))
    return count


def split(launch: Launch, runs: list[Run], runs_per_part: int | None) -> Iterator[PlannedStack]:
    """The stacks of some runs, cut into parts of at most this many runs."""
    for stack in stacks_of(launch.sweep, runs, ()):
        size = runs_per_part or len(stack.runs)
        for start in range(0, len(stack.runs), size):
            yield PlannedStack(stack.sweep, stack.runs[start : start + size])


def measure(command: list[str]) -> tuple[float, float]:
    """Seconds of wall time and of processor time that a `neoteny` command takes."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run([sys.executable, "-m", "neoteny", *command], check=True, capture_output=True)
    after, ended = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    return ended - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_all(root: Path, scale: str, count: int) -> list[list[str]]:
    """One row per command: without an index, with one, and with a report that is up to date."""
    commands = {
        "status": ["status", str(root)],
        "run": ["run", "scr-cbp", "--scale", scale, "--runs", str(count), "--out", str(root), "--jobs", "1"],
        "report": ["report", str(root)],
    }
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for name, command in commands.items():
        shutil.rmtree(root / "index", ignore_errors=True)
        seconds[name].append(measure(command))
    for name in ("status", "run"):  # the first has made the index
        measure(commands["status"])
        seconds[name].append(measure(commands[name]))
    (root / "index" / "report.json").unlink()
    seconds["report"] += [measure(commands["report"]), measure(commands["report"])]
    return [
        [name, *(f"{wall:.1f} ({cpu:.1f})" for wall, cpu in found), *[""] * (3 - len(found))]
        for name, found in seconds.items()
    ]


def main() -> None:
    """Make a folder, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20_000, metavar="N")
    parser.add_argument("--scale", choices=list(SETTINGS), default="laptop")
    parser.add_argument("--runs-per-part", type=int, metavar="N", help="default: as the stacks are planned")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "out"
        os.fsync = lambda descriptor: None  # the folder need not outlive a lost power supply
        count = make_folder(root, options.scale, options.runs, options.runs_per_part)
        time.sleep(SETTLED_SECONDS)
        parts = len(list((root / "parts").glob("*.parquet")))
        rows = measure_all(root, options.scale, count)
        print(
            f"scr-cbp, scale {options.scale}, about {options.runs:,} runs in {parts:,} parts; wall (processor) seconds"
        )
        print(render(["command", "without an index", "with it", "report up to date"], rows), flush=True)


if __name__ == "__main__":
    main()
