"""run_again(): a forward pass of a user's module beside its training, which leaves no trace in it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from neoteny.attachment.reading import first_argument
from neoteny.units.calls import Call, Pass


def run_again(model: nn.Module, call: Call, tensors: Mapping[str, Tensor], reads: Sequence[str]) -> Pass:
    """Make a forward pass of a module in evaluation mode.

    Buffers are copies, and random states and modes are put back. Hooks that read training passes, those of an
    attachment and of a monitor, do not count passes in evaluation mode.

    Args:
        model: the module.
        call: its arguments.
        tensors: parameters and buffers to use instead of its own, by name.
        reads: modules whose inputs to return.
    """
    found: dict[str, list[Tensor]] = {name: [] for name in reads}
    buffers = {name: value.detach().clone() for name, value in model.named_buffers()}
    handles = [
        model.get_submodule(name).register_forward_pre_hook(_keep(kept), with_kwargs=True)
        for name, kept in found.items()
    ]
    try:
        with _at_rest(model), call.again():
            outputs = functional_call(model, {**buffers, **tensors}, call.arguments, dict(call.keywords))
    finally:
        for handle in handles:
            handle.remove()
    return Pass(outputs, found)


def _keep(kept: list[Tensor]) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kept.append(first_argument(args, kwargs))

    return hook


@contextlib.contextmanager
def _at_rest(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, random states that come back, and compiled code run as it was written."""
    # The flags alone: some modules rewrite their weights when `eval()` is called.
    training = [module for module in model.modules() if module.training]
    devices = {value.device for value in model.parameters() if value.device.type == "cuda"}
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=list(devices)))
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and importing the compiler takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for module in training:
            module.training = False
        try:
            yield
        finally:
            for module in training:
                module.training = True
