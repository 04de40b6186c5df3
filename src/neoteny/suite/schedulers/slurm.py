"""Slurm, through submitit: an array of jobs, each of which trains one share of the stacks.

A job is the same as `neoteny run --shard INDEX/COUNT` with as many processes as it has cores. Some time before its
limit Slurm warns it. Then its processes write their checkpoints and the job goes back into the queue. `jobs.json` says
which jobs work in the folder, so that a second command waits for them instead of submitting others. A job may start
hours later: a user's experiment file is kept beside the logs as the command has read it, and that is what jobs train.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neoteny.suite.processes import run_workers
from neoteny.suite.schedulers.memory import estimate_bytes
from neoteny.suite.schedulers.queue import FILE, LIVE, UNKNOWN, QueuedJob, read_jobs, states_of, write_jobs
from neoteny.suite.schedulers.scheduler import Resources, Work
from neoteny.suite.shards import Shard
from neoteny.suite.stopping import StopFlag
from neoteny.suite.store.documents import sha256
from neoteny.suite.store.errors import Stopped, StoreError
from neoteny.suite.store.files import write_atomically
from neoteny.text import say_count

CLUSTERS = ("slurm", "local")
MOST_JOBS = 64
MINUTES = 240
_MOST_REQUEUES = 1000
_LOOK_SECONDS = 2.0


def run(work: Work) -> list[str]:
    """Submit an array of jobs, or find those of an earlier command, and wait for them; returns what failed."""
    results, stop = work.worker.job.results, work.worker.job.stop
    options = dict(work.resources.more)
    cluster = options.pop("cluster", "slurm")
    if cluster not in CLUSTERS:
        raise ValueError(f"--slurm cluster={cluster}: expected {' or '.join(CLUSTERS)}.")
    stacks = work.worker.listed()
    if work.dry_run:
        print(describe_submission(work, options, count_jobs(work, len(stacks))))
        return []
    jobs = _find_jobs(results.root, cluster)
    if jobs:
        who = say_count(len(jobs), "job is", "jobs are")
        work.worker.job.notify(f"{who} at work in this folder or in the queue; waiting for the end.")
        kept = _kept_source(work)
        if kept is not None and not kept.exists():
            work.worker.job.notify(
                f"{kept.name} was changed after they were submitted, and they train it as it was. Repeat the command "
                "when they have ended."
            )
    elif stacks or work.worker.sweep.selection is not None:
        jobs = _submit(work, cluster, options, count_jobs(work, len(stacks)))
    told = False
    while (states := set(states_of(jobs).values())).intersection((*LIVE, UNKNOWN)):
        if UNKNOWN in states and not told:
            work.worker.job.notify("squeue does not answer, so the states of the jobs are not known; asking again.")
            told = True
        if stop.wait(_LOOK_SECONDS):
            ids = " ".join(dict.fromkeys(job.job_id.partition("_")[0] for job in jobs))
            raise Stopped(f"The jobs go on. `{'scancel' if cluster == 'slurm' else 'kill'} {ids}` ends them.")
        results.refresh()
    return _find_failures(work, jobs)


def _find_jobs(root: Path, cluster: str) -> list[QueuedJob]:
    """The jobs of an earlier command that have not ended.

    Raises:
        StoreError: the batch system does not tell; to submit others would double them.
    """
    jobs = read_jobs(root)
    states = states_of(jobs)
    if cluster == "slurm" and UNKNOWN in states.values():
        raise StoreError(
            f"squeue does not answer, so it is not known whether the jobs of an earlier command ({jobs[0].job_id}...) "
            f"have ended. Repeat the command when it does, or remove {root / FILE} if you know that they have."
        )
    return [job for job in jobs if states[job.job_id] in LIVE]


def count_jobs(work: Work, stacks: int) -> int:
    """How many jobs the array has."""
    return work.resources.workers or max(1, min(MOST_JOBS, -(-stacks // work.resources.cpus)))


def _submit(work: Work, cluster: str, options: Mapping[str, str], count: int) -> list[QueuedJob]:
    import submitit

    results = work.worker.job.results
    folder = _log_folder(work)
    try:
        executor = submitit.AutoExecutor(folder, cluster=cluster, slurm_max_num_timeout=_MOST_REQUEUES)
        executor.update_parameters(**parameters(work, options, cluster))
        more = _keep_source(work)
        tasks = [
            ShardJob(work.orders.options, Shard(index, count), work.resources.cpus, more) for index in range(count)
        ]
        with executor.batch():
            submitted = [executor.submit(task) for task in tasks]
    except (RuntimeError, ValueError, NameError, OSError) as error:
        raise StoreError(f"--on slurm: the jobs cannot be submitted. {' '.join(str(error).split()):.500}") from error
    jobs = [
        QueuedJob(job.job_id, str(task.shard), cluster, str(job.paths.stderr))
        for job, task in zip(submitted, tasks, strict=True)
    ]
    write_jobs(results.root, jobs)
    results.push(FILE)
    work.worker.job.notify(f"{say_count(len(jobs), 'job')} submitted ({jobs[0].job_id}...), with logs in {folder}.")
    return jobs


def describe_submission(work: Work, options: Mapping[str, str], count: int) -> str:
    """The sbatch file that would be submitted."""
    from submitit.slurm.slurm import SlurmExecutor

    class Paper(SlurmExecutor):
        """A Slurm that need not be there."""

        @classmethod
        def affinity(cls) -> int:
            return 1

    executor = Paper(_log_folder(work), max_num_timeout=_MOST_REQUEUES)
    given = {name.removeprefix("slurm_"): value for name, value in parameters(work, options, "slurm").items()}
    executor._internal_update_parameters(**executor._convert_parameters(given))
    executor.parameters["map_count"] = count
    return executor._make_submission_file_text(executor._submitit_command_str, "")


def parameters(work: Work, options: Mapping[str, str], cluster: str) -> dict[str, Any]:
    """The parameters of a job, as submitit has them: ours, then those of --slurm."""
    resources: Resources = work.resources
    options = dict(options)
    found: dict[str, Any] = {
        "name": "neoteny",
        "timeout_min": _minutes(options.pop("time", str(MINUTES))),
        "cpus_per_task": resources.cpus,
        "tasks_per_node": 1,
    }
    if resources.gpus:
        if resources.gpus != int(resources.gpus):
            raise ValueError("--gpus-per-stack: Slurm gives whole GPUs; got a fraction. Use a whole number.")
        found["gpus_per_node"] = int(resources.gpus)
    if cluster != "slurm":  # processes of this machine, for trials
        return {name: value for name, value in found.items() if name in ("timeout_min", "name")} | {
            name: _whole(name, value) for name, value in options.items() if name == "signal_delay_s"
        }
    largest = max(map(estimate_bytes, work.worker.listed()), default=2**30)
    found["mem_gb"] = _whole("mem_gb", options.pop("mem_gb", "0")) or -(-largest * resources.cpus // 2**30) + 1
    found["slurm_array_parallelism"] = _whole("array_parallelism", options.pop("array_parallelism", str(MOST_JOBS)))
    return found | {f"slurm_{name}": int(value) if value.isdecimal() else value for name, value in options.items()}


@dataclasses.dataclass
class ShardJob:
    """What one job does: train its share, and on the warning of its time limit stop at a checkpoint.

    submitit calls it in the job, and calls `checkpoint` from the handler of the warning signal. So the processes are
    watched by a thread, which goes on while the handler waits.
    """

    options: str
    shard: Shard
    processes: int
    more: tuple[str, ...] = ()  # of the command line of its processes

    def __call__(self) -> str:
        """Train; returns what failed."""
        options = {**json.loads(self.options), "shard": str(self.shard)}
        watcher = _Watcher(["work", *self.more, json.dumps(options), "1"], self.processes)
        _WATCHERS.append(watcher)
        watcher.start()
        while watcher.is_alive():
            watcher.join(0.5)
        if watcher.error is not None:
            raise watcher.error
        for line in watcher.failures:
            _complain(line)
        return "\n".join(watcher.failures)

    def checkpoint(self) -> Any:
        """Stop the processes, which write their checkpoints; returns the job that continues."""
        from submitit.helpers import DelayedSubmission

        for watcher in _WATCHERS:
            watcher.stop.set()
            watcher.join()
        return DelayedSubmission(ShardJob(self.options, self.shard, self.processes, self.more))


class _Watcher(threading.Thread):
    """Runs the processes of a job."""

    def __init__(self, arguments: list[str], processes: int) -> None:
        super().__init__(daemon=True)
        self._arguments, self._processes = arguments, processes
        self.stop = StopFlag()
        self.failures: list[str] = []
        self.error: Exception | None = None

    def run(self) -> None:
        """Start the processes and wait for them."""
        try:
            self.failures, notes = run_workers(self._arguments, self._processes, self.stop, _complain)
            if notes:
                _complain(notes)
        except Stopped:
            pass
        except Exception as error:
            self.error = error


def _complain(line: str) -> None:
    """A line for the job's log."""
    print(line, file=sys.stderr, flush=True)


_WATCHERS: list[_Watcher] = []
"""In a job: what runs; a signal handler finds it here, since a pickled task must not hold a thread."""


def _find_failures(work: Work, jobs: list[QueuedJob]) -> list[str]:
    """What is not finished though no job is left."""
    results = work.worker.job.results
    results.refresh()
    deadline = time.monotonic() + 5.0  # a network file system may show the last results late
    while work.worker.remaining(work.worker.wanted()) and time.monotonic() < deadline:
        time.sleep(0.5)
    left = work.worker.remaining(work.worker.wanted())
    if not left and not results.plan()["more"]:
        return []
    entries = results.progress()
    failed = [
        f"neoteny: {entries[stack.stack_id].get('error', 'unknown error')}"
        for stack in left
        if entries.get(stack.stack_id, {}).get("state") == "failed"
    ]
    states = ", ".join(sorted(set(states_of(jobs).values()))) or "unknown"
    who = say_count(len(left) - len(failed), "stack was", "stacks were")
    others = [f"{who} not trained, and no job is left (states: {states})."]
    logs = [f"The jobs' logs are in {_log_folder(work)}."]
    return failed + (others if len(left) > len(failed) else []) + logs


def _keep_source(work: Work) -> tuple[str, ...]:
    """Keep the user's experiment file as it was read, for jobs that start later; returns what tells them of it."""
    kept, source = _kept_source(work), work.orders.source
    if kept is None or source is None:
        return ()
    write_atomically(kept, lambda file: file.write(source))
    return f"--digest={sha256(source)}", f"--kept={kept}"


def _kept_source(work: Work) -> Path | None:
    """Where jobs find this version of the user's experiment file; None for an experiment of the package."""
    if work.orders.source is None:
        return None
    path = Path(json.loads(work.orders.options)["experiment"])
    return _log_folder(work) / sha256(work.orders.source)[:16] / path.name


def _log_folder(work: Work) -> Path:
    return work.worker.job.results.root.resolve() / "slurm"


def _whole(name: str, text: str) -> int:
    """A whole number of --slurm."""
    if not text.isdecimal():
        raise ValueError(f"--slurm {name}={text}: expected a whole number.")
    return int(text)


def _minutes(text: str) -> float:
    """A time limit: minutes, or HOURS:MINUTES:SECONDS."""
    try:
        parts = [float(part) for part in text.split(":")]
        minutes = {1: lambda: parts[0], 3: lambda: parts[0] * 60 + parts[1] + parts[2] / 60}[len(parts)]()
    except (ValueError, KeyError):
        raise ValueError(f"--slurm time={text}: expected minutes, or HOURS:MINUTES:SECONDS.") from None
    return int(minutes) if minutes == int(minutes) else minutes
