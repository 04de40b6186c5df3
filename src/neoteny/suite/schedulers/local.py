"""The processes of this machine: one, or several beside each other. The default."""

from __future__ import annotations

from neoteny.suite.processes import run_workers
from neoteny.suite.schedulers.scheduler import Work


def run(work: Work) -> list[str]:
    """Train every stack in this process, or in several that share the folder; returns what failed."""
    worker, jobs = work.worker, work.resources.workers or 1
    if jobs == 1:
        return [f"neoteny: {line}" for line in worker.run()]
    results = worker.job.results
    failures, notes = run_workers(work.arguments(jobs), jobs, worker.job.stop, worker.job.notify)
    results.refresh()
    plan = results.plan()
    if failures and not plan["more"] and results.finished_runs().issuperset(plan["runs"]):
        failures, notes = [], "\n".join(failures)  # another worker has trained what one could not
    if notes:
        worker.job.notify(notes)
    return failures
