"""Method: frozen hyperparameters plus `init`, `add_gradient`, `step` and `task_boundary`.

State lives outside the method, in one nested dict of tensors, and is changed in place. A hyperparameter is a number, or
in a stack of n runs a sequence of n numbers.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from neoteny.layers.ports import Region
from neoteny.methods.declaration import KernelState, KernelTerms, RecordedStep, undeclared
from neoteny.units.view import View

State = dict[str, Any]


class Method:
    """One way to keep a network plastic, or one optimizer.

    Subclasses are frozen dataclasses. Every hook has a default that does nothing, so a method writes only the ones it
    uses.
    """

    needs_units: ClassVar[bool] = False
    """Whether the method reads or resets units, so that the network has to be traced."""
    is_optimizer: ClassVar[bool] = False
    """Whether `step` is the update itself; such a method belongs in a stack, not on a user's torch optimizer."""

    def init(self, view: View) -> State:
        """The method's state before the first step."""
        return {}

    def reads(self, view: View) -> list[str]:
        """Modules whose inputs must be recorded."""
        return []

    def add_gradient(self, view: View, state: State) -> None:
        """Add the gradient of a loss term, before the update."""

    def step(self, view: View, state: State) -> None:
        """Act after the gradients are known (an optimizer) or after the update (every other method)."""

    def task_boundary(self, view: View, state: State) -> None:
        """Act at a task boundary, for methods that are told."""

    def clear_state(self, state: State, region: Region) -> None:
        """Put per-element state of the region back to its initial value (optimizers)."""

    def export(self, state: State) -> State:
        """The state as plain tensors, numbers and strings."""
        return state

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
        return {field.name: getattr(self, field.name) for field in fields(self)}  # pyright: ignore[reportArgumentType]

    def runs(self) -> int | None:
        """The number of runs its sequences are for, None if all its hyperparameters are single numbers."""
        lengths = {name: len(value) for name, value in self.hyperparameters().items() if isinstance(value, tuple)}
        if len(set(lengths.values())) > 1:
            raise ValueError(
                f"{type(self).__name__}: sequences of hyperparameters must be of one length; got {lengths}."
            )
        return next(iter(lengths.values()), None)


def check_number(
    method: Method,
    name: str,
    low: float = 0.0,
    high: float = math.inf,
    *,
    below_high: bool = False,
    whole: bool = False,
) -> None:
    """Refuse a hyperparameter outside its range; turn a sequence into a tuple (one value a run).

    Args:
        method: the frozen dataclass.
        name: the field.
        low, high: the closed range.
        below_high: whether `high` itself is refused.
        whole: whether the value must be an integer.
    """
    value = getattr(method, name)
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = tuple(each.item() if isinstance(each, (Tensor, np.generic)) else each for each in value)
    object.__setattr__(method, name, value)
    upper = f"{high:g}{')' if below_high else ']'}" if math.isfinite(high) else "inf)"
    expected = f"{'an integer' if whole else 'a number'} in [{low:g}, {upper}"
    for number in value if isinstance(value, tuple) else (value,):
        label = f"{type(method).__name__}: {name} must be {expected}"
        if isinstance(number, bool) or not isinstance(number, int if whole else (int, float)):
            raise TypeError(f"{label}; got {number!r}.")
        inside = low <= number < high if below_high else low <= number <= high
        if not inside or not math.isfinite(number):
            raise ValueError(f"{label}; got {number!r}.")


def check_choice(method: Method, name: str, choices: Sequence[str]) -> None:
    """Refuse a value that is not one of the choices, suggesting the nearest."""
    value = getattr(method, name)
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{type(method).__name__}: {name} must be one of {', '.join(choices)}; got {value!r}.{hint}")


def move_nested(state: State, device: torch.device) -> None:
    """Move the tensors of a nested dict to a device, in place; what was derived from them on the host is dropped."""
    state.pop("arrays", None)
    for key, value in state.items():
        if isinstance(value, dict):
            move_nested(value, device)
        elif isinstance(value, Tensor):
            state[key] = value.to(device)


def copy_nested(source: State, target: State) -> None:
    """Copy tensors and numbers of one nested dict into another of the same structure, in place."""
    for key, value in source.items():
        if isinstance(value, dict):
            copy_nested(value, target.setdefault(key, {}))
        elif isinstance(value, Tensor) and isinstance(target.get(key), Tensor):
            with torch.no_grad():
                target[key].copy_(value)
        else:
            target[key] = value.clone() if isinstance(value, Tensor) else value
