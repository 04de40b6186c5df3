"""Hooks on modules that keep what training passes give them until the next tick.

`attachment/hooks.py` puts them on the modules that methods read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from neoteny.layers.recurrent import sequence
from neoteny.units.calls import Call, autocast_of


def first_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The values that a call gives a module; of a packed sequence, those of all its steps."""
    return sequence(args[0] if args else next(iter(kwargs.values())))


class ReadingHook:
    """What hooks that read share: whether a pass counts."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model  # its mode counts: a norm inside may be kept in eval mode for good
        self.recorded_in_forward = False
        self.paused = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Inert:
        return Inert()

    def __reduce__(self) -> tuple[type[Inert], tuple[()]]:
        return Inert, ()

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """What the module is given, if it is not empty and this is a training pass that has not been read yet."""
        if self.paused or not (self.model.training and torch.is_grad_enabled()):
            return None
        value = first_argument(args, kwargs)
        if value.numel() == 0:
            return None
        if not torch.compiler.is_compiling():
            # Activation checkpointing runs the forward again inside the backward pass. The non-reentrant kind was
            # recorded in the forward pass already; the reentrant kind runs that one without gradients.
            inside_backward = torch._C._current_graph_task_id() != -1
            if inside_backward and self.recorded_in_forward:
                return None
            self.recorded_in_forward = self.recorded_in_forward or not inside_backward
        return value


class InputHook(ReadingHook):
    """Forward pre-hook that keeps the module's first input, its gradient, or both."""

    def __init__(self, model: nn.Module, kept: list[Tensor] | None, gradients: list[Tensor] | None) -> None:
        super().__init__(model)
        self.kept = kept
        self.gradients = gradients

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        value = self.read(args, kwargs)
        if value is None:
            return
        if self.kept is not None:
            self.kept.append(value.detach())
        if self.gradients is not None:
            place = torch.zeros((), dtype=value.dtype, device=value.device).expand_as(value)
            self.gradients.append(place)
            if value.requires_grad:
                value.register_hook(GradientHook(self.gradients, place))


class GradientHook:
    """Backward hook of one recorded input: puts its gradient where the forward pass kept a place for it.

    Calls of a module are differentiated in the opposite order, and a pass may be differentiated twice or never. With a
    place per call, gradients are in the order of the inputs: their sum over all backward passes, or zeros.
    """

    def __init__(self, gradients: list[Tensor], place: Tensor) -> None:
        self._gradients = gradients
        self._place = place
        self._is_empty = True

    def __call__(self, gradient: Tensor) -> None:
        for number, each in enumerate(self._gradients):  # nowhere, if the pass was forgotten since
            if each is self._place:
                self._place = gradient if self._is_empty else each + gradient
                self._gradients[number] = self._place
                self._is_empty = False
                return


class NetworkHook(ReadingHook):
    """Forward pre-hook of the whole model that keeps how it was called."""

    def __init__(self, model: nn.Module, kept: list[Call]) -> None:
        super().__init__(model)
        self.kept = kept

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.paused or not (self.model.training and torch.is_grad_enabled()):
            return
        autocast = autocast_of((*args, *kwargs.values()))
        self.kept.append(Call(tuple(map(_detached, args)), {key: _detached(kwargs[key]) for key in kwargs}, autocast))


class CallHook(ReadingHook):
    """Forward pre-hook that notes that a module ran in a training pass."""

    called = False

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not self.paused and self.model.training and torch.is_grad_enabled():
            self.called = True


class PassHook(ReadingHook):
    """Forward pre-hook of the whole model that says when a training pass begins; compiled code does not say it."""

    def __init__(self, model: nn.Module, begins: Callable[[], None]) -> None:
        super().__init__(model)
        self._begins = begins

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling() or self.paused or not (self.model.training and torch.is_grad_enabled()):
            return
        if torch._C._current_graph_task_id() == -1:  # not one that activation checkpointing repeats
            self._begins()


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


class Inert:
    """What a hook becomes in a copied or pickled model: nobody ticks there, so it must not keep anything."""

    def __call__(self, *args: Any) -> None:
        return
