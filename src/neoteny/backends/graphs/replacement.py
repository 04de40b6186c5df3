"""Replacements: the units that continual backpropagation replaces, inside a recorded update.

What is replaced, and how, is what methods declare of themselves: the terms of the replacement, and where each of them
keeps its state. `units/device/stacked.py` has the two launches that a graph records.

Used by `backend`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from neoteny.methods.declaration import KernelState, RecordedStep, kernel_terms_of, recorded_step_of
from neoteny.methods.method import Method, State, hears_of_resets
from neoteny.stacking.stack import Stack
from neoteny.units.device.stacked import StackedReset, why_not
from neoteny.units.utilities import RANDOM, UTILITIES


class Replacements:
    """What one method of a stack replaces.

    Args:
        reset: the launches.
        count: from a number of updates to how many units are due at each of them, as `RecordedStep.ahead`.
    """

    def __init__(self, reset: StackedReset, count: Callable[[int], tuple[np.ndarray, int]]) -> None:
        self._reset, self._count = reset, count
        self.replace, self.rest = reset.replace, reset.rest

    def prepare(self, updates: int) -> None:
        """Count what is due at the next updates; each of them then calls `replace` once."""
        self._reset.fill(*self._count(updates))


def replacements_of(stack: Stack, number: int, updates: int) -> Replacements | str | None:
    """What a stack's method replaces inside the graph.

    Args:
        stack: what is trained.
        number: of the method that acts between replays.
        updates: to be prepared at once, at most.

    Returns:
        The replacements; None if the method replaces nothing; or, in words, why its units are replaced between two
        replays.
    """
    method, state = stack.methods[number], stack.chain.states[number]
    step, terms = recorded_step_of(method), kernel_terms_of(method)
    if not isinstance(step, RecordedStep) or step.between is None:
        return None
    why = _why_not(stack, method)
    if why or isinstance(terms, str) or terms.replacement is None or step.ahead is None:
        return f"units are replaced between two replays: {why or f'{type(method).__name__} is not covered'}"
    kept = [_kept(other, each) for other, each in stack.chain.pairs if other is not method]
    runs, ahead, replacement = stack.view.runs[0], step.ahead, terms.replacement
    threshold = np.broadcast_to(np.asarray(replacement.maturity_threshold, dtype=np.int64), (runs,)).tolist()
    reset = StackedReset(
        stack.view,
        state,
        threshold,
        bool(UTILITIES[replacement.utility] & RANDOM),
        replacement.compensate,
        [moments for each in kept for moments in each.moments],
        [each.copies for each in kept],
        updates,
    )
    return Replacements(reset, lambda updates: ahead(stack.view, state, updates))


def _kept(method: Method, state: State) -> KernelState:
    """Where a method keeps its state; of one that does not hear of resets, nowhere that matters."""
    return method.kernel_state(state) if hears_of_resets(method) else KernelState()


def _why_not(stack: Stack, replacing: Method) -> str:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    for method, state in stack.chain.pairs:
        if method is replacing or not hears_of_resets(method):
            continue
        if isinstance(why := kernel_terms_of(method), str):
            return why
        kept: Any = method.kernel_state(state)
        if kept.resets is not None or kept.groups or kept.units or kept.worth or kept.redrawn is not None:
            return f"{type(method).__name__} keeps more of a unit than numbers per weight"
    return why_not(stack.view)
