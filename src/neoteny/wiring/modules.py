"""The user's modules: the original behind torch's wrappers, and a module's first name in its model."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from neoteny.text import nearest

_OF_PEFT = {"BaseTunerLayer", "AuxiliaryTrainingWrapper", "ModulesToSaveWrapper"}


def unwrap(model: nn.Module) -> nn.Module:
    """The module itself, without torch's wrappers; raises if it is scripted or has no shapes yet."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    model = wrapped(model)[-1]
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise TypeError(f"{name or 'the model'} is a scripted module, which cannot be traced: pass the original.")
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ValueError(f"{name} has no shape yet: run the model once on a batch before tracing it.")
    return model


def wrapped(model: nn.Module) -> list[nn.Module]:
    """The model and what is inside it, one wrapper after the other; the module itself is last.

    Looked through are the wrappers of torch.compile and of DistributedDataParallel, around each other in any order.
    """
    found = [model]
    while True:
        inside = model._modules.get("_orig_mod")
        if isinstance(model, DistributedDataParallel):
            inside = model.module
        if inside is None:
            return found
        model = inside
        found.append(model)


def first_name(model: nn.Module, name: str, where: str) -> str:
    """A module's first name in the model, or an error that suggests the nearest."""
    modules = dict(model.named_modules(remove_duplicate=False))
    if name not in modules:
        hint = nearest(name, modules) or f" It has {', '.join(filter(None, modules))}."
        raise ValueError(f"{where}: the model has no module named {name!r}.{hint}")
    first = {id(module): known for known, module in reversed(modules.items())}
    return first[id(modules[name])]


def in_unused_adapter(model: nn.Module, name: str) -> bool:
    """Whether a layer belongs to an adapter of peft that is not in use, or is what an adapter stands in for.

    Such a layer is frozen and never called; it runs when another adapter is chosen, or none.
    """
    if any(parameter.requires_grad for parameter in model.get_submodule(name).parameters()):
        return False
    path = name
    while path:
        path = path.rpartition(".")[0]
        if _OF_PEFT & {kind.__name__ for kind in type(model.get_submodule(path)).__mro__}:
            return True
    return False
