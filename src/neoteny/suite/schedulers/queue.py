"""jobs.json: which jobs of a batch system work in a results folder, and how they stand in the queue.

`neoteny status` reads it, so nothing heavy is imported here.
"""

from __future__ import annotations

import dataclasses
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from neoteny.suite.store.documents import parse_document, write_document
from neoteny.suite.store.errors import Damaged
from neoteny.suite.store.shapes import JOBS

FILE = "jobs.json"
LIVE = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED", "RESIZING")
"""States of a job that has not ended."""
GONE, UNKNOWN = "ENDED", "UNKNOWN"
_ASK_SECONDS = 20


@dataclass(frozen=True)
class QueuedJob:
    """One job.

    Args:
        job_id: its number in the batch system; of a trial on this machine, of its process.
        shard: which share of the stacks it trains.
        cluster: "slurm", or "local" for a trial on this machine.
        log: its error output.
    """

    job_id: str
    shard: str
    cluster: str
    log: str


def write_jobs(root: Path, jobs: Sequence[QueuedJob]) -> None:
    """Write jobs.json."""
    write_document(root / FILE, {"jobs": [dataclasses.asdict(job) for job in jobs]})


def read_jobs(root: Path) -> list[QueuedJob]:
    """The jobs of jobs.json; none where there is no such file, or it is damaged."""
    try:
        content, _ = parse_document(root / FILE, JOBS)
    except (FileNotFoundError, Damaged):
        return []
    if JOBS.misfit(content, sealed=True):
        return []
    return [QueuedJob(**job) for job in content["jobs"]]


def states_of(jobs: Sequence[QueuedJob]) -> dict[str, str]:
    """The state of each job by its id: as squeue says; ENDED where it is not in the queue any more."""
    states = {job.job_id: UNKNOWN for job in jobs}
    for job in jobs:
        if job.cluster == "local" and job.job_id.isdecimal():
            states[job.job_id] = "RUNNING" if _is_running(int(job.job_id)) else GONE
    numbers = sorted({job.job_id.partition("_")[0] for job in jobs if job.cluster != "local"})
    if not numbers or not all(number.isdecimal() for number in numbers) or which("squeue") is None:
        return states
    command = ["squeue", "--noheader", "--array", "--format=%i|%T", "--jobs", ",".join(numbers)]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return states
    found = dict(line.split("|", 1) for line in answer.stdout.split() if "|" in line)
    if answer.returncode != 0 and "Invalid job id" not in answer.stderr:
        return states
    for job in jobs:
        if job.cluster != "local":
            states[job.job_id] = found.get(job.job_id, GONE)
    return states


def describe_queue(root: Path) -> str:
    """A line for `neoteny status`: how many jobs are in which state; "" where no batch system works in the folder."""
    jobs = read_jobs(root)
    return describe_jobs(jobs, states_of(jobs))


def describe_jobs(jobs: Sequence[QueuedJob], states: Mapping[str, str]) -> str:
    """The same for jobs whose states are known."""
    if not jobs:
        return ""
    counts = Counter(states.values())
    shown = ", ".join(f"{count} {state.lower()}" for state, count in sorted(counts.items()))
    where = "slurm" if jobs[0].cluster == "slurm" else "this machine"
    return f"Jobs on {where} ({jobs[0].job_id.partition('_')[0]}): {shown}."


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
