"""`neoteny run`: from the options of the command line to workers in a results folder."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from neoteny import experiments
from neoteny.cli.parser import RunOptions
from neoteny.cli.trust import DIGEST
from neoteny.experiments import Experiment
from neoteny.problems.problem import Problem, Source
from neoteny.report.analysis import save_analysis
from neoteny.suite.configuration import describe
from neoteny.suite.environment import choose_device, choose_kernel, open_problems, versions
from neoteny.suite.identity import run_ids, setting_digest, setting_digests
from neoteny.suite.processes import run_workers, stop_with_parent
from neoteny.suite.progress import Display
from neoteny.suite.session import Job, Notify
from neoteny.suite.stacks import Run, remaining_stacks, runs_of
from neoteny.suite.stopping import StopFlag
from neoteny.suite.store.errors import Damaged, Stopped, StoreError
from neoteny.suite.store.results import Results
from neoteny.suite.sweep import Sweep
from neoteny.suite.worker import Worker
from neoteny.text import nearest, printable

STOPPED = 130
"""Exit status after Ctrl-C, as shells have it."""


def command_run(**options: Any) -> int:
    """Run an experiment to its end, or until it is stopped."""
    return prepare(RunOptions(**options)).run()


def command_work(options: str, threads: int) -> int:
    """Be one of the processes of `neoteny run --jobs`."""
    return prepare(RunOptions.from_json(options)).work_for_parent(threads)


@dataclass(frozen=True)
class Launch:
    """Everything that a run needs, checked: the data is there, the folder is ours.

    `every` has one run per setting, with the settings that --methods leaves for later.
    """

    options: RunOptions
    experiment: Experiment
    sweep: Sweep
    results: Results
    streams: dict[Problem, Source]
    device: torch.device
    kernel: str
    wanted: list[Run]
    every: list[Run]

    def run(self) -> int:
        """Train everything that is left and save what a user's file says of it; returns the exit status."""
        status = self._train()
        if not self._save_analysis():
            return status or 1
        if status == 0:
            root = self.results.root
            print(f"Done. `neoteny report {root}` writes the page, `neoteny claims {root}` prints the verdicts.")
        return status

    def _train(self) -> int:
        """Train everything that is left, in this process or in several; returns the exit status."""
        self._write_plan()
        jobs = self._choose_jobs()
        root = self.results.root
        stop = StopFlag()
        with stop.listening(), stop.after(self.options.stop_after), Display(self.results) as display:
            try:
                if jobs == 1:
                    worker = Worker(self.sweep, self._job(stop, display.notify, _threads(1)))
                    failures = [f"neoteny: {line}" for line in worker.run()]
                else:
                    failures = self._run_processes(jobs, stop, display)
            except Stopped as stopped:
                again = f"Stopped. Repeat the command to continue; `neoteny status {root}` shows the progress."
                display.notify("\n".join(filter(None, [str(stopped), again])))
                return STOPPED
        for failure in failures:
            log(failure)
        if failures:
            log("Finished runs are kept; repeat the command to try the others again.")
            return 1
        return 0

    def _save_analysis(self) -> bool:
        """Save figures and claims of a user's experiment, which reports then show; returns whether they could be made.

        Those of the package's own are made when they are shown.
        """
        code, results = self.experiment.code, self.results
        if code is None:
            return True
        try:
            frame = results.frame()
            if frame.empty:
                return True
            analysis = self.experiment.analyse(frame, self.sweep)
            save_analysis(results.root, analysis, len(results.finished_runs()), code.digest)
        except StoreError as error:
            log(f"neoteny: the figures and claims were not saved. {error}")
            return False
        for failure in analysis.failures:
            log(f"neoteny: {failure}")
        if analysis.failures:
            log(f"Finished runs are kept. Correct {code.path} and repeat the command: it trains only what is left.")
        return not analysis.failures

    def work_for_parent(self, threads: int) -> int:
        """Be one of several processes, until all is done or the parent is gone; returns the exit status."""
        stop = StopFlag()
        stop_with_parent(stop)
        with stop.listening():
            try:
                failures = Worker(self.sweep, self._job(stop, log, threads), alone=False).run()
            except Stopped:
                return STOPPED
        for failure in failures:
            log(f"neoteny: {failure}")
        return 1 if failures else 0

    def _job(self, stop: StopFlag, notify: Notify, threads: int) -> Job:
        seconds = self.options.checkpoint_seconds
        return Job(self.results, self.streams, self.device, self.kernel, seconds, threads, stop, notify)

    def _run_processes(self, jobs: int, stop: StopFlag, display: Display) -> list[str]:
        """Let several processes share the stacks; returns what failed."""
        options = dataclasses.replace(self.options, out=self.results.root, repair=False)
        failures, notes = run_workers(["work", options.to_json(), str(_threads(jobs))], jobs, stop)
        plan = self.results.plan()
        if failures and not plan["more"] and self.results.finished_runs().issuperset(plan["runs"]):
            failures, notes = [], "\n".join(failures)  # another worker has trained what one could not
        if notes:
            display.notify(notes)
        return failures

    def _choose_jobs(self) -> int:
        stacks = remaining_stacks(self.sweep, self.results, self.wanted)
        jobs = self.options.jobs or (1 if self.device.type == "cuda" else os.cpu_count() or 1)
        if self.sweep.selection is None:
            jobs = min(jobs, max(1, len(stacks)))
        log(
            f"{self.experiment.name}, scale {self.options.scale}: {len(self.wanted)} runs, {len(stacks)} stacks to "
            f"train, {jobs} process{'es' if jobs > 1 else ''}, on {self.device.type}, results in "
            f"{self.results.root}"
        )
        return jobs

    def _write_plan(self) -> None:
        """Write plan.json: what is wanted, for `status`, reports and those who continue it."""
        more = ""
        if self.sweep.selection is not None:
            each, count = " and ".join(self.sweep.selection.by), self.sweep.selection.more_runs
            more = f"Then the best setting of each {each} gets {count} more runs."
        path, before = self.experiment.path, self._read_plan()
        settings = self._settings(set(before["settings"]))
        planned = dict.fromkeys([*self._still_wanted(before, settings), *(run.run_id for run in self.wanted)])
        self.results.write_plan(
            {
                "runs": list(planned),
                "settings": sorted(settings),
                "left_out": self._left_out(planned),
                "more": more,
                "command": self.options.command(self.results.root),
                "folder": "" if path is None else str(path.resolve().parent),
            }
        )
        others = self.results.other_runs()
        if others:
            log(
                f"{len(others)} finished runs in {self.results.root} have settings that the experiment no longer has, "
                "or were trained by another backend (see --kernel); they are kept, and reports leave them out."
            )

    def _read_plan(self) -> dict[str, Any]:
        """The plan of an earlier command; empty if it is damaged, as it is written again now."""
        try:
            return self.results.plan()
        except Damaged as error:
            log(f"{error.path} is damaged: {error.reason}. It is written again.")
            return self.results.empty_plan()

    def _settings(self, before: set[str]) -> set[str]:
        """The digests of the settings that count.

        Settings that --methods leaves out keep the digest of an earlier command, which may have used another device.
        """
        now = {setting.method for setting in self.sweep.settings}
        found: set[str] = set()
        for run in self.every:
            kept = set() if run.setting.method in now else before & setting_digests(run.configuration)
            found |= kept or {setting_digest(run.configuration)}
        return found

    def _still_wanted(self, before: Mapping[str, Any], settings: Collection[str]) -> list[str]:
        """The runs of an earlier command that stay wanted, where this one only chooses which methods come first."""
        if not self.options.methods or not before["runs"]:
            return []
        if set(before["settings"]) == settings:
            return before["runs"]
        known = {each for run in self.every for each in setting_digests(run.configuration)}
        if not known.issuperset(before["settings"]):  # of an earlier version of the experiment
            return []
        more = self.sweep.selection.more_runs if self.sweep.selection else 0
        instead: set[str] = set()  # the runs of these methods with any backend: this command's replace them
        for setting in self.sweep.settings:
            for run in runs_of(self.sweep, [setting], self.kernel, range((setting.runs or self.sweep.runs) + more)):
                instead |= run_ids(run.configuration)
        return [run for run in before["runs"] if run not in instead]

    def _left_out(self, planned: Collection[str]) -> list[str]:
        """Methods of the experiment without any planned run."""
        begun = {run.setting.method for run in self.every if not run_ids(run.configuration).isdisjoint(planned)}
        return list(dict.fromkeys(run.setting.method for run in self.every if run.setting.method not in begun))


def prepare(options: RunOptions) -> Launch:
    """Load the experiment, find its data and open its folder; validates everything before writing."""
    experiment = experiments.load(options.experiment)
    if experiment.code is not None and experiment.name in (*experiments.NAMES, *experiments.VARIANTS):
        raise experiments.ExperimentError(
            f"{experiment.path} would be called {experiment.name}, as an experiment of the package is; rename the file."
        )
    sweep = experiment.make_sweep(options.scale)
    if options.runs is not None:
        settings = tuple(dataclasses.replace(setting, runs=None) for setting in sweep.settings)
        sweep = dataclasses.replace(sweep, runs=options.runs, settings=settings)
    device = choose_device(options.device, sweep)
    kernel = choose_kernel(options.kernel, device)
    every = runs_of(sweep, sweep.settings, kernel, range(1))
    streams = open_problems(sweep, options.data)
    about = {
        "experiment": experiment.name,
        "scale": options.scale,
        "data": ", ".join(sorted({stream.fingerprint for stream in streams.values() if stream.fingerprint})),
        "configuration": describe(sweep),
        "versions": versions(),
        **({DIGEST: experiment.code.digest} if experiment.code else {}),
    }
    root = options.out or Path("results") / f"{experiment.name}-{options.scale}"
    sweep = _keep_methods(sweep, options.methods)
    wanted = runs_of(sweep, sweep.settings, kernel)
    source = experiment.code.source if experiment.code else None
    results = Results.create(root, about, source, options.repair)
    return Launch(options, experiment, sweep, results, streams, device, kernel, wanted, every)


def _keep_methods(sweep: Sweep, names: str | None) -> Sweep:
    """The sweep with the settings of these methods only; None: all."""
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
    """Threads for each of `jobs` processes."""
    return max(1, (os.cpu_count() or 1) // jobs)


def log(line: str) -> None:
    """Print a line for the person who waits; standard output is for results."""
    print(printable(line), file=sys.stderr, flush=True)
