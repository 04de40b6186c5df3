"""A sweep on a Ray cluster that is disturbed: workers, nodes and drivers are killed, and the storage fails.

`ray_failures.py` does it at length, `test_ray.py` in small.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from neoteny.suite.store.leases import Leases
from neoteny.suite.store.objects import is_remote, open_storage
from neoteny.suite.store.remote import fetch_results
from neoteny.suite.store.results import Results
from neoteny.suite.store.storage import FolderStorage, Storage
from support.ray_clusters import Nodes, kill

EXPERIMENT = '''
"""Many small stacks.

Backpropagation and continual backpropagation with several step sizes.
"""
from neoteny.methods import SGD, Adam, ContinualBackprop
from neoteny.nets import MLP
from neoteny.problems import SlowlyChangingRegression
from neoteny.suite.sweep import Setting, Sweep, network

NET = network(MLP, hidden=(8,), activation="relu")


def sweep(scale):
    sizes = [0.01 / (1 + n) for n in range(COUNT // 4)]
    bp = [Setting("BP", NET, (SGD(size),), {"step_size": size}) for size in sizes]
    cbp = [Setting("CBP", NET, (Adam(size), ContinualBackprop(1e-2, maturity_threshold=20)), {"step_size": size})
           for size in sizes]
    return Sweep(SlowlyChangingRegression(tasks=TASKS, examples_per_task=50), (*bp, *cbp), runs=2, stack_size=1)


def figure(frame):
    return []


claims = ()
'''


def write_sweep(path: Path, stacks: int, tasks: int) -> Path:
    """Write an experiment of this many stacks, one run each."""
    path.write_text(EXPERIMENT.replace("COUNT", str(stacks)).replace("TASKS", str(tasks)).lstrip())
    return path


@dataclass
class Disturbed:
    """One sweep and what happens to it.

    Args:
        nodes: the cluster.
        experiment: the file.
        out: its results folder, or the address of a storage.
        environment: of the driver.
        seed: of what happens when.
    """

    nodes: Nodes
    experiment: Path
    out: str
    environment: Mapping[str, str]
    log: Path
    seed: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    rewritten: set[str] = field(default_factory=set)
    _seen: dict[str, str] = field(default_factory=dict)
    _driver: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        """Start the driver."""
        command = [sys.executable, "-P", "-m", "neoteny", "run", str(self.experiment), "--out", self.out, "--on", "ray"]
        command += ["--kernel", "reference", "--checkpoint-seconds", "0.5", "--lease-seconds", "10"]
        with open(self.log, "ab") as log:
            self._driver = subprocess.Popen(
                command,
                env={**os.environ, **self.nodes.environment, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self._driver

    def run(
        self, stacks: int, workers: int, nodes: int, drivers: int, pause: tuple[float, float], seconds: float
    ) -> int:
        """Run it to its end while things are killed, spread over the whole of it; returns the driver's exit status."""
        draw = random.Random(self.seed)
        events = ["worker"] * workers + ["node"] * nodes + ["driver"] * drivers
        draw.shuffle(events)
        every = 0.9 * stacks / max(1, len(events))
        deadline, ready, count = time.monotonic() + seconds, 0.0, len(events)
        driver = self.start()
        try:
            while driver.poll() is None:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the sweep took longer than {seconds} s\n{self.log.read_text()[-3000:]}")
                self.watch()
                self.happened["node gone by itself"] += self.nodes.replace_dead()
                finished = len(self._seen) // 2
                due = events and time.monotonic() >= ready and finished >= (count - len(events)) * every
                if due and self._disturb(events[-1], draw):
                    event = events.pop()
                    self.happened[event] += 1
                    ready = time.monotonic() + draw.uniform(*pause)
                    if event == "driver":
                        driver = self.start()
                time.sleep(0.2)
        finally:
            driver.kill()
            driver.wait()
        self.watch()
        return driver.returncode

    def _disturb(self, event: str, draw: random.Random) -> bool:
        """Kill something that is at work; False where nothing is."""
        busy = self.training() if draw.random() < 0.8 else self.nodes.busy_workers()
        if not busy:
            return False
        if event == "worker":
            return kill(draw.choice(busy))
        if event == "driver":
            assert self._driver is not None
            self._driver.send_signal(signal.SIGKILL)
            self._driver.wait()
            return True
        self.nodes.kill_node(draw.randrange(len(self.nodes.nodes)))
        self.nodes.add()
        self.happened["node added"] += 1
        return True

    def training(self) -> list[int]:
        """The processes that have begun to train a stack and have written a checkpoint."""
        storage, found = self._storage(), []
        leases = Leases(storage)
        with contextlib.suppress(Exception):  # a storage that is made to fail
            finished = {name.partition(".")[0] for name in storage.list("parts")}
            for name in storage.list("progress"):
                stack_id = name.removesuffix(".json")
                if stack_id not in finished and storage.list(f"checkpoints/{stack_id}"):
                    head = leases.head(stack_id)
                    if head is not None and not head.released and leases.is_held(stack_id):
                        found.append(head.pid)
        return found

    def _storage(self) -> Storage:
        return open_storage(self.out) if is_remote(self.out) else FolderStorage(Path(self.out))

    def watch(self) -> None:
        """Note every part when it appears, and whether it was written again."""
        with contextlib.suppress(Exception):  # a storage that is made to fail
            for name, stamp in self._storage().list("parts").items():
                if self._seen.setdefault(name, stamp) != stamp:
                    self.rewritten.add(name)

    def results(self) -> Results:
        """What came out."""
        return Results.open(fetch_results(self.out) if is_remote(self.out) else Path(self.out))
