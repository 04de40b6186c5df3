"""One process at work in a results folder: stage by stage, stack by stack, continuing what was begun.

Any number of processes may work in one folder. Each takes stacks that no other process holds. When a process is killed,
its stack is free again at once and continues from its checkpoint. `--jobs` starts several such processes.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from neoteny.foreign_code import failing_line, is_users
from neoteny.suite.environment import set_deterministic
from neoteny.suite.session import Job, Session, begin_progress, killed_fields
from neoteny.suite.shards import WHOLE, Shard
from neoteny.suite.stacks import PlannedStack, Run, list_stacks, remaining_stacks, runs_of, stages
from neoteny.suite.store.errors import Stopped, StoreError, TakenOver
from neoteny.suite.sweep import Sweep
from neoteny.text import say_count

MOST_KILLED, MOST_KILLED_ALONE = 2, 3
"""After this number of killed processes of one command a stack is split, and a single run has failed."""
_WAIT_SECONDS = 0.5
_SHARDS_SECONDS = 5.0
_MOST_LETTERS = 500


@dataclass(frozen=True)
class Outcome:
    """What became of one attempt at a stack.

    Args:
        state: "finished" (now or by others before), "held" (another process trains it), "failed", "split" or
            "stopped"; "unfit" where a machine cannot begin with it.
        text: of a failure, for people.
        storage: whether what failed was the writing or reading of results, which another attempt may do.
        halves: of a stack that was split.
        notes: lines for people, from a process that cannot tell them itself.
        node: of a cluster, that could not begin.
    """

    state: str
    text: str = ""
    storage: bool = False
    halves: tuple[PlannedStack, ...] = ()
    notes: tuple[str, ...] = ()
    node: str = ""


@dataclass
class Worker:
    """One process that trains the stacks of a sweep.

    Args:
        sweep: what to run.
        job: where, on which device, and with which settings.
        alone: whether to tell the person when it has to wait for another process; workers of one command do not.
        shard: the share of the stacks that are this process's, the others' being other processes'.
    """

    sweep: Sweep
    job: Job
    alone: bool = True
    shard: Shard = WHOLE

    def run(self) -> list[str]:
        """Run everything; returns one line per stack that failed.

        Raises:
            Stopped: it was asked to stop.
        """
        set_deterministic()
        return self.run_stages(self._run_stage)

    def run_stages(self, run_stage: Callable[[list[Run]], list[str]]) -> list[str]:
        """Run stage by stage; `run_stage` takes the runs of one and returns what failed."""
        results = self.job.results
        failures: list[str] = []
        for number, runs in enumerate(stages(self.sweep, results, self.job.kernel)):
            if number:
                results.add_to_plan([run.run_id for run in runs])
            failures += run_stage(runs)
            if failures:  # a choice between settings needs all of them
                break
            results.refresh()
            if self.sweep.selection is not None and number == 0 and results.claims.shared:
                self._wait_for_others(runs)
        return failures

    def wanted(self) -> list[Run]:
        """The runs of the first stage."""
        return runs_of(self.sweep, self.sweep.settings, self.job.kernel)

    def remaining(self, runs: list[Run]) -> list[PlannedStack]:
        """The stacks of a stage that are left to train, of this process's share."""
        return self.shard.keep(self.sweep, runs, remaining_stacks(self.sweep, self.job.results, runs))

    def listed(self) -> list[PlannedStack]:
        """The stacks of the first stage that are left to train; nothing is changed."""
        wanted = self.wanted()
        return self.shard.keep(self.sweep, wanted, list_stacks(self.sweep, self.job.results, wanted))

    def _run_stage(self, runs: list[Run]) -> list[str]:
        results, stop = self.job.results, self.job.stop
        stacks = self.remaining(runs)
        failures: dict[str, str] = {}
        waiting = False
        while True:
            left = [stack for stack in stacks if not results.is_finished(stack.stack_id)]
            left = [stack for stack in left if stack.stack_id not in failures]
            if not left:
                return list(failures.values())
            taken = False
            for stack in left:
                if stop:
                    raise Stopped
                outcome = self.attempt(stack)
                if outcome.state == "held":
                    continue
                taken = True
                if outcome.state == "failed":
                    failures[stack.stack_id] = outcome.text
                if outcome.state == "split":
                    stacks = [other for other in stacks if other is not stack] + list(outcome.halves)
                    break  # `left` is out of date
            if not taken:
                if self.alone and not waiting:
                    who = say_count(len(left), "stack is", "stacks are")
                    self.job.notify(f"{who} being trained by another process; waiting for it.")
                    waiting = True
                if stop.wait(_WAIT_SECONDS):
                    raise Stopped

    def _wait_for_others(self, runs: list[Run]) -> None:
        """Wait until all results of the first stage are there to see, which the choice between settings needs.

        Other shards may be at work on theirs, and a network file system may show new files late.
        """
        wanted = {run.run_id for run in runs}
        told = False
        while left := len(wanted - self.job.results.finished_runs()):
            if not told:
                others = say_count(left, "run")
                self.job.notify(f"This share is done; the choice between settings waits for {others} of others.")
                told = True
            if self.job.stop.wait(_SHARDS_SECONDS):
                raise Stopped

    def attempt(self, stack: PlannedStack) -> Outcome:
        """Train one stack, unless another process does."""
        results = self.job.results
        with results.lock(stack.stack_id) as mine:
            if results.is_finished(stack.stack_id):
                return Outcome("finished")
            if not mine:
                return Outcome("held")
            killed = self._count_killed(stack)
            if killed >= (MOST_KILLED if len(stack.runs) > 1 else MOST_KILLED_ALONE):
                return self._give_up(stack, killed)
            fits = True
            try:
                outcome = self._train(stack, killed)
            except torch.OutOfMemoryError:
                fits, outcome = False, Outcome("split")
            if not fits:  # not in the handler, whose traceback holds on to the memory
                return self.split(stack)
            return outcome

    def _count_killed(self, stack: PlannedStack) -> int:
        """How many processes of this command were killed while they trained a stack; written down before we do."""
        if not self.job.command:
            return 0
        before = self.job.results.progress_of(stack.stack_id) or begin_progress(stack)
        killed = 0
        if before.get("command") == self.job.command:  # one that ended otherwise has left another state
            killed = before.get("killed", 0) + (before["state"] == "running")
        with contextlib.suppress(StoreError):
            self._write_state(stack, "running", **killed_fields(self.job, killed))
        return killed

    def _give_up(self, stack: PlannedStack, killed: int) -> Outcome:
        """After processes were killed, most likely because memory ran out: two halves, or the end of a single run."""
        if len(stack.runs) > 1:
            return self.split(stack)
        text = f"{stack.name}: {killed} processes were killed while they trained it. Is there too little memory?"
        self.fail(stack, text)
        return Outcome("failed", text)

    def _train(self, stack: PlannedStack, killed: int) -> Outcome:
        """Train one stack, which we hold."""
        try:
            Session(self.job, stack, killed).run()
        except (Stopped, KeyboardInterrupt):
            raise
        except TakenOver as error:
            self.job.notify(f"{stack.name}: {error}.")
            return Outcome("held")
        except (Exception, SystemExit) as error:
            if isinstance(error, torch.OutOfMemoryError) and len(stack.runs) > 1:
                raise
            # One stack's failure must not end the others.
            text = describe_failure(stack, error)
            if os.environ.get("NEOTENY_TRACEBACK"):
                self.job.notify(traceback.format_exc())
            self.fail(stack, text, traceback.format_exc())
            return Outcome("failed", text, storage=isinstance(error, StoreError))
        return Outcome("finished")

    def fail(self, stack: PlannedStack, text: str, trace: str = "") -> None:
        """Write that a stack, which we hold, has failed."""
        with contextlib.suppress(StoreError):
            self._write_state(stack, "failed", error=text, trace=trace)

    def split(self, stack: PlannedStack) -> Outcome:
        """Make two halves of a stack that does not fit into memory; they start from the beginning."""
        parts = halve(stack)
        self.job.notify(
            f"{stack.name}: {len(stack.runs)} runs do not fit into the memory of {self.job.device.type}; they are "
            f"trained as {len(parts[0].runs)} and {len(parts[1].runs)}."
        )
        self._write_state(stack, "split")
        self.job.results.checkpoints(stack.stack_id).clear()
        if self.job.device.type == "cuda":
            torch.cuda.empty_cache()
        return Outcome("split", halves=parts)

    def _write_state(self, stack: PlannedStack, state: str, **more: Any) -> None:
        """Change the state in a stack's progress file."""
        before = self.job.results.progress_of(stack.stack_id) or begin_progress(stack)
        self.job.results.write_progress(stack.stack_id, {**before, "state": state, **more})


def halve(stack: PlannedStack) -> tuple[PlannedStack, PlannedStack]:
    """Two stacks of the runs of one, in their order."""
    half = len(stack.runs) // 2
    return PlannedStack(stack.sweep, stack.runs[:half]), PlannedStack(stack.sweep, stack.runs[half:])


def describe_failure(stack: PlannedStack, error: BaseException) -> str:
    """What failed, in one line: the stack, the error, and where it was.

    The hook or the forward pass, task and update come as notes of the error; then the last line of the user's file,
    and the seeds of the runs.
    """
    try:
        message = " ".join(str(error).split())
    except Exception:  # of a class of the user's own
        message = "(its message cannot be shown)"
    message = message if len(message) <= _MOST_LETTERS else f"{message[:_MOST_LETTERS]}..."
    seeds = sorted({run.seed for run in stack.runs})
    runs = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    notes = dict.fromkeys(" ".join(note.split()) for note in getattr(error, "__notes__", ()))
    line = failing_line(error) or _defined_at(stack, notes)
    where = "; ".join(
        filter(None, [*notes, line if line not in message else "", runs if runs not in stack.name else ""])
    )
    what = _describe_misfit(stack, error) or f"{type(error).__name__}: {message}"
    return f"{stack.name}: {what}" + (f" ({where})" if where else "")


def _describe_misfit(stack: PlannedStack, error: BaseException) -> str:
    """What to write where a network of the package does not take the problem's inputs; "" where it does.

    It is tried after an error alone, in which torch speaks of matrices that nobody wrote.
    """
    run, problem = stack.runs[0], stack.problem
    build, dtype = run.setting.network.build, getattr(torch, stack.sweep.dtype)
    if is_users(build) or isinstance(error, torch.OutOfMemoryError):
        return ""
    try:
        network = run.make_network(dtype).eval()
    except Exception:  # the error itself says why
        return ""
    shape = tuple(problem.input_shape)
    try:
        with torch.no_grad():
            outputs = network(torch.zeros(1, *shape, dtype=torch.int64 if problem.tokens else dtype))
        if problem.control or outputs.dim() == (3 if problem.loss == "token_cross_entropy" else 2):
            return ""
        why = f"it gives outputs of shape {tuple(outputs.shape)} for one of them"
    except Exception as misfit:
        why = " ".join(str(misfit).split())[:_MOST_LETTERS]
    takes = (inspect.getdoc(build.forward) or "").partition("\n")[0]
    hint = f"Choose another network, or other inputs in {type(problem).__name__}."
    if len(shape) > 1 and "flatten" in inspect.signature(build).parameters:
        hint = f"Write network({build.__name__}, flatten=True, ...), which makes each input one row of numbers."
    return (
        f"{build.__name__} does not take the inputs of {type(problem).__name__}, each of shape {shape}: {why}. Its "
        f"forward pass: {takes} {hint}"
    )


def _defined_at(stack: PlannedStack, notes: Iterable[str]) -> str:
    """Where the user's hook of a note "in Noisy.step" is written, for errors that are raised about it, not in it."""
    setting = stack.runs[0].setting
    kinds = {kind.__name__: kind for kind in (*map(type, setting.methods), setting.network.build) if is_users(kind)}
    for note in notes:
        name, _, hook = note.removeprefix("in ").partition(".")
        function = getattr(kinds.get(name), hook, None)
        code = getattr(function, "__code__", None)
        if code is not None and not str(getattr(function, "__module__", "")).startswith("neoteny."):
            return f"{code.co_filename}, line {code.co_firstlineno}"
    return ""
