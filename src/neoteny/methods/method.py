"""Method: frozen hyperparameters plus the hooks through which an algorithm acts.

One update goes through the hooks in this order; within a hook the methods act in the order in which they were listed:

    forward, backward
    observe               read gradients as the loss gave them
    penalty, add_gradient loss terms join the gradients
    transform_gradients   the gradients as a whole
    (the update)          the user's optimizer, or the `step` of the method that is one
    step                  after the update: resets, noise, projections, averages

State lives outside the method, in one nested dict of tensors, and is changed in place. A hyperparameter is a number, or
in a stack of n runs a sequence of n numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter, signature
from typing import Any, ClassVar, Self

from torch import Tensor

from neoteny.layers.regions import ChosenUnits, Region
from neoteny.methods.card import Card
from neoteny.methods.checks import check_betas, check_choice, check_flag, check_number
from neoteny.methods.declaration import KernelState, KernelTerms, RecordedStep, undeclared
from neoteny.methods.state import State, copy_nested, count_update, slot
from neoteny.text import nearest, render
from neoteny.units.view import LiveGroup, View

__all__ = [
    "BoundaryData",
    "Method",
    "State",
    "check_betas",
    "check_choice",
    "check_flag",
    "check_number",
    "count_update",
    "slot",
]


@dataclass(frozen=True)
class BoundaryData:
    """Data of the task that begins, for methods that ask for it.

    Attributes:
        batches: pairs of inputs and targets; may be gone through once or more, as the user's loader allows.
        loss_gradients: from a batch to the gradient of its training loss, by parameter name.
    """

    batches: Iterable[tuple[Any, Any]]
    loss_gradients: Callable[[Any, Any], Mapping[str, Tensor]]

    def gradients(self) -> Iterator[Mapping[str, Tensor]]:
        """The gradient of each batch, by parameter name."""
        for inputs, targets in self.batches:
            yield self.loss_gradients(inputs, targets)


class Method:
    """One way to keep a network plastic, or one optimizer.

    Subclasses are frozen dataclasses. Every hook has a default that does nothing, so a method writes only the ones it
    uses. Tensors are (*R, ...): R = () for a user's module, R = (n,) for a stack.
    """

    card: ClassVar[Card]
    """What the table of methods says of it; the package's own methods have one."""
    needs_units: ClassVar[bool] = False
    """Whether the method reads or resets units, so that the network has to be traced."""
    is_optimizer: ClassVar[bool] = False
    """Whether `step` is the update itself. A stack takes one such method, as its first; `neoteny.optim.from_method`
    makes a torch optimizer of it."""
    redraws_weights: ClassVar[bool] = False
    """Whether the method draws new weights by `view.initial`, so that the initial distribution of every layer must be
    known, not only that of layers with units."""
    needs_loss: ClassVar[bool] = False
    """Whether the method reads `view.loss`, so that a user's loop has to call `plastic.observe(loss)`."""
    needs_inputs: ClassVar[bool] = False
    """Whether the method reads `view.calls`, the forward passes of the update."""
    needs_boundary_data: ClassVar[bool] = False
    """Whether `task_boundary` needs data of the task that begins."""
    averages_weights: ClassVar[bool] = False
    """Whether `evaluation` gives weights; at most one of the methods may."""
    wraps_optimizer: ClassVar[bool] = False
    """Whether the method decides how much of the optimizer's update is made; at most one of the methods may."""
    counts_steps: ClassVar[bool] = False
    """Of an optimizer, whether it corrects its moments by a step count, as Adam does (`restart_count`)."""
    follows_schedule: ClassVar[bool] = False
    """Of an optimizer, whether its step size is `view.scheduled(...)`; not inherited, since a subclass may compute its
    update in another way."""
    needs_step_count: ClassVar[bool] = False
    """Whether the method acts on the optimizer's step count, so that the optimizer must have one."""
    shared_by_runs: ClassVar[tuple[str, ...]] = ()
    """Sequences that all runs share (Adam's betas, names of layers); any other sequence has one number per run."""

    def __new__(cls, *arguments: Any, **keywords: Any) -> Self:
        """An instance; a keyword that is not known is refused with the nearest one that is."""
        known = signature(cls).parameters if keywords else {}
        unknown = [name for name in keywords if name not in known]
        if unknown and all(parameter.kind is not Parameter.VAR_KEYWORD for parameter in known.values()):
            hint = f"{nearest(unknown[0], known)} It takes {', '.join(known)}."
            raise TypeError(f"{cls.__name__} has no parameter {unknown[0]!r}.{hint}")
        return super().__new__(cls)

    def init(self, view: View) -> State:
        """The method's state before the first step."""
        return {}

    def reads(self, view: View) -> list[str]:
        """Modules whose inputs must be recorded."""
        return []

    def reads_gradients(self, view: View) -> list[str]:
        """Modules for whose inputs the gradient of the loss must be recorded (`view.input_gradients`)."""
        return []

    def observe(self, view: View, state: State) -> None:
        """Read the gradients of the training loss, before any loss term joins them."""

    def penalty(self, view: View, state: State) -> Tensor | None:
        """A loss term, (*R,); it is differentiated, scaled as the loss is, and added to the gradients."""

    def add_gradient(self, view: View, state: State) -> None:
        """Add the gradient of a loss term that is easier to write down than the term."""

    def transform_gradients(self, view: View, state: State) -> None:
        """Change the gradients in place, after all loss terms and before the update."""

    def step(self, view: View, state: State) -> None:
        """Act after the update; of an optimizer, the update itself."""

    def accumulate(self, view: View, state: State) -> None:
        """Add what was recorded since the last call to sums in `view.totals`, from which `step` then works.

        It is called with `attach(..., accumulate="sums")`, where inputs are forgotten after each pass. A method that
        reads activations and does not write it, in its own class, cannot be attached so.
        """

    def task_boundary(self, view: View, state: State, data: BoundaryData | None = None) -> None:
        """Act when a new task begins."""

    def evaluation(self, view: View, state: State) -> Mapping[str, Tensor] | None:
        """Parameters and buffers to evaluate the network with, by name, where they are not the trained ones."""

    def on_reset(self, view: View, state: State, region: Region) -> None:
        """Make per-element state of these elements as if they were new; the parameter itself is rewritten already."""

    def restart_count(self, view: View, state: State) -> None:
        """Of an optimizer with `counts_steps`: the step count of every weight back to zero, moments kept."""

    def on_units_reset(self, view: View, state: State, group: LiveGroup, chosen: ChosenUnits) -> None:
        """Make per-unit state of these units, which another method has reset, as if they were new."""

    def counts(self, view: View, state: State) -> dict[str, Tensor]:
        """How many units of each group the method has replaced so far, int64 (*R,) on the CPU."""
        return {}

    def describe(self, view: View, state: State) -> str:
        """What `print(plastic)` shows of the method beside its name; "" for nothing."""
        counts = self.counts(view, state)
        units = {group.name: group.units for group in view.groups}
        rows = [[name, str(units[name]), str(int(count.sum()))] for name, count in counts.items()]
        return render(["group", "units", "replaced"], rows) if rows else ""

    def why_not_with(self, others: Sequence[Method]) -> str:
        """Why the method cannot be combined with the others, in a sentence; "" if it can."""
        return ""

    def export(self, state: State) -> State:
        """The state as plain tensors, numbers and strings."""
        return state

    def rebuild(self, view: View, saved: State) -> None:
        """Bring the network to the structure it had when `saved` was exported, before anything is loaded."""

    def restore(self, view: View, state: State, saved: State) -> None:
        """Load what `export` gave into a state of the same structure."""
        copy_nested(saved, state)

    def kernel_terms(self) -> KernelTerms | str:
        """Its part of an update in the terms of compiled kernels, or why they cannot compute it; never inherited."""
        return undeclared(self)

    def kernel_state(self, state: State) -> KernelState:
        """Where its state lies; asked of methods with `kernel_terms` only."""
        return KernelState()

    def recorded_step(self) -> RecordedStep | str:
        """How `step` is recorded in a CUDA graph, or why it cannot be; never inherited."""
        return undeclared(self)

    def hyperparameters(self) -> dict[str, Any]:
        """Name and value of every hyperparameter."""
        if not is_dataclass(self):
            raise TypeError(
                f"{type(self).__name__} must be a frozen dataclass, as every method: write @dataclass(frozen=True) "
                "above the class."
            )
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def runs(self) -> int | None:
        """The number of runs its sequences are for, None if all its hyperparameters are single numbers."""
        values = self.hyperparameters().items()
        lengths = {
            name: len(value) for name, value in values if isinstance(value, tuple) and name not in self.shared_by_runs
        }
        if len(set(lengths.values())) > 1:
            raise ValueError(
                f"{type(self).__name__}: sequences of hyperparameters must be of one length; got {lengths}."
            )
        return next(iter(lengths.values()), None)


def hears_of_resets(method: Method) -> bool:
    """Whether a method has to be told of units that are new."""
    return any(getattr(type(method), hook) is not getattr(Method, hook) for hook in ("on_reset", "on_units_reset"))
