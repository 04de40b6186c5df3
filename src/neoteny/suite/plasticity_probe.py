"""The plasticity probe of a sweep: discarded copies of the networks learn a task that their runs never see.

At the start of a task each network is copied, and the copies learn an unseen task (`Stream.unseen`) for a fixed number
of updates with a plain optimizer that starts from nothing. The mean of their losses is small if they learn fast. The
same is done once with the networks as they were initialised. Nothing here changes a run: copies have tensors of their
own, and draws are put back.

A measure is a function of a `Probed` that gives one number per run. Add one by writing the function and its line in
`LEARNING_MEASURES`. Before this: `training`, which asks for measures; beside it: `measures`, for those that learn
nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from neoteny import metrics
from neoteny.methods.adam import Adam
from neoteny.methods.method import Method
from neoteny.methods.sgd import SGD
from neoteny.metrics.example_gradients import agreement_of_sum
from neoteny.problems.problem import Plan
from neoteny.stacking.stack import Stack, stack

OPTIMIZERS: dict[str, Callable[[float], Method]] = {"sgd": SGD, "adam": Adam}
"""What the copies learn with, by name, from a step size."""
GRADIENT_EXAMPLES = 50
"""Examples of the unseen task whose gradients are compared, each by itself."""
_BLOCK = 20  # updates whose batches are made at once


@dataclass(frozen=True)
class Learned:
    """How n discarded networks learned.

    Attributes:
        losses: before each update, (updates, n), float64.
        plasticity: one-step plasticity, (n,); None where it was not asked for.
        churn: of their outputs on given inputs, (n,); None where it was not asked for.
    """

    losses: Tensor
    plasticity: Tensor | None = None
    churn: Tensor | None = None


class PlasticityProbe:
    """The probe of one stack of runs.

    Args:
        plan: the unseen task.
        updates: how many; at most those of a task.
        optimizer: what the copies learn with.
        dtype, device: of the networks.
        fresh: makes the stack of the networks as they were initialised; called once.
        as_inputs: a plan's inputs in that dtype, as of `Problem.as_inputs`.
    """

    def __init__(
        self,
        plan: Plan,
        updates: int,
        optimizer: Method,
        dtype: torch.dtype,
        device: torch.device,
        fresh: Callable[[], Stack],
        as_inputs: Callable[[Tensor, torch.dtype], Tensor] = Tensor.to,
    ) -> None:
        self._plan, self._updates, self._optimizer = plan, min(updates, plan.steps), optimizer
        self._dtype, self._device = dtype, device
        self._make_fresh, self._as_inputs = fresh, as_inputs

    @cached_property
    def fresh_loss(self) -> Tensor:
        """Mean loss of the networks as they were initialised, (n,): the same at every moment of a run."""
        with self.undrawn():
            return self.learn(self._make_fresh()).losses.mean(0)

    def measure(self, names: Sequence[str], source: Stack, inputs: Tensor) -> dict[str, Tensor]:
        """Every named measure, (n,) float64 on the CPU.

        Args:
            names: keys of `LEARNING_MEASURES`.
            source: the networks; they stay as they are.
            inputs: (n, examples, ...) to see on how far outputs move.
        """
        with self.undrawn():
            probed = Probed(self, source, inputs, names)
            return {name: LEARNING_MEASURES[name](probed).to("cpu", torch.float64) for name in names}

    def learn(self, made: Stack, plasticity: bool = False, inputs: Tensor | None = None) -> Learned:
        """Train a stack that is thrown away afterwards."""
        before = None if inputs is None else made.predict(inputs)
        losses: list[Tensor] = []
        pairs: list[tuple[Tensor, Tensor]] = []
        for x, y in self.batches(self._updates):
            first = self._evaluate(made, x, y) if plasticity else None
            losses.append(made.step(x, y).losses.double())
            if first is not None:
                pairs.append((first, self._evaluate(made, x, y)))
        taken = None
        if pairs:
            then, now = (torch.stack(each, -1) for each in zip(*pairs, strict=True))
            taken = metrics.one_step_plasticity(then, now, run_dims=1)
        moved = None if before is None or inputs is None else metrics.churn(made.predict(inputs), before, run_dims=1)
        return Learned(torch.stack(losses), taken, moved)

    def batches(self, updates: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets of the first updates of the unseen task, each (n, B, ...)."""
        for start in range(0, updates, _BLOCK):
            found = self._plan.batches(start, min(start + _BLOCK, updates), self._device)
            for inputs, targets in zip(*found, strict=True):
                yield (
                    self._as_inputs(inputs, self._dtype),
                    targets.to(self._dtype) if targets.is_floating_point() else targets,
                )

    def examples(self, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The first examples of the unseen task one by one, each (n, 1, ...)."""
        left = count
        for inputs, targets in self.batches(min(count, self._plan.steps)):
            for number in range(min(left, inputs.shape[1])):
                yield inputs[:, number : number + 1], targets[:, number : number + 1]
            left -= inputs.shape[1]
            if left <= 0:
                return

    def copied(self, source: Stack) -> Stack:
        """Copies of networks, with an optimizer that starts from nothing."""
        return copy_stack(source, self._optimizer)

    def undrawn(self) -> AbstractContextManager[None]:
        """Draws from torch's generators inside are put back."""
        return torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else [])

    def _evaluate(self, made: Stack, inputs: Tensor, targets: Tensor) -> Tensor:
        return made.loss(made.predict(inputs), targets).double()


class Probed:
    """Networks at one moment, and what their copies do; each thing is done when it is first asked for."""

    def __init__(self, probe: PlasticityProbe, source: Stack, inputs: Tensor, names: Sequence[str]) -> None:
        self._probe, self._source, self._inputs, self._names = probe, source, inputs, names

    @cached_property
    def learned(self) -> Learned:
        """What the copies gave while they learned."""
        return self._probe.learn(
            self._probe.copied(self._source),
            plasticity="one_step_plasticity" in self._names,
            inputs=self._inputs if "churn" in self._names else None,
        )

    @property
    def fresh_loss(self) -> Tensor:
        """Mean loss of the networks as they were initialised, (n,)."""
        return self._probe.fresh_loss

    @cached_property
    def gradients(self) -> tuple[Tensor, Tensor]:
        """Agreement and strength of the gradients of single examples, both (n,).

        Only the sum of their directions is kept: the gradients of all examples would need much memory.
        """
        made = self._probe.copied(self._source)
        made.template.eval()
        parameters = list(made.view.parameters.values())
        totals = [torch.zeros_like(each, dtype=torch.float64) for each in parameters]
        lengths: list[Tensor] = []
        for inputs, targets in self._probe.examples(GRADIENT_EXAMPLES):
            losses = made.loss(made.forward(made.view.tensors, inputs)[0], targets)
            found = torch.autograd.grad(losses.sum(), parameters, allow_unused=True)
            length = metrics.gradient_norm(found, run_dims=1)
            for total, gradient in zip(totals, found, strict=True):
                if gradient is not None:
                    divisor = torch.where(length > 0, length, 1.0).view(-1, *[1] * (gradient.dim() - 1))
                    total += gradient.double() / divisor
            lengths.append(length)
        together = torch.stack(lengths, -1)
        total = torch.cat([each.flatten(1) for each in totals], 1)
        return agreement_of_sum(total, together), together.mean(-1)


def copy_stack(source: Stack, optimizer: Method) -> Stack:
    """Copies of a stack's networks in a stack of their own, which learns with another optimizer and nothing else."""
    module = copy.deepcopy(source.template)
    made = stack([module] * source.view.runs[0], optimizer, seeds=source.view.seeds.tolist())
    made.loss = source.loss
    with torch.no_grad():
        for name, tensor in made.view.tensors.items():
            tensor.copy_(source.view.tensors[name])
    return made


def fresh_stack(modules: Sequence[nn.Module], optimizer: Method, like: Stack, head: str) -> Stack:
    """A stack of networks as they were initialised, with an output layer of zeros if the problem wants one."""
    made = stack(modules, optimizer, seeds=like.view.seeds.tolist())
    made.loss = like.loss
    if head:
        made.zero_layer(head)
    return made


# --- measures --------------------------------------------------------------------------------------------------------


def probe_loss(probed: Probed) -> Tensor:
    """Mean loss of a discarded copy while it learns an unseen task: low if it learns fast."""
    return probed.learned.losses.mean(0)


def probe_loss_fresh(probed: Probed) -> Tensor:
    """Mean loss of the network as it was initialised while it learns the same task."""
    return probed.fresh_loss


def probe_excess(probed: Probed) -> Tensor:
    """By how many per cent probe_loss is above probe_loss_fresh: lost plasticity; below 0 is a head start."""
    return 100.0 * (probed.learned.losses.mean(0) / probed.fresh_loss - 1.0)


def one_step_plasticity(probed: Probed) -> Tensor:
    """Share of its loss that an update of the copy takes away on its own batch, mean over the probe's updates."""
    assert probed.learned.plasticity is not None
    return probed.learned.plasticity


def churn(probed: Probed) -> Tensor:
    """How far the probe's updates move the copy's outputs on the run's own task: mean squared change."""
    assert probed.learned.churn is not None
    return probed.learned.churn


def gradient_agreement(probed: Probed) -> Tensor:
    """Mean cosine between the gradients of two examples of an unseen task."""
    return probed.gradients[0]


def gradient_strength(probed: Probed) -> Tensor:
    """Mean length of the gradients of single examples of an unseen task."""
    return probed.gradients[1]


LEARNING_MEASURES: dict[str, Callable[[Probed], Tensor]] = {
    "probe_loss": probe_loss,
    "probe_loss_fresh": probe_loss_fresh,
    "probe_excess": probe_excess,
    "one_step_plasticity": one_step_plasticity,
    "churn": churn,
    "gradient_agreement": gradient_agreement,
    "gradient_strength": gradient_strength,
}
