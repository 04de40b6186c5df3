"""torch.compile, CUDA graphs and an attachment: what was compiled too early, and what must not be.

Inside a compiled function a tick runs as it is, between two compiled parts. A CUDA graph holds a tick only where it was
asked for. Before this: `module_view`; after it: `hooks`, `attachment`.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo as run_eagerly  # torch.compiler.disable would import the compiler here

from neoteny.attachment.module_view import ModuleView
from neoteny.methods.declaration import RecordedStep, recorded_step_of
from neoteny.methods.method import Method, hears_of_resets
from neoteny.units.device_tick import NOT_READY, is_captured, is_ready
from neoteny.wiring.modules import wrapped

__all__ = [
    "NOT_OVER_RANKS",
    "check_capturable",
    "refuse_called",
    "refuse_capture",
    "run_eagerly",
    "warn_of_graphs",
]

NOT_OVER_RANKS = (
    "capturable=True is for one device and accumulate='inputs': sums over ranks or passes need the host. Leave "
    "capturable out."
)


def check_capturable(
    capturable: bool, model: nn.Module, methods: Sequence[Method], accumulate: str, process_group: Any
) -> None:
    """Refuse what cannot be part of a captured update, where that was asked for."""
    if not isinstance(capturable, bool):
        raise TypeError(f"capturable must be True or False; got {capturable!r}.")
    if not capturable:
        return
    parallel = any(type(each).__name__ == "DistributedDataParallel" for each in wrapped(model))
    if accumulate != "inputs" or process_group is not None or parallel:
        raise ValueError(NOT_OVER_RANKS)
    for method in methods:
        if why := _why_not_captured(method, capturable=True):
            raise ValueError(
                f"capturable=True is not for {type(method).__name__}: {why}. L2 and ContinualBackprop can be captured; "
                "leave the other out, or leave capturable out."
            )
    hearing = [type(method).__name__ for method in methods if hears_of_resets(method)]
    if len(hearing) > 1:
        raise ValueError(
            f"capturable=True is for one method that acts on units or hears of new ones; got {', '.join(hearing)}: a "
            "captured tick tells no other method of the units that it replaces. Keep one of them, or leave capturable "
            "out."
        )


def refuse_capture(view: ModuleView, methods: Sequence[Method], forget: Callable[[], None]) -> None:
    """Refuse to be captured in a CUDA graph without having been told: the graph would repeat one moment's decisions.

    Args:
        view, methods: of the attachment.
        forget: drops what was recorded; of a capture that fails, the numbers are never computed.

    Raises:
        RuntimeError: it was not asked for, or the tables that a captured tick reads are not there.
    """
    if view.device().type != "cuda" or not torch.cuda.is_current_stream_capturing():
        return
    for method in methods:
        if why := _why_not_captured(method, view.capturable):
            forget()
            raise RuntimeError(
                f"An update with {type(method).__name__} is being captured in a CUDA graph, but {why}, so every replay "
                "would repeat this one. Pass capturable=True to neoteny.attach, where the method allows it; else end "
                "the capture before optimizer.step()."
            )
    if any(_replaces_units(method) for method in methods) and not is_ready(view):
        forget()
        raise RuntimeError(NOT_READY)


def warn_of_graphs(view: ModuleView) -> None:
    """Warn that a captured tick is not taken out of its graph when an attachment is detached."""
    if is_captured(view):
        warnings.warn(
            "A CUDA graph with a tick of the detached attachment inside goes on replacing units: capture again. Keep "
            "the attachment as long as the graph is replayed: it holds what the graph reads.",
            RuntimeWarning,
            stacklevel=3,
        )


def _why_not_captured(method: Method, capturable: bool) -> str:
    step = recorded_step_of(method)
    if isinstance(step, str):
        return step
    if step.counts:
        return "it counts its updates on the host"
    return "when units are due is counted on the host" if _replaces_units(method) and not capturable else ""


def _replaces_units(method: Method) -> bool:
    step = recorded_step_of(method)
    return isinstance(step, RecordedStep) and step.between is not None


def refuse_called(model: nn.Module) -> None:
    """Refuse a model some of whose modules were compiled and called: that code would not call hooks added now.

    Compiled code is shared between modules of the same structure, so that of another instance counts too.

    Raises:
        ValueError: with the line to change.
    """
    codes = _compiled_codes()
    if not codes:
        return
    for wrapper in (*model.modules(), *_wrappers_of(model)):
        entry = wrapper._compiled_call_impl or (
            wrapper.__dict__["forward"] if "_orig_mod" in wrapper._modules else None
        )
        if entry is None:
            continue
        called = [getattr(entry, "_torchdynamo_orig_callable", None), *(each.forward for each in wrapper.modules())]
        if any(getattr(function, "__code__", None) in codes for function in called):
            inside = set(wrapper.modules())
            name = next((name for name, module in model.named_modules() if module in inside), "")
            what = f"The compiled module {name!r}" if name else "The compiled model"
            raise ValueError(
                f"{what} (or another of the same code) was called before attach, and compiled code ignores hooks that "
                "are added later. Call neoteny.attach(...) before the first call, or put torch.compiler.reset() on the "
                "line before attach."
            )


def _compiled_codes() -> set[CodeType]:
    """The functions of which torch.compile holds compiled code; none where that cannot be told: the first tick will."""
    if "torch._dynamo" not in sys.modules:
        return set()
    try:
        from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
        from torch._dynamo.convert_frame import input_codes

        seen = [reference() for reference in input_codes.seen]
    except (ImportError, AttributeError, TypeError):
        return set()
    return {code for code in seen if code is not None and _debug_get_cache_entry_list(code)}


def _wrappers_of(model: nn.Module) -> list[nn.Module]:
    """What torch.compile returned for modules of this model, and is still in use."""
    from torch._dynamo.eval_frame import OptimizedModule

    known = {id(module) for module in model.modules()}
    found = [each for each in gc.get_objects() if issubclass(type(each), OptimizedModule)]
    return [each for each in found if id(each._modules.get("_orig_mod")) in known]
