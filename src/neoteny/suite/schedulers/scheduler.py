"""What a scheduler is given, and which there are.

A scheduler is a module with `run(work)`: it trains every stack of the work's sweep and returns one line per stack that
failed. It raises Stopped when it was asked to stop. All of them use the same results folder, checkpoints and progress
files, so that a sweep may be continued by any other.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from neoteny.suite.stacks import PlannedStack, runs_of
from neoteny.suite.worker import Worker
from neoteny.text import nearest

SCHEDULERS = ("local", "ray", "slurm")
NEEDS = {"ray": "ray", "slurm": "submitit"}
"""The package of each, and the extra of the same name as the scheduler."""


@dataclass(frozen=True)
class Resources:
    """What one stack, and all of them together, may take.

    Args:
        workers: at most this many stacks at a time; None: what there is room for.
        cpus: processor cores per stack.
        gpus: GPUs per stack; a fraction lets several stacks share one.
        more: options of a batch system, by name.
    """

    workers: int | None = None
    cpus: int = 1
    gpus: float = 0.0
    more: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Orders:
    """What a process on another machine needs to train stacks of a sweep.

    Args:
        options: the options of the command, as JSON.
        command: the command's id; see `leases`.
        lease_seconds: how long a lease is valid without being renewed.
        folder_id: of the results folder; "": the address is enough.
        source: the text of a user's experiment file, which that machine may not have.
        threads: threads per stack.
    """

    options: str
    command: str
    lease_seconds: float
    folder_id: str = ""
    source: bytes | None = None
    threads: int = 1


@dataclass(frozen=True)
class Work:
    """A sweep to train.

    Args:
        worker: the sweep, the results folder, and how to train one stack in this process.
        orders: how other processes get the same; None: they do not.
        join: makes a worker of orders, in another process; found there by its module and name.
        resources: what may be used.
        arguments: the command line of a process of this machine that trains stacks, with this many threads.
        address: of a cluster, where it was given.
        dry_run: whether to show what would be done.
    """

    worker: Worker
    orders: Orders
    join: Callable[[Orders], Worker]
    resources: Resources
    arguments: Callable[[int], Sequence[str]]
    address: str = ""
    dry_run: bool = False


class Scheduler(Protocol):
    """A module of this package."""

    def run(self, work: Work) -> list[str]:
        """Train every stack; returns what failed."""
        ...


def split_name(on: str) -> tuple[str, str]:
    """The scheduler of `--on`, and the address of its cluster if there is one.

    Example:
        >>> split_name("ray://head:10001"), split_name("local")
        (('ray', 'ray://head:10001'), ('local', ''))
    """
    name = on.partition("://")[0]
    if name not in SCHEDULERS or ("://" in on and (name != "ray" or not on.removeprefix("ray://"))):
        raise ValueError(
            f"--on {on}: unknown.{nearest(name, list(SCHEDULERS))} Known are {', '.join(SCHEDULERS)} and ray://HOST:PORT."
        )
    return name, on if "://" in on else ""


def parse_pairs(text: str | None) -> tuple[tuple[str, str], ...]:
    """The options of a batch system from "partition=gpu,time=240".

    Example:
        >>> parse_pairs("partition=gpu,time=240")
        (('partition', 'gpu'), ('time', '240'))
    """
    pairs = []
    for item in filter(None, (text or "").split(",")):
        name, equals, value = item.partition("=")
        if not (equals and name.isidentifier() and value):
            raise ValueError(f"--slurm: expected KEY=VALUE pairs, separated by commas, got {item!r}.")
        pairs.append((name, value))
    return tuple(pairs)


def load_scheduler(name: str) -> Scheduler:
    """The module of a scheduler.

    Raises:
        ValueError: its package is not installed.
    """
    package = NEEDS.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        raise ValueError(f"--on {name} needs {package}, which is not installed: pip install 'neoteny[{name}]'.")
    module: Scheduler = importlib.import_module(f"neoteny.suite.schedulers.{name}")  # pyright: ignore[reportAssignmentType]
    return module


def describe_stack(stack: PlannedStack) -> list[tuple[str, int]]:
    """A stack in plain values: the label of each run's setting, and its seed."""
    return [(run.setting.label, run.seed) for run in stack.runs]


def find_stack(worker: Worker, described: Sequence[tuple[str, int]], stack_id: str) -> PlannedStack:
    """The stack of plain values in another process.

    Raises:
        ValueError: it is another stack there.
    """
    settings = {setting.label: setting for setting in worker.sweep.settings}
    runs = [
        run
        for label, seed in described
        if label in settings
        for run in runs_of(worker.sweep, [settings[label]], worker.job.kernel, range(seed, seed + 1))
    ]
    stack = PlannedStack(worker.sweep, tuple(runs))
    if len(runs) != len(described) or stack.stack_id != stack_id:
        raise ValueError(
            "the experiment gives other runs on this machine than where the command was started: its file, or the "
            "versions of neoteny, numba or cupy, differ. Install the same on every machine."
        )
    return stack


def check_folder(root: Path, found: str, expected: str) -> None:
    """Refuse a folder that only has the same name as the one of the command."""
    if expected and found != expected:
        raise ValueError(
            f"{root} on this machine is not the folder in which the command was started. Put it on a file system that "
            "all machines see, or keep the results in a storage (--out s3://BUCKET/PREFIX)."
        )
