"""Chain: methods in order, each with its state; what an attachment and a stack have in common.

It calls the hooks, differentiates loss terms, passes news of resets on, and adds up what the methods did.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from neoteny.foreign_code import called, is_users
from neoteny.layers.regions import ChosenUnits, Region
from neoteny.methods.guard import Guard
from neoteny.methods.method import BoundaryData, Method, hears_of_resets
from neoteny.methods.saved_state import describe_methods
from neoteny.methods.state import State, adopt, forget_parameters, move_nested, snapshot
from neoteny.text import nearest
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
        _check_step_count(methods, view)
        self.methods = tuple(methods)
        self.view = view
        self.broken: dict[int, str] = {}
        """Runs in which a user's method made a number that is not finite, and the hook that did; of stacks alone."""
        self._guards = {id(each): Guard(each, view, self.broken) for each in self.methods if is_users(each)}
        self.states: list[State] = [self._init(method) for method in methods]
        view.listeners.append(self)
        self.pairs = list(zip(self.methods, self.states, strict=True))
        self._with_hook = {
            hook: [
                (method, state, self._hook(method, hook)) for method, state in self.pairs if _overrides(method, hook)
            ]
            for hook in _EACH_UPDATE
        }
        self.acting = list(dict.fromkeys(type(method).__name__ for method, _, _ in self._with_hook["step"]))
        """The names of the methods that act after the update."""
        view.resets_are_private = sum(map(hears_of_resets, self.methods)) <= 1

    def needs_inputs(self) -> bool:
        """Whether some method reads the forward passes of an update."""
        return any(method.needs_inputs for method in self.methods)

    def reads(self) -> list[str]:
        """Modules whose inputs some method asks for."""
        return self._asked_for("reads")

    def reads_gradients(self) -> list[str]:
        """Modules for whose inputs some method asks for the gradient."""
        return self._asked_for("reads_gradients")

    def check_reads(self, modules: Collection[str]) -> None:
        """Refuse a method that asks for the inputs of a module that the network does not have."""
        for method in self.methods:
            for hook in ("reads", "reads_gradients"):
                for name in self._names(method, hook):
                    if name not in modules:
                        raise ValueError(
                            f"{type(method).__name__}.{hook} asks for the module {name!r}, which the network does not "
                            f"have.{nearest(name, modules)} It has {', '.join(filter(None, modules))}."
                        )

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
            if method.needs_inputs and not view.calls and _has_gradients(view):
                raise ValueError(
                    f"{type(method).__name__} reads the inputs of the network, but the network itself was not called "
                    "in a training pass: call model(inputs) in training mode, with gradients, before optimizer.step()."
                )
        self._each("observe")
        for method, state, penalty in self._with_hook["penalty"]:
            with called(f"in {type(method).__name__}.penalty"):
                with torch.enable_grad():
                    term = penalty(view, state)
                if term is not None:
                    _add_term(view, method, term)
                    if id(method) in self._guards:
                        self._guards[id(method)].see_penalty(term.detach())
        self._each("add_gradient")
        self._each("transform_gradients")

    @torch.no_grad()
    def accumulate(self) -> None:
        """Let methods that read activations add up what was recorded, which is then forgotten."""
        for method, state in self.pairs:
            _expect_nothing(method, "accumulate", self._call(method, "accumulate", self.view, state))

    @torch.no_grad()
    def after_update(self) -> None:
        """Let every method act; the one that is the optimizer makes the update."""
        self._each("step")

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
            _expect_nothing(method, "task_boundary", self._call(method, "task_boundary", self.view, state, data))

    def on_reset(self, region: Region) -> None:
        """Tell every method that some elements of a parameter are new."""
        self._each("on_reset", region)

    def clear_optimizer(self, region: Region) -> None:
        """Let the method that is the optimizer forget some elements of a parameter."""
        for method, state in self.pairs:
            if method.is_optimizer:
                method.on_reset(self.view, state, region)

    def restart_step_counts(self) -> None:
        """Let the method that is the optimizer count its updates from zero."""
        for method, state in self.pairs:
            if method.is_optimizer:
                method.restart_count(self.view, state)

    def on_units_reset(self, group: LiveGroup, chosen: ChosenUnits, by: object) -> None:
        """Tell every method but the one that did it that some units are new."""
        for method, state in self.pairs:
            if method is not by:
                _expect_nothing(
                    method, "on_units_reset", self._call(method, "on_units_reset", self.view, state, group, chosen)
                )

    def counts(self) -> dict[str, Tensor]:
        """How many units of each group were replaced so far by all methods together, int64 (*R,)."""
        total: dict[str, Tensor] = {}
        for method, state in self.pairs:
            for name, count in self._counts(method, state).items():
                total[name] = total[name] + count if name in total else count
        return total

    def evaluation(self) -> dict[str, Tensor]:
        """The tensors to evaluate with that are not the trained ones, by name."""
        found: dict[str, Tensor] = {}
        for method, state in self.pairs:
            given = self._call(method, "evaluation", self.view, state) or {}
            if not isinstance(given, Mapping) or not all(isinstance(each, Tensor) for each in given.values()):
                raise TypeError(
                    f"{type(method).__name__}.evaluation must return a dict of tensors by name, or None; got "
                    f"{type(given).__name__}."
                )
            if id(method) in self._guards:
                self._guards[id(method)].check_evaluation(given)
            found.update(given)
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
        for guard in self._guards.values():
            guard.rewritten(names)

    def extend(self) -> None:
        """Follow a view whose groups changed: states of new units begin, those of units that are gone end."""
        for method, state in self.pairs:
            adopt(state, self._init(method))

    def move(self, device: torch.device) -> None:
        """Move every state to a device."""
        for state in self.states:
            move_nested(state, device)

    def saved(self) -> dict[str, Any]:
        """Names, hyperparameters and states, as plain values that no later step changes."""
        states = [snapshot(self._call(method, "export", state)) for method, state in self.pairs]
        groups = {group.name: group.units for group in self.view.groups}
        return {"groups": groups, "methods": describe_methods(self.methods), "states": states}

    def rebuild(self, saved: Mapping[str, Any]) -> None:
        """Bring the network to the structure that `saved()` was taken of."""
        for method, theirs in zip(self.methods, saved["states"], strict=True):
            method.rebuild(self.view, theirs)

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Load the states of `saved()`."""
        for (method, state), theirs in zip(self.pairs, saved["states"], strict=True):
            self._call(method, "restore", self.view, state, theirs)

    def _init(self, method: Method) -> State:
        state = self._call(method, "init", self.view)
        if not isinstance(state, dict):
            raise TypeError(
                f"{type(method).__name__}.init must return the method's state, a dict; got {type(state).__name__}."
            )
        return state

    def _asked_for(self, hook: str) -> list[str]:
        return list(dict.fromkeys(name for method in self.methods for name in self._names(method, hook)))

    def _names(self, method: Method, hook: str) -> Sequence[str]:
        names = self._call(method, hook, self.view)
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"{type(method).__name__}.{hook} must return a list of names of modules; got {names!r}.")
        return names

    def _counts(self, method: Method, state: State) -> dict[str, Tensor]:
        counts = self._call(method, "counts", self.view, state)
        if isinstance(counts, dict) and all(
            isinstance(each, Tensor) and each.shape == torch.Size(self.view.runs) for each in counts.values()
        ):
            return counts
        raise TypeError(
            f"{type(method).__name__}.counts must return a dict of tensors of shape {self.view.runs}, one per group; "
            f"got {counts!r}."
        )

    def _hook(self, method: Method, hook: str) -> Callable[..., Any]:
        """A hook of a method, watched where the method is a user's."""
        act, guard = getattr(method, hook), self._guards.get(id(method))
        return act if guard is None else lambda *arguments: guard.call(hook, act, *arguments)

    def _call(self, method: Method, hook: str, *arguments: Any) -> Any:
        """What a hook returns that is not on the hot path; errors name it."""
        with called(f"in {type(method).__name__}.{hook}"):
            watched = hook in ("init", "task_boundary", "on_units_reset")
            return (self._hook(method, hook) if watched else getattr(method, hook))(*arguments)

    def _each(self, hook: str, *more: Any) -> None:
        """Call a hook of every method that writes it; errors name the method."""
        method = None
        try:
            for method, state, act in self._with_hook[hook]:
                returned = act(self.view, state, *more)
                if returned is not None:
                    _expect_nothing(method, hook, returned)
        except Exception as error:
            error.add_note(f"in {type(method).__name__}.{hook}")
            raise


def _expect_nothing(method: Method, hook: str, returned: Any) -> None:
    if returned is not None:
        raise TypeError(
            f"{type(method).__name__}.{hook} must return None: it changes tensors and state in place, and what it "
            f"returns would be lost; got {type(returned).__name__}."
        )


def _overrides(method: Method, hook: str) -> bool:
    return getattr(type(method), hook) is not getattr(Method, hook)


def _has_gradients(view: View) -> bool:
    return any(view.gradient(name) is not None for name in view.parameters)


def _add_term(view: View, method: Method, term: Tensor) -> None:
    """Add the gradient of a loss term (*R,) to the gradients of the parameters that have one."""
    if not isinstance(term, Tensor):
        raise TypeError(
            f"{type(method).__name__}: penalty must return a tensor of shape {view.runs}, one number per run, or None; "
            f"got {type(term).__name__}."
        )
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
    wrapping = [type(method).__name__ for method in methods if method.wraps_optimizer]
    if len(wrapping) > 1:
        raise ValueError(
            f"{' and '.join(wrapping)} both decide how much of the optimizer's update is made: list one of them."
        )
    for method in methods:
        why = method.why_not_with([other for other in methods if other is not method])
        if why:
            raise ValueError(f"{type(method).__name__} cannot be combined with the other methods: {why}")


def _check_step_count(methods: Sequence[Method], view: View) -> None:
    """Refuse a method that acts on step counts where no optimizer has one."""
    wanting = [type(method).__name__ for method in methods if method.needs_step_count]
    if not wanting:
        return
    optimizers = [method for method in methods if method.is_optimizer]
    missing = ", ".join(type(each).__name__ for each in optimizers if not each.counts_steps)
    if without := missing if optimizers else view.without_step_count():
        raise ValueError(
            f"{wanting[0]} acts on the step count of Adam, and {without} has none: use Adam, AdamW or another "
            "optimizer of that kind."
        )
