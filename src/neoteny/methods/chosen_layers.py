"""Which layers a method acts on: a setting that is "last", "all", or a sequence of names of modules."""

from __future__ import annotations

from collections.abc import Sequence
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


def chosen_modules(view: View, method: Method, layers: str | tuple[str, ...]) -> tuple[str, ...]:
    """The names of the chosen modules; "" is the whole network.

    Raises:
        ValueError: the network has no such module, or which layer is the last cannot be told.
    """
    if layers == "all":
        return ("",)
    if layers == "last":
        return (view.output_layer(),)
    known = dict(view.structure.named_modules())
    for name in layers:
        if name not in known:
            raise ValueError(
                f"{type(method).__name__}: the network has no module {name!r}.{nearest(name, known)} It has "
                f"{', '.join(filter(None, known))}."
            )
    return tuple(layers)


def belongs(name: str, modules: Sequence[str]) -> bool:
    """Whether a parameter, buffer or module lies in one of the modules."""
    return any(not module or f"{name}.".startswith(f"{module}.") for module in modules)
