"""Chain: methods in order, each with its state; what an attachment and a stack have in common.

It calls the hooks, differentiates loss terms, passes news of resets on, and adds up what the methods did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from neoteny.layers.regions import ChosenUnits, Region
from neoteny.methods.method import BoundaryData, Method
from neoteny.methods.saved_state import describe_methods
from neoteny.methods.state import State, adopt, forget_parameters, move_nested, snapshot
from neoteny.units.view import LiveGroup, View

_EACH_UPDATE = ("observe", "penalty", "add_gradient", "transform_gradients", "step", "on_reset")
"""Hooks on the hot path: only methods that write one are asked."""


class Chain:
    """Methods at work on one view.

    Args:
        methods: in the order in which they act.
        view: the network or networks they act on.

    Raises:
        ValueError: two methods cannot be combined.
    """

    def __init__(self, methods: Sequence[Method], view: View) -> None:
        _check_combination(methods)
        self.methods = tuple(methods)
        self.view = view
        self.states: list[State] = [method.init(view) for method in methods]
        view.listeners.append(self)
        self.pairs = list(zip(self.methods, self.states, strict=True))
        self._with_hook = {
            hook: [(method, state) for method, state in self.pairs if _overrides(method, hook)] for hook in _EACH_UPDATE
        }

    def reads(self) -> list[str]:
        """Modules whose inputs some method asks for."""
        return list(dict.fromkeys(name for method in self.methods for name in method.reads(self.view)))

    def reads_gradients(self) -> list[str]:
        """Modules for whose inputs some method asks for the gradient."""
        return list(dict.fromkeys(name for method in self.methods for name in method.reads_gradients(self.view)))

    @torch.no_grad()
    def before_update(self) -> None:
        """Let methods read the gradients, add their loss terms, then change the gradients."""
        view = self.view
        for method in self.methods:
            if method.needs_loss and view.loss is None:
                raise ValueError(
                    f"{type(method).__name__} reads the training loss: call plastic.observe(loss) before "
                    "optimizer.step()."
                )
        for method, state in self._with_hook["observe"]:
            method.observe(view, state)
        for method, state in self._with_hook["penalty"]:
            with torch.enable_grad():
                term = method.penalty(view, state)
            if term is not None:
                _add_term(view, method, term)
        for method, state in self._with_hook["add_gradient"]:
            method.add_gradient(view, state)
        for method, state in self._with_hook["transform_gradients"]:
            method.transform_gradients(view, state)

    @torch.no_grad()
    def after_update(self) -> None:
        """Let every method act; the one that is the optimizer makes the update."""
        for method, state in self._with_hook["step"]:
            method.step(self.view, state)

    @torch.no_grad()
    def task_boundary(self, data: BoundaryData | None) -> None:
        """Tell the methods that a new task begins."""
        for method in self.methods:
            if method.needs_boundary_data and data is None:
                raise ValueError(
                    f"{type(method).__name__} needs data of the new task: pass task_boundary(data=...), an iterable "
                    "of (inputs, targets)."
                )
        for method, state in self.pairs:
            method.task_boundary(self.view, state, data)

    def on_reset(self, region: Region) -> None:
        """Tell every method that some elements of a parameter are new."""
        for method, state in self._with_hook["on_reset"]:
            method.on_reset(self.view, state, region)

    def clear_optimizer(self, region: Region) -> None:
        """Let the method that is the optimizer forget some elements of a parameter."""
        for method, state in self.pairs:
            if method.is_optimizer:
                method.on_reset(self.view, state, region)

    def on_units_reset(self, group: LiveGroup, chosen: ChosenUnits, by: object) -> None:
        """Tell every method but the one that did it that some units are new."""
        for method, state in self.pairs:
            if method is not by:
                method.on_units_reset(self.view, state, group, chosen)

    def counts(self) -> dict[str, Tensor]:
        """How many units of each group were replaced so far by all methods together, int64 (*R,)."""
        total: dict[str, Tensor] = {}
        for method, state in self.pairs:
            for name, count in method.counts(self.view, state).items():
                total[name] = total[name] + count if name in total else count
        return total

    def evaluation(self) -> dict[str, Tensor]:
        """The tensors to evaluate with that are not the trained ones, by name."""
        found: dict[str, Tensor] = {}
        for method, state in self.pairs:
            found.update(method.evaluation(self.view, state) or {})
        return found

    def describe(self) -> list[str]:
        """What `print` shows of the methods' states, with the method's name where there are several."""
        found = [(type(method).__name__, method.describe(self.view, state)) for method, state in self.pairs]
        texts = [(name, text) for name, text in found if text]
        return [f"{name}\n{text}" if len(texts) > 1 else text for name, text in texts]

    def forget(self, names: set[str]) -> None:
        """Drop what was kept for parameters that no longer exist."""
        for state in self.states:
            forget_parameters(state, names)

    def extend(self) -> None:
        """Follow a view whose groups changed: states of new units begin, those of units that are gone end."""
        for method, state in self.pairs:
            adopt(state, method.init(self.view))

    def move(self, device: torch.device) -> None:
        """Move every state to a device."""
        for state in self.states:
            move_nested(state, device)

    def saved(self) -> dict[str, Any]:
        """Names, hyperparameters and states, as plain values that no later step changes."""
        states = [snapshot(method.export(state)) for method, state in self.pairs]
        groups = {group.name: group.units for group in self.view.groups}
        return {"groups": groups, "methods": describe_methods(self.methods), "states": states}

    def rebuild(self, saved: Mapping[str, Any]) -> None:
        """Bring the network to the structure that `saved()` was taken of."""
        for method, theirs in zip(self.methods, saved["states"], strict=True):
            method.rebuild(self.view, theirs)

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Load the states of `saved()`."""
        for (method, state), theirs in zip(self.pairs, saved["states"], strict=True):
            method.restore(self.view, state, theirs)


def _overrides(method: Method, hook: str) -> bool:
    return getattr(type(method), hook) is not getattr(Method, hook)


def _add_term(view: View, method: Method, term: Tensor) -> None:
    """Add the gradient of a loss term (*R,) to the gradients of the parameters that have one."""
    if term.shape != torch.Size(view.runs):
        raise ValueError(
            f"{type(method).__name__}: penalty must return one number per run, of shape {view.runs}; got shape "
            f"{tuple(term.shape)}."
        )
    if not term.requires_grad:
        raise ValueError(
            f"{type(method).__name__}: penalty returned a number without a gradient; compute it from "
            "view.parameters, not under torch.no_grad()."
        )
    parameters = view.parameters
    found = torch.autograd.grad(term, list(parameters.values()), torch.ones_like(term), allow_unused=True)
    scale = view.gradient_scale()
    for name, share in zip(parameters, found, strict=True):
        gradient = view.gradient(name)
        if share is None or gradient is None:
            continue
        if gradient.is_sparse:
            raise TypeError(f"{name} has sparse gradients, but a loss term on all weights needs dense ones.")
        gradient.add_(share if isinstance(scale, float) and scale == 1.0 else share * scale)


def _check_combination(methods: Sequence[Method]) -> None:
    averaging = [type(method).__name__ for method in methods if method.averages_weights]
    if len(averaging) > 1:
        raise ValueError(
            f"{' and '.join(averaging)} both say which weights to evaluate with: list one of them, not both."
        )
    for method in methods:
        why = method.why_not_with([other for other in methods if other is not method])
        if why:
            raise ValueError(f"{type(method).__name__} cannot be combined with the other methods: {why}")
