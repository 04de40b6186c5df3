"""What `--on ray` costs: thousands of stacks without work, and stacks of a minute beside local processes.

    python benchmarks/scheduling.py                    5,000 stacks of no work
    python benchmarks/scheduling.py --minutes          four stacks of about a minute, on Ray and locally, two cores each

The first measures the driver, Ray's tasks and the claims: every stack is claimed by a lease and given back, and none is
trained or written. The second runs the whole command both ways, start of Ray included.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from neoteny.methods import SGD
from neoteny.nets import MLP
from neoteny.problems import SlowlyChangingRegression
from neoteny.suite.environment import open_problems
from neoteny.suite.schedulers import ray as on_ray
from neoteny.suite.schedulers.scheduler import Orders, Resources, Work
from neoteny.suite.session import Job
from neoteny.suite.stacks import PlannedStack
from neoteny.suite.store.results import Results
from neoteny.suite.sweep import Setting, Sweep, network
from neoteny.suite.worker import Outcome, Worker

BAR_SECONDS = 60.0
BAR_OVERHEAD = 0.10


class Idle(Worker):
    """A worker that claims a stack and has nothing to do."""

    def attempt(self, stack: PlannedStack) -> Outcome:
        """Claim it and give it back."""
        with self.job.results.lock(stack.stack_id) as mine:
            return Outcome("finished" if mine else "held")


def make_worker(root: Path, stacks: int, kind: type[Worker]) -> Worker:
    """A worker for a sweep of this many stacks."""
    net = network(MLP, hidden=(5,))
    settings = tuple(Setting("BP", net, (SGD(0.01 / (1 + n)),), {"n": n}) for n in range(stacks // 50))
    problem = SlowlyChangingRegression(tasks=1, examples_per_task=1)
    sweep = Sweep(problem, settings, runs=50, stack_size=1)
    about = {"experiment": "idle", "scale": "smoke", "data": "", "configuration": {}, "versions": {}}
    results = Results.create(root, about, shared=True)
    results.claims.share()
    return kind(sweep, Job(results, open_problems(sweep, None), torch.device("cpu"), "reference", 60.0))


def join(orders: Orders) -> Worker:
    """In a process of Ray's."""
    stacks, _, root = orders.options.partition(" ")
    return make_worker(Path(root), int(stacks), Idle)


def measure_idle(stacks: int) -> bool:
    """Schedule stacks of no work; prints the line and returns whether it is within the bar."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "out"
        worker = make_worker(root, stacks, Worker)
        orders = Orders(f"{stacks} {root}", "benchmark", 60.0)
        work = Work(worker, orders, join, Resources(), lambda jobs: [])
        before = _memory()
        with on_ray._connected(""):
            started = time.monotonic()
            runs = worker.wanted()
            listed = time.monotonic()
            failures = on_ray.Driver(work).run(runs)
            took = time.monotonic() - listed
        print(
            f"{stacks} stacks of no work: {took:.1f} s ({1000 * took / stacks:.1f} ms per stack), after "
            f"{listed - started:.1f} s to list them; memory of the driver {_memory():.0f} MB ({before:.0f} MB before); "
            f"failures {len(failures)}"
        )
        return took <= BAR_SECONDS and not failures


EXPERIMENT = '''
"""Stacks of about a minute.

One setting per stack.
"""
from neoteny.methods import SGD
from neoteny.nets import MLP
from neoteny.problems import SlowlyChangingRegression
from neoteny.suite.sweep import Setting, Sweep, network


def sweep(scale):
    net = network(MLP, hidden=(20,))
    settings = [Setting("BP", net, (SGD(0.01 / (1 + n)),), {"n": n}) for n in range(STACKS)]
    return Sweep(SlowlyChangingRegression(tasks=TASKS, examples_per_task=1000), settings, runs=1, stack_size=1)


def figure(frame):
    return []


claims = ()
'''


def measure_minutes(stacks: int, tasks: int) -> bool:
    """The whole command, locally and on Ray, with two cores each; prints the line."""
    took: dict[str, list[float]] = {"local": [], "ray": []}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        experiment = root / "minutes.py"
        experiment.write_text(EXPERIMENT.replace("STACKS", str(stacks)).replace("TASKS", str(tasks)).lstrip())
        for repeat in range(2):
            for on in ("local", "ray") if repeat == 0 else ("ray", "local"):
                out = root / f"{on}{repeat}"
                command = [sys.executable, "-P", "-m", "neoteny", "run", str(experiment), "--out", str(out)]
                began = time.monotonic()
                options = ["--on", on, "--workers", "2", "--kernel", "reference"]
                subprocess.run([*command, *options], check=True, capture_output=True)
                took[on].append(time.monotonic() - began)
        same = Results.open(root / "local0").frame().equals(Results.open(root / "ray0").frame())
    local, ray = (min(took[on]) for on in ("local", "ray"))
    shown = {on: ", ".join(f"{each:.0f}" for each in took[on]) for on in took}
    print(
        f"{stacks} stacks of about {local * 2 / stacks:.0f} s, two at a time: local {shown['local']} s, --on ray "
        f"{shown['ray']} s; overhead {ray / local - 1:+.1%} (best of two each); same table: {'yes' if same else 'NO'}"
    )
    return same and ray / local - 1 <= BAR_OVERHEAD


def _memory() -> float:
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    """Measure; returns 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--stacks", type=int, metavar="N", help="how many (default: 5,000 of no work, 4 of a minute)")
    parser.add_argument("--minutes", action="store_true", help="stacks of about a minute")
    parser.add_argument(
        "--tasks", type=int, default=360, metavar="N", help="tasks of 1,000 updates per stack of a minute"
    )
    options = parser.parse_args()
    if options.minutes:
        return 0 if measure_minutes(options.stacks or 4, options.tasks) else 1
    return 0 if measure_idle(options.stacks or 5000) else 1


if __name__ == "__main__":
    raise SystemExit(main())
