"""Carry out a sweep in a results folder: stage by stage, stack by stack, resuming whatever was begun.

Any number of processes may work in one folder. Each takes stacks that no other holds; a stack whose process was killed
is free again at once, and goes on from its checkpoint. `--jobs` is nothing but several such processes.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import neoteny
from neoteny.backends.names import DESCRIPTIONS
from neoteny.problems.problem import Problem, Source, Stream, Worlds
from neoteny.suite.choice import choose_backend
from neoteny.suite.measures import check_measures
from neoteny.suite.rl.agent import AgentTraining
from neoteny.suite.selection import choose
from neoteny.suite.stacks import Run, StackOfRuns, runs_of, stacks_of
from neoteny.suite.stopping import StopFlag
from neoteny.suite.store.errors import Stopped, StoreError
from neoteny.suite.store.results import Results
from neoteny.suite.sweep import Sweep, nearest
from neoteny.suite.training import Training

KERNELS = ("auto", "reference")
DEVICES = ("auto", "cpu", "cuda")
CHECKPOINT_SECONDS = 60.0
PROGRESS_SECONDS = 0.5
_WAIT_SECONDS = 0.5
_PACKAGES = ("torch", "numpy", "numba", "pandas", "pyarrow", "gymnasium", "pybullet", "mujoco")


Say = Callable[[str], None]
"""Takes a line for the person who waits."""


@dataclass
class Worker:
    """One process at work in a results folder.

    Args:
        sweep: what to run.
        results: where.
        streams: the opened problems.
        device: on what.
        kernel: "reference", or the device whose compiled paths are taken where they serve; see `choose_backend`.
        threads: threads of a compiled path; the numbers do not depend on it.
        stop: asks it to stop.
        say: takes lines for the person who waits.
        checkpoint_seconds: time between checkpoints of a stack.
        alone: whether having to wait for another process is worth a word; among workers of one command it is not.
    """

    sweep: Sweep
    results: Results
    streams: dict[Problem, Source]
    device: torch.device
    kernel: str = "reference"
    stop: StopFlag = field(default_factory=StopFlag)
    say: Say = print
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    alone: bool = True
    threads: int = 1

    def run(self) -> list[str]:
        """Run everything; returns what failed, one line a stack.

        Raises:
            Stopped: it was asked to stop.
        """
        settle()
        failures: list[str] = []
        for number, runs in enumerate(stages(self.sweep, self.results, self.kernel)):
            if number:
                self.results.plan_more([run.run_id for run in runs])
            failures += self._run_stage(runs)
            if failures:  # a choice between settings needs all of them
                break
        return failures

    def _run_stage(self, runs: list[Run]) -> list[str]:
        stacks = plan_stacks(self.sweep, self.results, runs)
        failures: dict[str, str] = {}
        waiting = False
        while True:
            left = [one for one in stacks if not self.results.is_finished(one.stack_id)]
            left = [one for one in left if one.stack_id not in failures]
            if not left:
                return list(failures.values())
            taken = False
            for one in left:
                if self.stop:
                    raise Stopped
                with self.results.lock(one.stack_id) as mine:
                    if not mine or self.results.is_finished(one.stack_id):
                        continue
                    taken = True
                    fits = True
                    try:
                        failure = self._train(one)
                    except torch.OutOfMemoryError:
                        fits, failure = False, None
                    if not fits:  # not in the handler, whose traceback holds on to the memory
                        stacks = [each for each in stacks if each is not one] + self._split(one)
                        break  # the list that is walked has changed
                    if failure:
                        failures[one.stack_id] = failure
            if not taken:
                if self.alone and not waiting:
                    self.say(f"{len(left)} of the stacks are in the hands of another process; waiting for it.")
                    waiting = True
                if self.stop.wait(_WAIT_SECONDS):
                    raise Stopped

    def _train(self, one: StackOfRuns) -> str | None:
        """Train one stack, whose lock we hold; what failed, if anything."""
        try:
            _Session(self, one).run()
        except (Stopped, KeyboardInterrupt):
            raise
        except Exception as error:
            if isinstance(error, torch.OutOfMemoryError) and len(one.runs) > 1:
                raise
            # One stack's failure must not end the others.
            text = f"{one.name}: {type(error).__name__}: {error}"
            with contextlib.suppress(StoreError):
                before = self.results.progress().get(one.stack_id) or begin_progress(one)
                trace = traceback.format_exc()
                self.results.write_progress(one.stack_id, {**before, "state": "failed", "error": text, "trace": trace})
            return text
        return None

    def _split(self, one: StackOfRuns) -> list[StackOfRuns]:
        """Two halves of a stack that does not fit into the device's memory; they begin anew."""
        half = len(one.runs) // 2
        parts = [StackOfRuns(one.sweep, runs) for runs in (one.runs[:half], one.runs[half:])]
        self.say(
            f"{one.name}: {len(one.runs)} runs do not fit into the memory of {self.device.type}; they are trained as "
            f"{half} and {len(one.runs) - half}."
        )
        before = self.results.progress().get(one.stack_id) or begin_progress(one)
        self.results.write_progress(one.stack_id, {**before, "state": "split"})
        self.results.checkpoints(one.stack_id).clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return parts


class _Session:
    """The training of one stack in this process: checkpoints, progress, and the results at the end."""

    def __init__(self, worker: Worker, one: StackOfRuns) -> None:
        self._worker = worker
        self._one = one
        self._results = worker.results
        self._checkpoints = worker.results.checkpoints(one.stack_id)
        self._training = _make_training(worker, one)
        self._seconds, self._resumed, self._cannot_save = 0.0, 0, False
        self._resume()
        self._began = self._progress_at = self._checkpoint_at = time.monotonic()
        self._first_update = self._training.updates

    def run(self) -> None:
        """To the end."""
        self._show("running")
        try:
            self._training.run(self._pause)
        except Stopped:
            self._show("stopped")
            raise
        if self._training.ended:
            self._worker.say(f"{self._one.name}: {self._training.ended}")
        self._results.write_part(self._one, self._training, self._facts())
        self._checkpoints.clear()
        self._show("finished")

    def _resume(self) -> None:
        state, notes = self._checkpoints.load(torch.device("cpu"))
        for note in notes:
            self._worker.say(note)
        if state is None:
            return
        device = self._worker.device.type
        if state["device"] != device or state["kernel"] != self._one.path:
            raise StoreError(
                f"this stack was begun on {state['device']} with path {state['kernel']}; on {device} with path "
                f"{self._one.path} its numbers would differ. Pass --device {state['device']} to go on, or choose "
                "another folder with --out."
            )
        torch.set_num_threads(state["threads"])
        self._training.load_state_dict(state["training"])
        self._seconds, self._resumed = state["seconds"], state["resumed"] + 1

    def _pause(self) -> None:
        now = time.monotonic()
        stopping = bool(self._worker.stop)
        if stopping or now - self._checkpoint_at >= self._worker.checkpoint_seconds:
            self._save()
            self._checkpoint_at = time.monotonic()
        if stopping:
            raise Stopped
        if now - self._progress_at >= PROGRESS_SECONDS:
            self._show("running")
            self._progress_at = now

    def _save(self) -> None:
        try:
            self._checkpoints.save(
                {
                    "training": self._training.state_dict(),
                    "device": self._worker.device.type,
                    "kernel": self._one.path,
                    "threads": torch.get_num_threads(),
                    "seconds": self._elapsed(),
                    "resumed": self._resumed,
                }
            )
        except StoreError as error:
            if not self._cannot_save:  # say it once, not at every attempt
                self._worker.say(f"{self._one.name}: no checkpoint written, the one before it stays. {error}")
            self._cannot_save = True
        else:
            self._cannot_save = False
            with contextlib.suppress(StoreError):  # as in _show; a disk that is full is said of the next checkpoint
                self._results.write_unfinished(self._one, self._training)

    def _elapsed(self) -> float:
        return self._seconds + time.monotonic() - self._began

    def _show(self, state: str) -> None:
        """Say how far it is."""
        training = self._training
        here = time.monotonic() - self._began
        rate = (training.updates - self._first_update) / here if here > 0 else 0.0
        latest = training.latest()
        progress = {
            **begin_progress(self._one),
            "state": state,
            "task": training.task,
            "updates": training.updates,
            "updates_per_second": rate,
            "latest": None if latest is None or latest[1] != latest[1] else latest,
            "seconds": self._elapsed(),
            "resumed_at": self._first_update,
            "diverged": int((training.diverged_at >= 0).sum()),
            "path": self._describe_path(),
        }
        with contextlib.suppress(StoreError):  # a full disk must not end a run that only wants to say how far it is
            self._results.write_progress(self._one.stack_id, progress)

    def _describe_path(self) -> str:
        run, kernel = self._one.runs[0], self._worker.kernel
        name, why = choose_backend(kernel, run.problem, run.setting)
        why = self._training.reason or (why if kernel != "reference" else "")
        reason = f" ({why})" if why else ""
        return f"{DESCRIPTIONS[name]} on {self._worker.device.type}{reason}"

    def _facts(self) -> dict[str, Any]:
        """What goes beside the numbers: on what they were made, and how long it took."""
        return {
            "versions": versions(),
            "machine": machine(self._worker.device),
            "device": self._worker.device.type,
            "kernel": self._one.path,
            "threads": torch.get_num_threads(),
            "seconds": self._elapsed(),
            "updates": self._training.updates,
            "resumed": self._resumed,
            "ended": self._training.ended,
        }


def _make_training(worker: Worker, one: StackOfRuns) -> Training | AgentTraining:
    agent, source = one.runs[0].setting.agent, worker.streams[one.problem]
    if agent is not None:
        assert isinstance(source, Worlds), "a sweep gives agents to problems of control alone"
        return agent.train(one, source)
    assert isinstance(source, Stream)
    return Training(one, source, worker.device, worker.threads)


def begin_progress(one: StackOfRuns) -> dict[str, Any]:
    """What is known of a stack before it has begun."""
    return {
        "state": "running",
        "name": one.name,
        "runs": [run.run_id for run in one.runs],
        "task": 0,
        "tasks": one.problem.tasks,
        "updates": 0,
        "total_updates": one.updates,
        "unit": "step" if one.problem.control else "update",
        "updates_per_second": 0.0,
        "latest": None,
        "seconds": 0.0,
        "resumed_at": 0,
        "diverged": 0,
    }


def stages(sweep: Sweep, results: Results, kernel: str) -> Iterator[list[Run]]:
    """The runs of each stage; the second needs the results of the first."""
    yield runs_of(sweep, sweep.settings, kernel)
    if sweep.selection is not None:
        more: list[Run] = []
        for setting in choose(sweep, results.frame()):
            first = setting.runs or sweep.runs
            more += runs_of(sweep, [setting], kernel, range(first, first + sweep.selection.more_runs))
        yield more


def plan_stacks(sweep: Sweep, results: Results, runs: list[Run]) -> list[StackOfRuns]:
    """The stacks that are left, those that had begun first."""
    finished = results.finished_runs()
    begun = []
    for stack_id, entry in results.progress().items():
        if entry["state"] in ("finished", "split") or results.is_finished(stack_id):
            continue
        if finished.issuperset(entry["runs"]):  # its runs were finished in other stacks meanwhile
            results.checkpoints(stack_id).clear()
        else:
            begun.append(entry["runs"])
    return stacks_of(sweep, runs, finished, begun)


def open_problems(sweep: Sweep, data: Path | str | None) -> dict[Problem, Source]:
    """Find and check the data of every problem of a sweep."""
    check_measures(sweep.measures)
    problems = dict.fromkeys(setting.problem or sweep.problem for setting in sweep.settings)
    return {problem: problem.open(data) for problem in problems}


def choose_device(name: str, sweep: Sweep | None = None) -> torch.device:
    """The device for `--device`; agents act, and learn, where their simulators run: on the CPU."""
    if name not in DEVICES:
        raise ValueError(f"Unknown device {name!r}.{nearest(name, list(DEVICES))} Known are {', '.join(DEVICES)}.")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device here. Use --device cpu or auto.")
    if sweep is not None and any(setting.agent is not None for setting in sweep.settings):
        if name == "cuda":
            raise ValueError("--device cuda: agents act in simulators that run on the CPU. Use --device cpu or auto.")
        return torch.device("cpu")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def choose_kernel(name: str, device: torch.device) -> str:
    """What `choose_backend` is told for `--kernel`."""
    if name not in KERNELS:
        raise ValueError(f"Unknown kernel {name!r}.{nearest(name, list(KERNELS))} Known are {', '.join(KERNELS)}.")
    return "reference" if name == "reference" else device.type


def settle() -> None:
    """Settle what the last bits of a number depend on: one thread, and convolutions that repeat exactly on a GPU."""
    torch.set_num_threads(1)  # processes share the cores better than threads
    torch.set_flush_denormal(True)  # numbers below 1e-38 slow Adam down by a quarter
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def versions() -> dict[str, str]:
    """Versions of what the numbers may depend on."""
    found = {"neoteny": neoteny.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def machine(device: torch.device) -> str:
    """What the numbers were made on, in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
