"""`neoteny run`: from the options of the command line to workers in a results folder."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import signal
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from neoteny.cli.parser import RunOptions
from neoteny.cli.prepare import Prepared, prepare
from neoteny.experiments import GROUPS
from neoteny.processors import processors
from neoteny.report.analysis import save_analysis
from neoteny.suite.identity import run_ids, setting_digest, setting_digests
from neoteny.suite.processes import stop_with_parent
from neoteny.suite.progress import Display
from neoteny.suite.schedulers.scheduler import (
    Orders,
    Resources,
    Work,
    load_scheduler,
    parse_pairs,
    split_name,
)
from neoteny.suite.session import Job, Notify
from neoteny.suite.shards import WHOLE, Shard
from neoteny.suite.stacks import remaining_stacks, runs_of
from neoteny.suite.stopping import StopFlag
from neoteny.suite.store.errors import Damaged, Stopped, StoreError
from neoteny.suite.store.objects import is_remote
from neoteny.suite.store.remote import RemoteResults
from neoteny.suite.sweep import seeds_after, seeds_of
from neoteny.suite.trackers.tracking import Tracking
from neoteny.suite.worker import Worker
from neoteny.text import printable, say_count

STOPPED = 130
"""Exit status after Ctrl-C, as shells have it."""


def command_run(**options: Any) -> int:
    """Run an experiment to its end, or until it is stopped; of a group one after the other, each in its own folder."""
    asked = RunOptions(**options)
    if asked.experiment in GROUPS:
        return _run_group(asked)
    return Launch.of(prepare(asked)).run()


def _run_group(asked: RunOptions) -> int:
    """Run every experiment of a group, in folders below --out; returns the first exit status that is not 0."""
    out = asked.out or Path("results") / f"{asked.experiment}-{asked.scale}"
    failed = 0
    for name in GROUPS[asked.experiment]:
        where = f"{out.rstrip('/')}/{name}" if isinstance(out, str) else out / name
        status = Launch.of(prepare(dataclasses.replace(asked, experiment=name, out=where))).run()
        if status == STOPPED:
            return status
        failed = failed or status
    return failed


def command_work(options: str, threads: int, started_by: str, digest: str, kept: Path | None) -> int:
    """Be one of the processes of `neoteny run --jobs`, or of a job of a batch system."""
    prepared = prepare(RunOptions.from_json(options), is_child=True, digest=digest, kept=kept)
    return Launch.of(prepared).work_for_parent(threads, started_by)


@dataclass(frozen=True)
class Launch(Prepared):
    """A prepared command, and what it does."""

    @classmethod
    def of(cls, prepared: Prepared) -> Launch:
        """What does the prepared command."""
        return cls(**vars(prepared))

    def run(self) -> int:
        """Train everything that is left and save what a user's file says of it; returns the exit status."""
        if self.options.dry_run:
            load_scheduler(split_name(self.options.on)[0]).run(self._work(0, StopFlag(), log))
            return 0
        status = self._train()
        if not self._save_analysis():
            return status or 1
        if status == 0:
            root = shlex.quote(self.results.address)
            print(f"Done. `neoteny report {root}` writes the page, `neoteny claims {root}` prints the verdicts.")
        return status

    def _train(self) -> int:
        """Train everything that is left, where --on says; returns the exit status."""
        name, _ = split_name(self.options.on)
        scheduler = load_scheduler(name)
        self._write_plan()
        jobs = self._choose_jobs(name)
        stop = StopFlag()
        until = stop.after(self.options.stop_after)
        with stop.listening(), until, Display(self.results) as display, self._track(display.notify):
            try:
                failures = scheduler.run(self._work(jobs, stop, display.notify))
            except Stopped as stopped:
                where = shlex.quote(self.results.address)
                again = f"Stopped. Repeat the command to continue; `neoteny status {where}` shows the progress."
                display.notify("\n".join(filter(None, [str(stopped), again])))
                return STOPPED
        for failure in failures:
            log(failure)
        if failures:
            log("Finished runs are kept; repeat the command to try the others again.")
            return 1
        return 0

    def _track(self, notify: Notify) -> contextlib.AbstractContextManager[Any]:
        """Tell a tracker of the results, where one is asked for."""
        if self.options.track is None:
            return contextlib.nullcontext()
        return Tracking(self.options.track, self.results, self.sweep, notify)

    def _work(self, jobs: int, stop: StopFlag, notify: Notify) -> Work:
        """What the scheduler is given."""
        options, (name, address) = self.options, split_name(self.options.on)
        out = self.results.address if is_remote(options.out) else self.results.root.resolve()
        data = options.data or os.environ.get("NEOTENY_DATA")
        there = dataclasses.replace(
            options,
            experiment=str(self.experiment.path.resolve()) if self.experiment.path else options.experiment,
            out=out,
            repair=False,
            data=Path(data).resolve() if data else None,
            device=self.device.type,
            on="local",
            track=None,
        )
        code = self.experiment.code
        cpus = options.cpus_per_stack
        orders = Orders(
            options=there.to_json(),
            command=self.command,
            lease_seconds=options.lease_seconds,
            folder_id="" if is_remote(options.out) or name != "ray" else self.results.claims.folder_id(),
            source=code.source if code is not None else None,
            threads=cpus,
        )
        threads = _threads(1) if name == "local" and jobs == 1 else cpus
        here = dataclasses.replace(options, out=out, repair=False, track=None)
        return Work(
            worker=Worker(self.sweep, self.make_job(stop, notify, threads), shard=self.shard),
            orders=orders,
            join=join_run,
            resources=Resources(
                workers=jobs if name == "local" else options.workers,
                cpus=cpus,
                gpus=_gpus(options, self.device),
                more=parse_pairs(options.slurm),
            ),
            arguments=lambda jobs: [
                "work",
                f"--digest={code.digest if code is not None else ''}",
                here.to_json(),
                str(_threads(jobs)),
            ],
            address=address,
            dry_run=options.dry_run,
        )

    @property
    def shard(self) -> Shard:
        """The share of the stacks that this command trains."""
        return Shard.parse(self.options.shard) if self.options.shard else WHOLE

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
            results.push("analysis.json")
        except StoreError as error:
            log(f"neoteny: the figures and claims were not saved. {error}")
            return False
        for failure in analysis.failures:
            log(f"neoteny: {failure}")
        if analysis.failures:
            log(f"Finished runs are kept. Correct {code.path} and repeat the command: it trains only what is left.")
        return not analysis.failures

    def work_for_parent(self, threads: int, started_by: str) -> int:
        """Be one of several processes, until all is done or the parent is gone; returns the exit status."""
        stop = StopFlag()
        stop_with_parent(stop)
        # A batch system's warning goes to every process of a job, not to the parent alone.
        with stop.listening(signal.SIGUSR1, signal.SIGUSR2):
            try:
                job = dataclasses.replace(self.make_job(stop, log, threads), command=started_by)
                failures = Worker(self.sweep, job, alone=False, shard=self.shard).run()
            except Stopped:
                return STOPPED
            finally:
                if isinstance(self.results, RemoteResults):
                    self.results.discard()
        for failure in failures:
            log(f"neoteny: {failure}")
        return 1 if failures else 0

    def make_job(self, stop: StopFlag, notify: Notify, threads: int) -> Job:
        """How the stacks of this command are trained in this process."""
        seconds = self.options.checkpoint_seconds
        return Job(self.results, self.streams, self.device, self.kernel, seconds, threads, stop, notify)

    def _choose_jobs(self, name: str) -> int:
        stacks = self.shard.keep(self.sweep, self.wanted, remaining_stacks(self.sweep, self.results, self.wanted))
        jobs = self.options.jobs or self.options.workers
        jobs = jobs or (1 if self.device.type == "cuda" else processors())
        if self.sweep.selection is None:
            jobs = min(jobs, max(1, len(stacks)))
        who = say_count(jobs, "process", "processes") if name == "local" else self.options.on
        share = f" (shard {self.shard})" if self.shard != WHOLE else ""
        counts = f"{say_count(len(self.wanted), 'run')}, {say_count(len(stacks), 'stack')} to train"
        log(
            f"{self.experiment.name}, scale {self.options.scale}: {counts}{share}, {who}, on {self.device.type}, "
            f"results in {self.results.address}"
        )
        return jobs

    def _write_plan(self) -> None:
        """Write plan.json: what is wanted, for `status`, reports and those who continue it."""
        more = ""
        if self.sweep.selection is not None:
            each = " and ".join(self.sweep.selection.by)
            own = {setting.more_runs for setting in self.sweep.settings if setting.more_runs}
            count = " or ".join(map(str, sorted(own | {self.sweep.selection.more_runs})))
            more = f"Then the best setting of each {each} gets {count} more {'run' if count == '1' else 'runs'}."
        path, before = self.experiment.path, self._read_plan()
        settings = self._settings(set(before["settings"]))
        planned = dict.fromkeys([*self._still_wanted(before, settings), *(run.run_id for run in self.wanted)])
        self.results.write_plan(
            {
                "runs": list(planned),
                "settings": sorted(settings),
                "left_out": self._left_out(planned),
                "more": more,
                "command": self.options.command(self.results.address),
                "folder": "" if path is None else str(path.resolve().parent),
            }
        )
        others = self.results.other_runs()
        if self.shard != WHOLE and before["settings"] and set(before["settings"]) != settings:
            log(
                "The settings differ from those that another shard, or an earlier command, had here. If the experiment "
                "was changed since the first shard began, start all shards again, so that none trains the old one."
            )
        if others:
            log(
                f"{say_count(len(others), 'finished run')} in {self.results.root}: of settings that the experiment no "
                "longer has, or of another backend (see --kernel). They are kept, and reports leave them out."
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
        instead: set[str] = set()  # the runs of these methods with any backend: this command's replace them
        for setting in self.sweep.settings:
            seeds = [*seeds_of(self.sweep, setting), *seeds_after(self.sweep, setting)]
            for run in runs_of(self.sweep, [setting], self.kernel, seeds):
                instead |= run_ids(run.configuration)
        return [run for run in before["runs"] if run not in instead]

    def _left_out(self, planned: Collection[str]) -> list[str]:
        """Methods of the experiment without any planned run."""
        begun = {run.setting.method for run in self.every if not run_ids(run.configuration).isdisjoint(planned)}
        return list(dict.fromkeys(run.setting.method for run in self.every if run.setting.method not in begun))


def join_run(orders: Orders) -> Worker:
    """In a process of a cluster: a worker for stacks of a command that runs elsewhere."""
    launch = Launch.of(prepare(RunOptions.from_json(orders.options), orders))
    return Worker(launch.sweep, launch.make_job(StopFlag(), log, orders.threads), alone=False)


def _gpus(options: RunOptions, device: torch.device) -> float:
    """GPUs per stack."""
    if options.gpus_per_stack is not None:
        return options.gpus_per_stack
    return 1.0 if device.type == "cuda" else 0.0


def _threads(jobs: int) -> int:
    """Threads for each of `jobs` processes."""
    return max(1, processors() // jobs)


def log(line: str) -> None:
    """Print a line for the person who waits; standard output is for results."""
    print(printable(line), file=sys.stderr, flush=True)
