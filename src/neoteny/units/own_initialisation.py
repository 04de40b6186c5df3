"""A model drawn again by its own code: a copy on which the initialisation of the model's classes has run.

Published models say how they are initialised in a method (`_init_weights` of transformers, `init_weights` of timm,
`reset_parameters` of torch). It is called on a copy; the model and torch's random state stay as they are.
`units/laws.py` measures the laws of trained layers on the copy, and a diagnosis compares with it.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from neoteny.layers.parametrized import computed_weight

_METHODS = ("init_weights", "initialize_weights", "_initialize_weights", "_init_weights", "reset_parameters")
_SEED = 0


def own_method(module: nn.Module) -> str | None:
    """The name of the method by which a module draws its own weights and its children's; None for a plain layer."""
    if callable(getattr(module, "_init_weights", None)) and callable(getattr(module, "initialize_weights", None)):
        return "initialize_weights"  # transformers: it calls `_init_weights` of every part
    if next(module.children(), None) is None:
        return None
    names = (*_METHODS, "_reset_parameters")
    return next((name for name in names if callable(getattr(module, name, None))), None)


def own_methods(model: nn.Module) -> dict[str, str]:
    """Every module with a way of its own to draw weights: its name and the method's, the model itself first.

    Attention layers of torch draw no weight of a hidden unit and are left out.
    """
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        method = own_method(module)
        if method is not None and not isinstance(module, nn.MultiheadAttention):
            found[name] = method
    return found


def redraw(model: nn.Module, called: dict[str, str] | None = None) -> None:
    """Draw all weights of a model again, in place, by the methods of its modules.

    Parts come before the whole, as in a constructor. A method that needs unknown arguments, or fails, is left out.

    Args:
        model: the model; torch's random state should be set before.
        called: is given the modules whose own way of drawing (see `own_methods`) was called.
    """
    for each in (*model.modules(), *model.parameters()):
        vars(each).pop("_is_hf_initialized", None)  # transformers would take the weights for loaded ones
    for name, module in reversed(list(model.named_modules())):
        own = own_method(module)
        plain = next((each for each in ("reset_parameters", "_reset_parameters") if hasattr(module, each)), None)
        if own is not None and _call(module, getattr(module, own)):
            if called is not None and not isinstance(module, nn.MultiheadAttention):
                called[name] = own
        elif plain is not None and plain != own:
            _call(module, getattr(module, plain))
        _draw_computed(module)
    for module in model.modules():  # last: the model's own way of drawing takes peft's layers for its own
        if callable(reset := getattr(module, "reset_lora_parameters", None)):
            for adapter in list(getattr(module, "lora_A", ())):
                with contextlib.suppress(Exception):
                    reset(adapter, True)


def _draw_computed(module: nn.Module) -> None:
    """Draw a layer's computed weight (weight norm) as torch draws a plain one: `reset_parameters` does not reach it."""
    computed = computed_weight(module) if isinstance(module, (nn.Linear, _ConvNd)) else None
    if computed is not None:
        weight = computed.read()
        nn.init.kaiming_uniform_(weight, a=5.0**0.5)
        computed.write(weight, torch.ones_like(weight, dtype=torch.bool))


def redrawn_copy(model: nn.Module) -> tuple[nn.Module, str] | None:
    """A copy of the model drawn by its own code, and that code's name; None if it has none, or cannot be copied."""
    if not own_methods(model):
        return None
    try:
        twin = copy.deepcopy(model)
    except Exception:  # a model that cannot be copied is used as one without a way of its own
        return None
    called: dict[str, str] = {}
    with seeded(model), torch.no_grad():
        redraw(twin, called)
    if not called:
        return None
    name, method = list(called.items())[-1]  # the outermost one
    return twin, f"{type(model.get_submodule(name)).__name__}.{method}"


@contextlib.contextmanager
def seeded(model: nn.Module) -> Iterator[None]:
    """A fixed random state inside, the caller's afterwards."""
    devices = {parameter.device.index or 0 for parameter in model.parameters() if parameter.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices)):
        torch.manual_seed(_SEED)
        yield


def _call(module: nn.Module, method: Callable[..., Any]) -> bool:
    """Call a method without arguments, or apply one that takes a module; False if neither can be done."""
    try:
        required = [
            parameter
            for parameter in inspect.signature(method).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        if not required:
            method()
        elif len(required) == 1:
            module.apply(method)
        else:
            return False
    except Exception:  # it may need what is not known here
        return False
    return True
