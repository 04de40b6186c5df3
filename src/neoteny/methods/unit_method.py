"""UnitMethod: a method that replaces units and says only which.

A subclass writes `choose`. Reading activations, counting, the order of measuring and resetting, and everything that
belongs to a unit is done here and in `units.reset`.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from neoteny.layers.regions import ChosenUnits
from neoteny.methods.method import Method, State, count_update
from neoteny.units.reset import reset_units
from neoteny.units.statistics import read
from neoteny.units.view import LiveGroup, Reader, View, read_modules


class UnitMethod(Method):
    """A method that replaces units by fresh ones at some updates."""

    needs_units: ClassVar[bool] = True

    def choose(self, view: View, group: LiveGroup, reader: Reader, state: State) -> Tensor | None:
        """Which units of a group to replace now: a bool mask (*R, U), or None for none.

        Args:
            view, group: where the units live.
            reader: where their activations of this update can be read.
            state: the method's entry for this group.
        """
        raise NotImplementedError(f"{type(self).__name__} must say which units to replace: write choose().")

    def is_due(self, step: int) -> bool:
        """Whether units are chosen at this update (counted from 1)."""
        return True

    def reads(self, view: View) -> list[str]:
        """Every group's reader and consumers."""
        return read_modules(view)

    def init(self, view: View) -> State:
        """The number of updates, and for each group how many units were replaced."""
        state: State = {"step": 0, "groups": {}}
        for group in view.groups:
            count = torch.zeros(view.runs, dtype=torch.int64, device=view.seeds.device)
            state["groups"][group.name] = {"replaced": count}
        return state

    def step(self, view: View, state: State) -> None:
        """Choose the units of every group from this update's activations, then replace them, last group first.

        In that order a weight that leads from one replaced unit to another ends as zero.
        """
        count_update(state)
        if not self.is_due(state["step"]):
            return
        due: list[tuple[LiveGroup, Tensor]] = []
        for group in view.groups:
            reader = group.reading(view.activations)
            if reader is None or not view.trainable(group):
                continue
            mask = self.choose(view, group, reader, state["groups"][group.name])
            if mask is not None:
                due.append((group, mask))
        for group, mask in reversed(due):
            chosen = ChosenUnits.of(mask)
            if not chosen.is_empty:
                reset_units(view, group, chosen, state["step"], by=self)
                state["groups"][group.name]["replaced"] += mask.sum(-1)

    def counts(self, view: View, state: State) -> dict[str, Tensor]:
        """Units replaced so far."""
        return {name: group["replaced"].cpu() for name, group in state["groups"].items()}


def mean_activity(view: View, reader: Reader) -> Tensor:
    """The mean of |h| over examples and positions of this update, (*R, U)."""
    batches = read(view, reader, torch.float64)
    sizes = [batch.shape[-3] * batch.shape[-1] for batch in batches]
    total = sum(batch.abs().sum((-3, -1)) for batch in batches)
    assert isinstance(total, Tensor)
    return total / sum(sizes)
