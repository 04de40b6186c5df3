"""Guard: what a user's own method may not do in a hook, found where it does it.

The package's methods are tested; a user's is looked at after every call of a hook. It must return what the hook
returns, keep the shapes and types of parameters and gradients, and in a stack draw from no global generator. Where it
makes numbers that are not finite, the run diverges, and the guard remembers whose hook it was.

Before this: the methods; after it: `chain`, which calls the hooks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from neoteny.foreign_code import refuse_draws, torch_state
from neoteny.methods.method import Method
from neoteny.units.view import View

Shapes = dict[str, tuple[Tensor, torch.Size, torch.dtype]]
BEFORE_UPDATE = ("observe", "add_gradient", "transform_gradients")


class Guard:
    """Watches the hooks of one method.

    Args:
        method: a user's.
        view: what it acts on.
        broken: run -> the hook that first made one of its numbers not finite; shared by all guards of a chain.
    """

    def __init__(self, method: Method, view: View, broken: dict[int, str]) -> None:
        self._method, self._view, self._broken = method, view, broken
        self._rewritten: set[str] = set()
        # A stack reproduces its runs. On a GPU every look at a number would wait for the device.
        self._in_stack = bool(view.runs)
        self._looks = self._in_stack and not view.seeds.is_cuda

    def call(self, hook: str, act: Callable[..., Any], *arguments: Any) -> Any:
        """What a hook returns, after a look at what it did."""
        if self._view.seeds.is_cuda and torch.cuda.is_current_stream_capturing():
            return act(*arguments)  # while a CUDA graph is recorded, no generator may be looked at
        name = f"{type(self._method).__name__}.{hook}"
        self._rewritten.clear()
        drawn = {"torch's global generator": self._drawn()}
        if hook == "init":
            found = act(*arguments)
        else:
            shapes, gradients = self._shapes(), hook in BEFORE_UPDATE
            finite = self._looks and self._all_finite(gradients)
            found = act(*arguments)
            self._check_shapes(name, shapes)
            if gradients:
                self._check_gradients(name)
            if finite and not self._all_finite(gradients):
                self._remember(name, gradients)
        if self._in_stack and not self._rewritten:  # the layers of torch draw their weights when they are made
            refuse_draws(name, drawn, {"torch's global generator": self._drawn()})
        return found

    def rewritten(self, names: set[str]) -> None:
        """The method put another module in the place of the one with these parameters."""
        self._rewritten |= names

    def check_evaluation(self, tensors: Mapping[str, Tensor]) -> None:
        """Refuse weights to evaluate with that no parameter or buffer has the shape of."""
        hook = f"{type(self._method).__name__}.evaluation"
        for name, value in tensors.items():
            try:
                shape = self._view.tensor(name).shape
            except KeyError:
                raise ValueError(f"{hook} gives weights for {name!r}, which the network does not have.") from None
            if value.shape != shape:
                raise ValueError(f"{hook} must give {name} the shape {tuple(shape)}; got {tuple(value.shape)}.")

    def see_penalty(self, term: Tensor) -> None:
        """Remember the runs whose loss term is not finite, while their loss is."""
        if not self._looks or bool(term.isfinite().all()):
            return
        wrong = ~term.isfinite()
        if self._view.loss is not None:
            wrong &= self._view.loss.isfinite()
        for run in wrong.nonzero().flatten().tolist():
            self._broken.setdefault(run, f"{type(self._method).__name__}.penalty")

    def _drawn(self) -> bytes:
        return torch_state(self._view.seeds.device) if self._in_stack else b""

    def _shapes(self) -> Shapes:
        return {name: (value, value.shape, value.dtype) for name, value in self._view.parameters.items()}

    def _check_shapes(self, hook: str, before: Shapes) -> None:
        for name, value in self._view.parameters.items():
            if name in self._rewritten or name not in before:
                continue
            tensor, shape, dtype = before[name]
            if value.shape != shape or value.dtype != dtype:
                raise ValueError(
                    f"{hook} changed {name} from {_describe(shape, dtype)} to {_describe(value.shape, value.dtype)}. A "
                    "method changes parameters in place and keeps their shapes; view.replace_module rewrites a layer."
                )
            if self._in_stack and (value is not tensor or self._view.tensor(name) is not value):
                raise ValueError(
                    f"{hook} put another tensor in the place of {name}, which neither the optimizer nor the other "
                    f"methods would see. Change it in place, as with view.parameters[{name!r}].copy_(...)."
                )

    def _check_gradients(self, hook: str) -> None:
        for name, value in self._view.parameters.items():
            gradient = self._view.gradient(name)
            if gradient is None:
                continue
            if not isinstance(gradient, Tensor) or gradient.shape != value.shape or gradient.dtype != value.dtype:
                came = (
                    _describe(gradient.shape, gradient.dtype) if isinstance(gradient, Tensor) else repr(gradient)[:60]
                )
                raise ValueError(
                    f"{hook} left {name} with a gradient of {came}; expected {_describe(value.shape, value.dtype)}."
                )

    def _tensors(self, gradients: bool) -> list[Tensor]:
        parameters = self._view.parameters
        found = [self._view.gradient(name) for name in parameters] if gradients else list(parameters.values())
        return [each for each in found if each is not None]

    def _all_finite(self, gradients: bool) -> bool:
        """Whether no number is nan or infinite; one sum per tensor tells."""
        return all(math.isfinite(float(tensor.detach().sum())) for tensor in self._tensors(gradients))

    def _remember(self, hook: str, gradients: bool) -> None:
        wrong = [~tensor.detach().isfinite().flatten(1).all(-1) for tensor in self._tensors(gradients)]
        for run in torch.stack(wrong).any(0).nonzero().flatten().tolist():
            self._broken.setdefault(run, hook)


def _describe(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"shape {tuple(shape)} and {str(dtype).removeprefix('torch.')}"
