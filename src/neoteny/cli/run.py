"""`neoteny run`: from the options of the command line to workers in a results folder, and what is said about them."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from neoteny import experiments
from neoteny.experiments import Experiment
from neoteny.problems.problem import Problem, Source
from neoteny.suite import running
from neoteny.suite.configuration import describe
from neoteny.suite.identity import run_ids, setting_digest, setting_digests
from neoteny.suite.progress import Display
from neoteny.suite.stacks import Run, runs_of
from neoteny.suite.stopping import StopFlag
from neoteny.suite.store.errors import Stopped
from neoteny.suite.store.results import Results
from neoteny.suite.sweep import Sweep, nearest
from neoteny.suite.workers import run_workers, stop_with_parent

STOPPED = 130
"""Exit status after Ctrl-C, as shells have it."""


@dataclass(frozen=True)
class Launch:
    """Everything that a run needs, checked: the data is there, the folder is ours.

    `every` has one run of each setting, also of those that --methods leaves for later.
    """

    options: argparse.Namespace
    experiment: Experiment
    sweep: Sweep
    results: Results
    streams: dict[Problem, Source]
    device: torch.device
    kernel: str
    wanted: list[Run]
    every: list[Run]

    def carry_out(self) -> int:
        """Run everything that is left, in this process or in several; returns the exit status."""
        self._plan()
        jobs = self._choose_jobs()
        root = self.results.root
        stop = StopFlag()
        with stop.listening(), Display(self.results) as display:
            try:
                if jobs == 1:
                    failures = [
                        f"neoteny: {line}"
                        for line in self._worker(stop, display.say, alone=True, threads=_threads(1)).run()
                    ]
                else:
                    failures = self._share(jobs, stop, display)
            except Stopped as stopped:
                again = f"Stopped. Give the same command again to go on; `neoteny status {root}` says how far it is."
                display.say("\n".join(filter(None, [str(stopped), again])))
                return STOPPED
        for failure in failures:
            complain(failure)
        if failures:
            complain("Finished runs are kept; give the same command again to try the rest.")
            return 1
        print(f"Done. `neoteny report {root}` makes the page, `neoteny claims {root}` the verdicts.")
        return 0

    def work_for_parent(self) -> int:
        """Be one of several processes, until all is done or the parent is gone; returns the exit status."""
        stop = StopFlag()
        stop_with_parent(stop)
        with stop.listening():
            try:
                failures = self._worker(stop, complain, alone=False, threads=self.options.worker).run()
            except Stopped:
                return STOPPED
        for failure in failures:
            complain(f"neoteny: {failure}")
        return 1 if failures else 0

    def _worker(self, stop: StopFlag, say: running.Say, alone: bool, threads: int) -> running.Worker:
        return running.Worker(
            self.sweep,
            self.results,
            self.streams,
            self.device,
            self.kernel,
            stop,
            say,
            self.options.checkpoint_seconds,
            alone,
            threads,
        )

    def _share(self, jobs: int, stop: StopFlag, display: Display) -> list[str]:
        """Let several processes share the stacks; what failed."""
        failures, notes = run_workers([*self._arguments(), "--worker", str(_threads(jobs))], jobs, stop)
        plan = self.results.plan()
        if failures and not plan["more"] and self.results.finished_runs().issuperset(plan["runs"]):
            failures, notes = [], "\n".join(failures)  # another worker has done what one could not
        if notes:
            display.say(notes)
        return failures

    def _choose_jobs(self) -> int:
        stacks = running.plan_stacks(self.sweep, self.results, self.wanted)
        jobs = self.options.jobs or (1 if self.device.type == "cuda" else os.cpu_count() or 1)
        if self.sweep.selection is None:
            jobs = min(jobs, max(1, len(stacks)))
        complain(
            f"{self.experiment.name}, scale {self.options.scale}: {len(self.wanted)} runs, {len(stacks)} stacks to "
            f"train, {jobs} process{'es' if jobs > 1 else ''}, on {self.device.type}, results in "
            f"{self.results.root}"
        )
        return jobs

    def _plan(self) -> None:
        """Write down what is wanted, for `status`, reports and those who go on with it."""
        more = ""
        if self.sweep.selection is not None:
            each, count = " and ".join(self.sweep.selection.by), self.sweep.selection.more_runs
            more = f"Then the best setting of each {each} gets {count} more runs."
        path, before = self.experiment.path, self.results.plan()
        settings = self._settings(set(before["settings"]))
        planned = dict.fromkeys([*self._still_wanted(before, settings), *(run.run_id for run in self.wanted)])
        self.results.write_plan(
            {
                "runs": list(planned),
                "settings": sorted(settings),
                "left_out": self._left_out(planned),
                "more": more,
                "command": shlex.join(["neoteny", *self._arguments()]),
                "folder": "" if path is None else str(path.resolve().parent),
            }
        )
        others = self.results.other_runs()
        if others:
            complain(
                f"{len(others)} finished runs in {self.results.root} are of settings that the experiment does not have "
                "now, or were trained by another path (see --kernel); they are kept, and reports leave them out."
            )

    def _settings(self, before: set[str]) -> set[str]:
        """The settings that count, by their digests.

        Those of methods that --methods leaves out stay what an earlier command had, on another device it may be.
        """
        now = {setting.method for setting in self.sweep.settings}
        found: set[str] = set()
        for run in self.every:
            kept = set() if run.setting.method in now else before & setting_digests(run.configuration)
            found |= kept or {setting_digest(run.configuration)}
        return found

    def _still_wanted(self, before: Mapping[str, Any], settings: Collection[str]) -> list[str]:
        """The runs that an earlier command set out to do, where this one only says which methods come first."""
        if not self.options.methods or not before["runs"]:
            return []
        if set(before["settings"]) == settings:
            return before["runs"]
        known = {one for run in self.every for one in setting_digests(run.configuration)}
        if not known.issuperset(before["settings"]):  # of an earlier version of the experiment
            return []
        more = self.sweep.selection.more_runs if self.sweep.selection else 0
        instead: set[str] = set()  # the runs of these methods by any path: this command's come in their place
        for setting in self.sweep.settings:
            for run in runs_of(self.sweep, [setting], self.kernel, range((setting.runs or self.sweep.runs) + more)):
                instead |= run_ids(run.configuration)
        return [run for run in before["runs"] if run not in instead]

    def _left_out(self, planned: Collection[str]) -> list[str]:
        """Methods of the experiment of which nothing is planned yet."""
        begun = {run.setting.method for run in self.every if not run_ids(run.configuration).isdisjoint(planned)}
        return list(dict.fromkeys(run.setting.method for run in self.every if run.setting.method not in begun))

    def _arguments(self) -> list[str]:
        """What was asked for, as arguments of another process or for the person who goes on with it."""
        usual = {
            "methods": None, "runs": None, "device": "auto", "kernel": "auto", "data": None, "checkpoint_seconds": 60.0,
        }  # fmt: skip
        given = ["run", self.options.experiment, "--scale", self.options.scale, "--out", str(self.results.root)]
        for name, value in usual.items():
            if getattr(self.options, name) != value:
                given += [f"--{name.replace('_', '-')}", str(getattr(self.options, name))]
        return given


def prepare(options: argparse.Namespace) -> Launch:
    """Load the experiment, find its data and open its folder; whatever is wrong is said before anything is written."""
    experiment = experiments.load(options.experiment)
    sweep = experiment.make_sweep(options.scale)
    if options.runs is not None:
        settings = tuple(dataclasses.replace(setting, runs=None) for setting in sweep.settings)
        sweep = dataclasses.replace(sweep, runs=options.runs, settings=settings)
    device = running.choose_device(options.device, sweep)
    kernel = running.choose_kernel(options.kernel, device)
    every = runs_of(sweep, sweep.settings, kernel, range(1))
    streams = running.open_problems(sweep, options.data)
    about = {
        "experiment": experiment.name,
        "scale": options.scale,
        "data": ", ".join(sorted({stream.fingerprint for stream in streams.values() if stream.fingerprint})),
        "configuration": describe(sweep),
        "versions": running.versions(),
    }
    root = options.out or Path("results") / f"{experiment.name}-{options.scale}"
    sweep = _keep_methods(sweep, options.methods)
    wanted = runs_of(sweep, sweep.settings, kernel)
    results = Results.create(root, about, None if experiment.path is None else experiment.path.read_bytes())
    return Launch(options, experiment, sweep, results, streams, device, kernel, wanted, every)


def _keep_methods(sweep: Sweep, names: str | None) -> Sweep:
    """The settings of these methods alone, all where none is named."""
    if names is None:
        return sweep
    known = list(dict.fromkeys(setting.method for setting in sweep.settings))
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in known:
            raise ValueError(
                f"--methods: this experiment has no method {name!r}.{nearest(name, known)} It has {', '.join(known)}."
            )
    settings = tuple(setting for setting in sweep.settings if setting.method in wanted)
    return dataclasses.replace(sweep, settings=settings)


def _threads(jobs: int) -> int:
    """Threads for each of so many processes."""
    return max(1, (os.cpu_count() or 1) // jobs)


def complain(line: str) -> None:
    """A line for the person who waits, apart from what the command prints as its result."""
    print(line, file=sys.stderr, flush=True)
