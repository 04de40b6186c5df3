"""The training of one stack in this process: checkpoints, progress, and the results at the end.

Before this: `worker`, which holds the stack's lock. After it: `training` (or an agent's), which learns, and the store,
which keeps what it gives.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from neoteny.backends.names import DESCRIPTIONS
from neoteny.problems.problem import Problem, Source, Stream, Worlds
from neoteny.suite.configuration import choose_backend
from neoteny.suite.environment import machine, versions
from neoteny.suite.progress import shorten
from neoteny.suite.provenance import commit
from neoteny.suite.rl.agent import AgentTraining
from neoteny.suite.stacks import PlannedStack
from neoteny.suite.stopping import StopFlag
from neoteny.suite.store.errors import Stopped, StoreError, TakenOver
from neoteny.suite.store.results import Results
from neoteny.suite.training import Training

PROGRESS_SECONDS = 0.5

Notify = Callable[[str], None]
"""Takes a line for the person who waits."""


@dataclass(frozen=True)
class Job:
    """What every stack of a command is trained with.

    Args:
        results: the results folder.
        streams: the opened problems.
        device: where tensors are.
        kernel: "reference", or the device whose compiled backends are used where they can be; see `choose_backend`.
        checkpoint_seconds: time between checkpoints of a stack.
        threads: threads of a compiled backend; the numbers do not depend on it.
        stop: asks to stop.
        notify: takes lines for the person who waits.
        command: what the processes that one command started have in common; "": this process has no siblings.
    """

    results: Results
    streams: dict[Problem, Source]
    device: torch.device
    kernel: str
    checkpoint_seconds: float
    threads: int = 1
    stop: StopFlag = field(default_factory=StopFlag)
    notify: Notify = print
    command: str = ""


class Session:
    """One stack from its start, or from its checkpoint, to its results; its lock is held by the caller.

    Args:
        job: how stacks are trained.
        stack: the stack.
        killed: how many processes of this command were killed while they trained it.
    """

    def __init__(self, job: Job, stack: PlannedStack, killed: int = 0) -> None:
        self._job, self._stack, self._results, self._killed = job, stack, job.results, killed
        self._checkpoints = job.results.checkpoints(stack.stack_id)
        self._training = make_training(job, stack)
        self._seconds, self._resumed, self._cannot_save = 0.0, 0, False
        self._resume()
        self._began = self._progress_at = self._checkpoint_at = time.monotonic()
        self._first_update = self._training.updates

    def run(self) -> None:
        """Train to the end and write the results.

        Raises:
            Stopped: it was asked to stop; a checkpoint is written.
            TakenOver: another process has taken the stack over.
        """
        self._write_progress("running")
        try:
            self._training.run(self._pause)
        except Stopped:
            self._write_progress("stopped")
            raise
        except TakenOver:  # the progress file is the other process's now
            raise
        except Exception:
            self._write_progress("failed")
            raise
        if self._training.ended:
            self._job.notify(f"{self._stack.name}: {self._training.ended}")
        elif diverged := self._diverged():
            self._job.notify(f"{self._stack.name}: {shorten(diverged)}")
        self._results.write_part(self._stack, self._training, self._facts())
        self._checkpoints.clear()
        self._write_progress("finished")

    def _resume(self) -> None:
        state, notes = self._checkpoints.load(torch.device("cpu"))
        for note in notes:
            self._job.notify(note)
        if state is None:
            return
        device, backend = self._job.device.type, self._stack.backend
        if state["device"] != device or state["kernel"] != backend:
            raise StoreError(
                f"this stack was begun on {state['device']} with backend {state['kernel']}; on {device} with backend "
                f"{backend} its numbers would differ. Pass --device {state['device']} to continue it, or choose "
                "another folder with --out."
            )
        torch.set_num_threads(state["threads"])
        try:
            self._training.load_state_dict(state["training"])
            if not 0 <= self._training.updates <= self._stack.updates:
                raise ValueError(f"it is at update {self._training.updates} of {self._stack.updates}")
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise StoreError(
                f"its checkpoint does not fit this experiment ({type(error).__name__}: {error}). Move "
                f"{self._checkpoints.folder} away to start the stack from its beginning."
            ) from error
        self._seconds, self._resumed = state["seconds"], state["resumed"] + 1

    def _pause(self) -> None:
        """Between blocks of updates: save a checkpoint and write the progress where it is time, or stop."""
        self._training.check_saveable()
        if self._results.claims.is_lost(self._stack.stack_id):
            self._results.claims.guard(self._stack.stack_id)
        now = time.monotonic()
        stopping = bool(self._job.stop)
        if stopping or now - self._checkpoint_at >= self._job.checkpoint_seconds:
            self._save()
            self._checkpoint_at = time.monotonic()
        if stopping:
            raise Stopped
        if now - self._progress_at >= PROGRESS_SECONDS:
            self._write_progress("running")
            self._progress_at = now

    def _save(self) -> None:
        try:
            self._results.claims.guard(self._stack.stack_id)
            self._checkpoints.save(
                {
                    "training": self._training.state_dict(),
                    "device": self._job.device.type,
                    "kernel": self._stack.backend,
                    "threads": torch.get_num_threads(),
                    "seconds": self._elapsed(),
                    "resumed": self._resumed,
                }
            )
        except StoreError as error:
            if not self._cannot_save:  # once, not at every attempt
                self._job.notify(f"{self._stack.name}: no checkpoint written, the one before it stays. {error}")
            self._cannot_save = True
        else:
            self._cannot_save = False
            with contextlib.suppress(StoreError):  # if the disk is full, the next checkpoint reports it
                self._results.write_unfinished(self._stack, self._training)

    def _elapsed(self) -> float:
        return self._seconds + time.monotonic() - self._began

    def _write_progress(self, state: str) -> None:
        training = self._training
        here = time.monotonic() - self._began
        rate = (training.updates - self._first_update) / here if here > 0 else 0.0
        latest = training.latest()
        progress = {
            **begin_progress(self._stack),
            **killed_fields(self._job, self._killed),
            "state": state,
            "task": training.task,
            "updates": training.updates,
            "updates_per_second": rate,
            "latest": latest if latest is not None and math.isfinite(latest[1]) else None,
            "seconds": self._elapsed(),
            "resumed_at": self._first_update,
            "diverged": int((training.diverged_at >= 0).sum()),
            "diverged_runs": self._diverged(),
            "backend": self._describe_backend(),
        }
        if lease := self._results.claims.lease(self._stack.stack_id):
            if lease.lost:
                return
            progress["attempts"] = lease.token
        with contextlib.suppress(StoreError):  # a full disk must not end a run because of its progress file
            self._results.write_progress(self._stack.stack_id, progress)

    def _diverged(self) -> list[str]:
        """The runs that diverged, each with the update, and with the hook that did it where that is known."""
        found = []
        for number, (run, at) in enumerate(zip(self._stack.runs, self._training.diverged_at.tolist(), strict=True)):
            if at >= 0:
                cause = self._training.causes.get(number)
                why = f" ({cause} gave the first number that was not finite)" if cause else ""
                found.append(f"{run.setting.label}, seed {run.seed}, diverged at update {at}{why}")
        return found

    def _describe_backend(self) -> str:
        run, kernel = self._stack.runs[0], self._job.kernel
        name, why = choose_backend(kernel, run.problem, run.setting)
        why = self._training.reason or (why if kernel != "reference" else "")
        reason = f" ({why})" if why else ""
        return f"{DESCRIPTIONS[name]} on {self._job.device.type}{reason}"

    def _facts(self) -> dict[str, Any]:
        """What is recorded beside the numbers: commit, versions, machine, time."""
        return {
            **commit(),
            "versions": versions(),
            "machine": machine(self._job.device),
            "device": self._job.device.type,
            "kernel": self._stack.backend,
            "threads": torch.get_num_threads(),
            "seconds": self._elapsed(),
            "updates": self._training.updates,
            "resumed": self._resumed,
            "ended": self._training.ended,
        }


def killed_fields(job: Job, killed: int) -> dict[str, Any]:
    """The fields of a progress file that count processes which were killed."""
    return {"command": job.command, "killed": killed} if job.command else {}


def begin_progress(stack: PlannedStack) -> dict[str, Any]:
    """The progress of a stack that has not begun."""
    return {
        "state": "running",
        "name": stack.name,
        "runs": [run.run_id for run in stack.runs],
        "task": 0,
        "tasks": stack.problem.tasks,
        "updates": 0,
        "total_updates": stack.updates,
        "unit": "step" if stack.problem.control else "update",
        "updates_per_second": 0.0,
        "latest": None,
        "seconds": 0.0,
        "resumed_at": 0,
        "diverged": 0,
    }


def make_training(job: Job, stack: PlannedStack) -> Training | AgentTraining:
    """The training of a stack, at its start."""
    agent, source = stack.runs[0].setting.agent, job.streams[stack.problem]
    if agent is not None:
        assert isinstance(source, Worlds), "a sweep gives agents to problems of control alone"
        training = agent.train(stack, source)
        if not isinstance(training, AgentTraining):
            raise TypeError(
                f"{type(agent).__name__}.train must return an AgentTraining (neoteny.suite.rl.agent); got "
                f"{type(training).__name__}."
            )
        return training
    assert isinstance(source, Stream)
    return Training(stack, source, job.device, job.threads)
