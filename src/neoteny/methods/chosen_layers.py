"""Which layers a method acts on: a setting that is "last", "all", or a sequence of names of modules.

A network without any is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from neoteny.methods.method import Method
from neoteny.text import nearest
from neoteny.units.view import View

CHOICES = ("last", "all")


def check_layers(method: Method, name: str, choices: Sequence[str] = CHOICES) -> None:
    """Refuse a value that is neither one of the words nor a sequence of names; turn a sequence into a tuple."""
    value: Any = getattr(method, name)
    if isinstance(value, list):
        value = tuple(value)
        object.__setattr__(method, name, value)
    names = isinstance(value, tuple) and len(value) > 0 and all(isinstance(each, str) for each in value)
    if names or (isinstance(value, str) and value in choices):
        return
    words = " or ".join(repr(choice) for choice in choices)
    hint = f" One layer is {(value,)!r}." if isinstance(value, str) else ""
    raise ValueError(
        f"{type(method).__name__}: {name} must be {words}, or a tuple of names of modules; got {value!r}.{hint}"
    )


def refuse_without(method: Method, acts: Iterable[bool], on: str) -> None:
    """Refuse a network in which the method would never do anything.

    Args:
        method: which.
        acts: for each layer of the network, whether the method acts on it.
        on: what it acts on, in words.
    """
    if not any(acts):
        raise ValueError(
            f"{type(method).__name__} acts on {on}, and the network has none, so it would do nothing: leave it out, or "
            "take a method that acts on all parameters, such as neoteny.L2Init."
        )


def chosen_modules(view: View, method: Method, layers: str | tuple[str, ...]) -> tuple[str, ...]:
    """The names of the chosen modules; "" is the whole network.

    Raises:
        ValueError: the network has no such module, which layer is the last cannot be told, or a chosen layer shares a
            parameter with one that is not chosen.
    """
    if layers == "all":
        return ("",)
    chosen = (view.output_layer(),) if layers == "last" else tuple(layers)
    known = dict(view.structure.named_modules())
    for name in chosen:
        if name not in known:
            raise ValueError(
                f"{type(method).__name__}: the network has no module {name!r}.{nearest(name, known)} It has "
                f"{', '.join(filter(None, known))}."
            )
    _refuse_shared(view, method, chosen)
    return chosen


def _refuse_shared(view: View, method: Method, chosen: tuple[str, ...]) -> None:
    """Refuse layers that hold a parameter under its second name: it counts under the first, so nothing would happen."""
    first = {id(parameter): name for name, parameter in view.structure.named_parameters()}
    for name, parameter in view.structure.named_parameters(remove_duplicate=False):
        elsewhere = first[id(parameter)]
        if belongs(name, chosen) and not belongs(elsewhere, chosen):
            raise ValueError(
                f"{type(method).__name__}: {name} is the same parameter as {elsewhere}, which is not among the chosen "
                "layers: to change the one would change the other. Give the layer a weight of its own, or choose "
                "layers that hold both."
            )


def belongs(name: str, modules: Sequence[str]) -> bool:
    """Whether a parameter, buffer or module lies in one of the modules."""
    return any(not module or f"{name}.".startswith(f"{module}.") for module in modules)
