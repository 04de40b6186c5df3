"""GraphBackend: a stack whose update is recorded once as a CUDA graph and then replayed.

On a GPU a small network's update is spent launching kernels. Recorded, it costs the host one call, and the host never
waits for the device inside a block: losses, accuracies and the first update that is not finite add up on the device.
The replacement schedule is known ahead (`schedule`): it is copied to the device for some updates at a time, and the
graph itself chooses and resets the units that are due (`replacement`). Where its kernels do not know the network,
`reason` says so, and units are chosen and reset by the library between two replays.

It is the library's update: the same methods on the same tensors, which a graph changes in place. So the stack's state
is the state, and a checkpoint needs nothing of the graph, which is recorded again after a resume. Networks of
convolutions take `conv_streams` as their forward pass, which sums in another order than the library's grouped
convolutions: numbers then agree to rounding, else bit for bit.

Before this: `stacking`, `problems`; after it: `training`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from neoteny.backends.graphs.conv_streams import SideBySide
from neoteny.backends.graphs.replacement import Replacements, replacements_of
from neoteny.backends.library import BLOCK_UPDATES, StackBackend
from neoteny.methods.declaration import RecordedStep, recorded_step_of
from neoteny.methods.method import Method, State
from neoteny.problems.problem import Problem, Stream
from neoteny.stacking.forward import Forward
from neoteny.stacking.stack import Stack

_BATCH_BYTES = 256 * 2**20  # of inputs made at once: their order is drawn on the host while the device works
_WARM_UPS = 2
_MOST_AHEAD = 64  # updates whose replacements are counted at once: the device waits for the first of them
Piece = Callable[[], None]


def why_not_recorded(methods: Sequence[Method]) -> str:
    """Why an update with these methods cannot be recorded, in a few words; "" if it can.

    Example:
        >>> from neoteny.methods import SGD, Adam, ContinualBackprop
        >>> why_not_recorded((SGD(0.01, 0.9), ContinualBackprop()))
        ''
        >>> why_not_recorded((Adam(0.01),))
        'Adam counts its updates on the host'
    """
    steps = [recorded_step_of(method) for method in methods]
    for step in steps:
        if isinstance(step, str):
            return step
    between = [step for step in steps if isinstance(step, RecordedStep) and step.between]
    return "two methods act between replays" if len(between) > 1 else ""


class GraphBackend(StackBackend):
    """A stack trained by replaying its update; see `backend.Backend`.

    Args:
        stack, stream, seeds, problem: what is trained, and on what.
        dtype: of the inputs.

    Attributes:
        reason: why the update is launched one operation at a time instead of replayed, or why units are replaced
            between two replays; "" if neither is so.
    """

    def __init__(
        self, stack: Stack, stream: Stream, seeds: Sequence[int], problem: Problem, dtype: torch.dtype
    ) -> None:
        super().__init__(stack, stream, seeds, problem, dtype)
        self.block_updates = BLOCK_UPDATES
        device = self._device
        if why := why_not_recorded(stack.methods):
            raise ValueError(
                f"GraphBackend expects methods whose update can be recorded; got {stack.methods!r}: {why}."
            )
        if problem.schedules_step_size:
            raise ValueError(
                "GraphBackend records the step size with the update, but "
                f"{type(problem).__name__} changes it during a task."
            )
        self._replays = device.type == "cuda"
        self.reason = "" if self._replays else "no CUDA device"
        reads = dict.fromkeys(name for method in stack.methods for name in method.reads(stack.view))
        self._forward: Forward = SideBySide.of(stack.template, reads, device) or stack.forward
        declared = [step for method in stack.methods if isinstance(step := recorded_step_of(method), RecordedStep)]
        self._steps = list(zip(stack.methods, declared, stack.chain.states, strict=True))
        # The first piece ends with the method that acts between replays; what follows it is a second piece.
        self._cut = next((k + 1 for k, step in enumerate(declared) if step.between), len(declared))
        self._recorded: Any = None
        self._replacements: Replacements | None = None
        self._clocks: list[tuple[State, Tensor]] = [
            (state, torch.zeros((), dtype=torch.int64, device=device)) for _, step, state in self._steps if step.counts
        ]
        runs = len(self._seeds)
        self._total = torch.zeros(runs, dtype=torch.float64, device=device)
        self._broken = torch.zeros(runs, dtype=torch.int64, device=device)
        self._update = torch.zeros((), dtype=torch.int64, device=device)
        self._inputs, self._targets = torch.empty(0, device=device), torch.empty(0, device=device)
        self._pieces: list[Piece] = []

    def advance(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Updates start to stop - 1 of the planned task; see `backend.Backend`."""
        assert self._plan is not None, "plan a task first"
        if not self._pieces:
            self._record(*self._plan.batches(start, start + 1, self._device))
        self._total.zero_()
        self._broken.fill_(-1)
        self._update.fill_(start)
        together = self._together()
        with self._counting(stop - start):
            for first in range(start, stop, together):
                last = min(first + together, stop)
                inputs, targets = self._plan.batches(first, last, self._device)
                if self._replacements is not None:
                    self._replacements.prepare(last - first)
                for batch, target in zip(inputs, targets, strict=True):
                    self._step(batch, target)
        return self._total.to("cpu", copy=True), self._broken.to("cpu", copy=True)

    def _together(self) -> int:
        """Updates whose inputs and replacements are prepared at once."""
        return min(_MOST_AHEAD, max(1, _BATCH_BYTES // (self._inputs.numel() * self._inputs.element_size())))

    def _step(self, batch: Tensor, target: Tensor) -> None:
        self._inputs.copy_(batch)
        self._targets.copy_(target)
        for number, piece in enumerate(self._pieces):
            piece()
            if number == 0 and self._replacements is None:
                self._act_between()

    @torch.no_grad()
    def _act_between(self) -> None:
        """What is not recorded: the library replaces units."""
        _, step, state = self._steps[self._cut - 1]
        if step.between is not None:
            step.between(self._stack.view, state, self._recorded)

    def _learn(self) -> None:
        """The update up to the method that acts between replays, its recorded part included, or to the end."""
        stack, view = self._stack, self._stack.view
        stack.template.train()
        outputs, recorded = self._forward(view.tensors, self._inputs)
        outputs = stack.counted(outputs)
        losses = stack.loss(outputs, self._targets)
        names = list(view.parameters)
        found = torch.autograd.grad(losses.sum(), list(view.parameters.values()), allow_unused=True)
        view.gradients = dict(zip(names, found, strict=True))
        view.activations = {name: [value.detach()] for name, value in recorded.items()}
        with torch.no_grad():
            self._account(losses.detach(), outputs.detach())
            for method, _, state in self._steps:
                method.add_gradient(view, state)
            for method, step, state in self._steps[: self._cut]:
                if step.record is None:
                    method.step(view, state)
                else:
                    self._recorded = step.record(view, state)
            if self._replacements is not None:
                self._replacements.replace()
        view.activations = {}

    @torch.no_grad()
    def _finish(self) -> None:
        """What comes after the method that acts between replays."""
        for method, _, state in self._steps[self._cut :]:
            method.step(self._stack.view, state)

    def _whole(self) -> None:
        """The whole update."""
        self._learn()
        self._finish()

    def _account(self, losses: Tensor, outputs: Tensor) -> None:
        """Add up the performance, and note the first update whose loss is not finite."""
        each = losses
        if self._problem.performance == "accuracy":
            each = (outputs.argmax(-1) == self._targets).flatten(1).double().mean(-1)
        self._total.add_(each.double())
        first = ~torch.isfinite(losses) & (self._broken < 0)
        self._broken.copy_(torch.where(first, self._update, self._broken))
        self._update.add_(1)

    @contextmanager
    def _counting(self, updates: int) -> Iterator[None]:
        """Let methods that count their updates do so on the device, where a graph can count."""
        before = [state["step"] for state, _ in self._clocks]
        for state, clock in self._clocks:
            state["step"] = clock.fill_(state["step"])
        try:
            yield
        finally:
            for (state, _), count in zip(self._clocks, before, strict=True):
                state["step"] = count + updates

    def _record(self, inputs: Tensor, targets: Tensor) -> None:
        """Record the update; with a `reason` not to, its pieces are called as they are."""
        self._inputs = torch.empty_like(self._problem.as_inputs(inputs[0], self._dtype))
        self._targets = torch.empty_like(targets[0], dtype=self._dtype if targets.is_floating_point() else None)
        self._inputs.copy_(inputs[0])
        self._targets.copy_(targets[0])
        pieces: list[Piece] = [self._learn, self._finish] if self._steps[self._cut :] else [self._learn]
        if not self._replays:
            self._pieces = pieces
            return
        found = replacements_of(self._stack, self._cut - 1, self._together())
        if isinstance(found, str):
            self.reason = found
        else:
            self._replacements = found
        if self._replacements is not None:
            pieces = [self._whole]
        saved = self._stack.state_dict()
        side = torch.cuda.Stream(self._device)
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side), self._counting(0):
            for piece in pieces * _WARM_UPS:  # what is made at its first use cannot be made while recording
                if self._replacements is not None:
                    self._replacements.rest()
                piece()
        torch.cuda.current_stream(self._device).wait_stream(side)
        self._stack.load_state_dict(saved)
        try:
            with self._counting(0):
                self._pieces = [_capture(piece) for piece in pieces]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.reason = f"recording failed: {str(error).splitlines()[0]}"
            self._pieces = pieces


def _capture(piece: Piece) -> Piece:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may read what was measured
        piece()
    return graph.replay
