"""The run loop: one stack of runs from its start, or from its checkpoint, to its results.

    for each task: plan -> (heads) -> measures -> predict, measure, learn -> performance

State is cut only between blocks of updates, whose size does not depend on when the run was stopped, so a resumed run
adds up the same numbers in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from neoteny.backends.backend import make_backend
from neoteny.foreign_code import called, generator_states, is_users, refuse_draws
from neoteny.problems.problem import Plan, Problem, Stream
from neoteny.stacking.stack import Loss, Stack, stack
from neoteny.suite.checked_stream import CheckedStream
from neoteny.suite.environment import multiplying
from neoteny.suite.measures import begin_measure
from neoteny.suite.plasticity_probe import LEARNING_MEASURES, OPTIMIZERS, PlasticityProbe, fresh_stack
from neoteny.suite.provenance import digest_weights
from neoteny.suite.stacks import PlannedStack
from neoteny.suite.store.checkpoints import check_plain

_TEST_EXAMPLES = 500  # of a run that are predicted together: those of a large test set would fill the memory


class Training:
    """The training of one stack of runs.

    Attributes:
        task, step: where it is: the task number, and the updates done in it.
        rows: metric -> task -> one value for each run; the latest measures are there once the next ones begin, or
            `table` or `state_dict` is called.
        diverged_at: for each run the update at which its loss stopped being finite, or -1.
        initial: for each run the digest of its initial weights; empty where an older checkpoint does not have it.
    """

    ended = ""
    """Why it ended early, in words, where there is more to say than `diverged_at` does."""

    def __init__(self, planned: PlannedStack, stream: Stream, device: torch.device, threads: int = 1) -> None:
        self.planned = planned
        self.problem = planned.problem
        self.device = device
        self.task, self.step = 0, 0
        self.rows: dict[str, dict[int, Tensor]] = {}
        self._measuring: Callable[[], None] | None = None
        stream = CheckedStream(self.problem, stream) if is_users(stream) else stream
        self._seeds = [run.seed for run in planned.runs]
        self._dtype = getattr(torch, planned.sweep.dtype)
        self._stream = stream
        self._probe: PlasticityProbe | None = None
        self._stack, self.initial = _build(planned, self._dtype, device)
        self._backend = make_backend(
            planned.backend, self._stack, stream, self._seeds, self.problem, self._dtype, threads
        )
        self._head = ""
        if self.problem.tells_task and self.problem.zeroes_output:
            self._head = _find_head(self._stack.module(0))
        count = len(self._seeds)
        self.diverged_at = torch.full((count,), -1, dtype=torch.int64)
        self._total = torch.zeros(count, dtype=torch.float64)
        self._replaced = torch.zeros(count, dtype=torch.int64)
        self._block = 0
        self._counted = 0
        users = [*planned.runs[0].setting.methods, planned.runs[0].setting.network.build]
        self._watched = [getattr(each, "__name__", type(each).__name__) for each in users if is_users(each)]
        self.check_saveable()

    @property
    def causes(self) -> dict[int, str]:
        """Runs that diverged because of a user's method, and its hook, as far as it is known."""
        return self._stack.chain.broken

    def check_saveable(self) -> None:
        """Refuse a user's method whose state could not be loaded again; long before the first checkpoint."""
        check_states(self._stack)

    @property
    def reason(self) -> str:
        """Why its backend does less than it could, in a few words; usually empty."""
        return self._backend.reason

    @property
    def updates(self) -> int:
        """Updates of each run so far."""
        return self.problem.steps_before(self.task) + self.step

    @property
    def finished(self) -> bool:
        """Whether every task is done, or no run is left that has not diverged."""
        return self.task >= self.problem.tasks or bool((self.diverged_at >= 0).all())

    def run(self, pause: Callable[[], None]) -> None:
        """Train to the end; `pause` is called between blocks and may save a checkpoint or raise."""
        with multiplying(self.planned.sweep.matmul):
            self._run(pause)

    def _run(self, pause: Callable[[], None]) -> None:
        while not self.finished:
            with self._located():
                plan = self._backend.plan(self.task)
            if plan.steps < 1:
                raise ValueError(
                    f"{type(self.problem).__name__}: task {self.task} has no updates; expected at least 1."
                )
            self._block = self._block or self._backend.block_updates
            if self.step == 0:
                with self._located():
                    self._begin_task(plan)
            while self.step < plan.steps:
                with self._located():
                    self._train_block(min(self.step + self._block, plan.steps))
                    ends = self.step == plan.steps
                    if ends:
                        self._end_task(plan)
                pause()
                if ends:
                    break
        self._settle()

    def latest(self) -> tuple[str, float] | None:
        """The performance of the last finished task, mean over the runs that have not diverged."""
        values = self.rows.get(self.problem.performance)
        if not values:
            return None
        return self.problem.performance, float(values[max(values)].nanmean())

    def table(self) -> dict[str, Tensor]:
        """metric -> (tasks measured, n), with the task numbers under "<metric>.tasks"; nan after a divergence."""
        self._settle()
        found: dict[str, Tensor] = {}
        for metric, by_task in self.rows.items():
            tasks = sorted(by_task)
            values = [by_task[task] for task in tasks]
            if self.task < self.problem.tasks:  # all diverged: the tasks they did not reach are nan as well
                step = self.planned.sweep.measure_every if metric not in (self.problem.performance, "replaced") else 1
                missing = [task for task in range(0, self.problem.tasks, step) if task not in by_task]
                tasks += missing
                values += [torch.full_like(values[0], torch.nan)] * len(missing)
            found[metric] = torch.stack(values)
            found[f"{metric}.tasks"] = torch.tensor(tasks)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Everything a bit-identical continuation needs. Plans need no more than the task number."""
        self._backend.write_back()
        self._settle()
        return {
            "task": self.task,
            "step": self.step,
            "block": self._block,
            "stack": self._stack.state_dict(),
            "total": self._total.clone(),
            "replaced": self._replaced.clone(),
            "diverged_at": self.diverged_at.clone(),
            "initial": list(self.initial),
            "rows": {metric: dict(by_task) for metric, by_task in self.rows.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where `state_dict()` was taken."""
        self._measuring = None
        self._stack.load_state_dict(state["stack"])
        self._backend.read()
        self.task, self.step, self._block = state["task"], state["step"], state["block"]
        self._total.copy_(state["total"])
        self._replaced.copy_(state["replaced"])
        self.diverged_at.copy_(state["diverged_at"])
        self.initial = list(state.get("initial", [""] * len(self._seeds)))  # of the process that began the runs
        self.rows = {metric: {task: value.cpu() for task, value in by.items()} for metric, by in state["rows"].items()}

    @contextmanager
    def _located(self) -> Iterator[None]:
        """Errors from in here say at which task and update it was."""
        self._counted = self._stack.updates
        try:
            yield
        except Exception as error:
            update = self.updates + self._stack.updates - self._counted
            error.add_note(f"task {self.task}, update {update}")
            raise

    def _begin_task(self, plan: Plan) -> None:
        if self.problem.tells_task:
            self._backend.write_back()
            if self.task > 0:  # before the first task there is nothing to act on
                wanted = any(method.needs_boundary_data for method in self._stack.methods)
                self._stack.task_boundary(self._one_pass(plan) if wanted else None)
            if self._head:
                self._stack.zero_layer(self._head)
            self._backend.read()
        self._total.zero_()
        sweep = self.planned.sweep
        if sweep.measures and self.task % sweep.measure_every == 0:
            self._backend.write_back()
            inputs = self.problem.as_inputs(plan.probe(sweep.probe_examples, self.device), self._dtype)
            still = [name for name in sweep.measures if name not in LEARNING_MEASURES]
            learning = [name for name in sweep.measures if name in LEARNING_MEASURES]
            self._settle()
            later = begin_measure(still, self._stack, inputs) if still else dict
            found = self._probing().measure(learning, self._stack, inputs) if learning else {}
            for name in sweep.measures:
                self.rows.setdefault(name, {})  # their place among the metrics does not depend on when they are made
            self._measuring = partial(self._record_measures, self.task, self.diverged_at.clone(), later, found)

    def _record_measures(
        self, task: int, diverged_at: Tensor, later: Callable[[], dict[str, Tensor]], found: dict[str, Tensor]
    ) -> None:
        try:
            found = found | later()
        except Exception as error:
            error.add_note(f"measures at the start of task {task}")
            raise
        for name in self.planned.sweep.measures:
            self.rows[name][task] = torch.where(diverged_at >= 0, torch.nan, found[name].double())

    def _settle(self) -> None:
        """Wait for the measures that were begun at the start of a task, and record them."""
        if self._measuring is not None:
            record, self._measuring = self._measuring, None
            record()

    def _probing(self) -> PlasticityProbe:
        """The plasticity probe; its unseen task and its fresh networks are the same all along."""
        if self._probe is None:
            sweep = self.planned.sweep
            optimizer = OPTIMIZERS[sweep.probe_optimizer](sweep.probe_step_size)

            def make_fresh() -> Stack:
                networks = [run.make_network(self._dtype).to(self.device) for run in self.planned.runs]
                return fresh_stack(networks, optimizer, self._stack, self._head)

            unseen, updates, types = self._stream.unseen(self._seeds), sweep.probe_updates, (self._dtype, self.device)
            self._probe = PlasticityProbe(unseen, updates, optimizer, *types, make_fresh, self.problem.as_inputs)
        return self._probe

    def _one_pass(self, plan: Plan) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one pass through a task's data."""
        for step in range(plan.steps_of_a_pass or plan.steps):
            inputs, targets = plan.batches(step, step + 1, self.device)
            inputs = self.problem.as_inputs(inputs[0], self._dtype)
            yield inputs, targets[0].to(self._dtype) if targets.is_floating_point() else targets[0]

    def _train_block(self, stop: int) -> None:
        before = generator_states() if self._watched else {}
        total, broken = self._backend.advance(self.step, stop)
        if before:
            refuse_draws(" or ".join(self._watched), before, generator_states())
        new = (broken >= 0) & (self.diverged_at < 0)
        before = self.problem.steps_before(self.task)
        self.diverged_at = torch.where(new, before + broken, self.diverged_at)
        self._total += total
        self.step, self._counted = stop, self._stack.updates

    def _end_task(self, plan: Plan) -> None:
        held_out = plan.test(self.device)
        if held_out is None:
            self._record(self.problem.performance, self._total / plan.steps)
        else:
            self._backend.write_back()
            parts = [part.split(_TEST_EXAMPLES, dim=1) for part in held_out]
            right = [self._right(inputs, targets) for inputs, targets in zip(*parts, strict=True)]
            self._record(self.problem.performance, torch.cat(right, 1).flatten(1).double().mean(-1).cpu())
        replaced = self._backend.replaced()
        if replaced is not None:
            self._record("replaced", (replaced - self._replaced).double())
            self._replaced.copy_(replaced)
        self.task, self.step = self.task + 1, 0

    def _right(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Which of some held-out examples every run has right, (n, T, ...)."""
        outputs = self._stack.predict(self.problem.as_inputs(inputs, self._dtype))
        return self._stack.counted(outputs).argmax(-1) == targets

    def _record(self, metric: str, values: Tensor) -> None:
        kept = torch.where(self.diverged_at >= 0, torch.nan, values.double())
        self.rows.setdefault(metric, {})[self.task] = kept


def _build(planned: PlannedStack, dtype: torch.dtype, device: torch.device) -> tuple[Stack, list[str]]:
    """The stack, and for each run the digest of its initial weights."""
    made: dict[int, nn.Module] = {}  # runs of one seed and several settings begin alike
    digests: dict[int, str] = {}
    for run in planned.runs:
        if run.seed not in made:
            network = run.make_network(dtype)
            digests[run.seed] = digest_weights(network)
            made[run.seed] = network.to(device)
    problem = planned.problem
    example = torch.zeros(1, *problem.input_shape, dtype=torch.int64 if problem.tokens else dtype)
    built = stack(
        [made[run.seed] for run in planned.runs],
        *planned.methods(),
        loss=problem.loss,
        example=example.to(device),
        seeds=[run.seed for run in planned.runs],
    )
    if is_users(built.template):
        built.loss = _checked_loss(built.loss, type(built.template).__name__, problem)
    return built, [digests[run.seed] for run in planned.runs]


def _checked_loss(loss: Loss, name: str, problem: Problem) -> Loss:
    """The loss of a user's network, refused where it does not give what the problem asks for."""
    by_token = problem.loss == "token_cross_entropy"
    shape = f"(batch, {'positions, ' if by_token else ''}{problem.outputs})"

    def checked(given: Any, targets: Tensor) -> Tensor:
        axes = targets.dim() + 1 if by_token else 3
        if not isinstance(given, Tensor) or given.dim() != axes or given.shape[-1] != problem.outputs:
            came = f"shape {tuple(given.shape[1:])}" if isinstance(given, Tensor) else type(given).__name__
            with called(f"in {name}.forward"):
                raise ValueError(f"{name} must give one tensor of shape {shape} as outputs; got {came}.")
        return loss(given, targets)

    return checked


def check_states(stack: Stack) -> None:
    """Refuse a user's method whose state is more than tensors, numbers, strings, lists and dicts."""
    for method, state in stack.chain.pairs:
        if is_users(method):
            check_plain(method.export(state), f"{type(method).__name__}: the state")


def _find_head(module: nn.Module) -> str:
    """The name of the output layer: the last linear layer."""
    names: Sequence[str] = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if not names:
        raise ValueError(
            f"This problem resets the output layer at task changes, but {type(module).__name__} has no linear layer."
        )
    return names[-1]
