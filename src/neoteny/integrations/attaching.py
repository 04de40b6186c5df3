"""Attaching: what the callbacks of all frameworks share.

A framework makes model and optimizers itself, calls the model with what its data gives, and may do so several times
(a second fit, a resumed run). `Attaching` waits for the first training pass, traces the model with that very call, and
hands the state on from one attachment to the next.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from neoteny.attachment.attachment import Attachment, attach
from neoteny.attachment.checks import trains
from neoteny.methods.method import Method
from neoteny.wiring.sandbox import as_example


class Attaching:
    """Methods that are attached when a framework begins to train, and detached when it ends.

    Args:
        methods: as for `neoteny.attach`.
        example: a batch the model accepts; without it, the first training pass is the example.
        options: the other options of `neoteny.attach` (seed, leave_out, init, ...).
        hint: what to do if the model is trained without ever being called, in the framework's words.
    """

    def __init__(self, methods: Sequence[Method], example: Any, options: Mapping[str, Any], hint: str = "") -> None:
        for name in ("auto", "trained"):
            if name in options:
                raise TypeError(f"{name} is chosen by the callback itself: leave it out.")
        if not methods:
            raise ValueError("expected at least one method, e.g. neoteny.ContinualBackprop(replacement_rate=1e-4).")
        self.methods = tuple(methods)
        self.plastic: Attachment | None = None
        self._example = example
        self._options = dict(options)
        self._hint = hint
        self._state: Mapping[str, Any] | None = None
        self._of: weakref.ref[nn.Module] | None = None
        self._replaced: dict[str, int] = {}
        self._waiting: list[Any] = []

    @property
    def replaced(self) -> dict[str, int]:
        """How many units of each group were replaced so far; empty before the first training pass."""
        return dict(self._replaced) if self.plastic is None else self.plastic.replaced

    def start(self, model: nn.Module, optimizers: Sequence[Optimizer], example: Any = None) -> None:
        """Attach to the optimizers that train it: now if there is an example, else at its first training pass."""
        optimizers = [each for each in optimizers if trains(each, model)] or optimizers
        example = self._example if example is None else example
        self.stop()
        if self._of is not None and self._of() is not model:
            self._state = None  # the state was another model's
        self._of = weakref.ref(model)
        if example is not None:
            self._attach(model, optimizers, example)
            return

        def first_call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            trained = any(parameter.requires_grad for parameter in module.parameters())  # else another part's turn
            if module.training and torch.is_grad_enabled() and trained:
                self._stop_waiting()
                self._attach(model, optimizers, as_example(model, args, kwargs))

        def step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            raise RuntimeError(
                f"The optimizer made an update, but {type(model).__name__} was not called in training before it, so "
                f"that its hidden units are not known. Pass example=..., a batch that it accepts. {self._hint}".strip()
            )

        self._waiting = [
            model.register_forward_pre_hook(first_call, with_kwargs=True, prepend=True),
            *(optimizer.register_step_post_hook(step) for optimizer in optimizers),
        ]

    def stop(self) -> None:
        """Detach; the state is kept for the next `start` on the same model."""
        self._stop_waiting()
        if self.plastic is not None:
            self._state, self._replaced = self.plastic.state_dict(), self.plastic.replaced
            self.plastic.detach()
            self.plastic = None

    def state_dict(self) -> dict[str, Any]:
        """The state of the attachment, or what it is going to begin with; empty if there is neither."""
        state = self._state if self.plastic is None else self.plastic.state_dict()
        return dict(state or {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state, at once or when the model is attached."""
        if not state:
            return
        if self.plastic is None:
            self._state, self._of = state, None
        else:
            self.plastic.load_state_dict(state)

    def _attach(self, model: nn.Module, optimizers: Sequence[Optimizer], example: Any) -> None:
        state, options = self._state, self._options
        if state is not None and options.get("seed") is None:  # a draw would shift what the framework has restored
            options = {**options, "seed": state.get("seed")}
        kind = next((parameter.device.type for parameter in model.parameters()), "cpu")
        with torch.autocast(kind, enabled=False):  # a first training pass may run under one
            made = attach(
                model,
                list(optimizers),
                *self.methods,
                example=example,
                auto=True,
                trained=state is not None,
                **options,
            )
        if state is not None:
            try:
                made.load_state_dict(state)
            except BaseException:
                made.detach()
                raise
        self.plastic, self._state = made, None

    def _stop_waiting(self) -> None:
        for handle in self._waiting:
            handle.remove()
        self._waiting = []

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "plastic": None, "_state": self.state_dict() or None, "_of": None, "_waiting": []}
