"""Checks of what an experiment file fills in: what was expected, what came.

Before this: the user's file; after it: `sweep`, whose descriptions are checked when they are made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from neoteny.text import check_whole, nearest

if TYPE_CHECKING:
    from neoteny.methods.method import Method
    from neoteny.problems.problem import Problem

LOSSES = ("mse", "cross_entropy", "token_cross_entropy")
PERFORMANCES = ("error", "loss", "accuracy", "return")


def check_kind(where: str, name: str, value: object, kind: type, example: str) -> None:
    """Raise unless a value is an instance of a class; a class in the place of its instance gets a hint."""
    if isinstance(value, kind):
        return
    hint = f" Did you mean {value.__name__}(...)?" if isinstance(value, type) and issubclass(value, kind) else ""
    raise TypeError(f"{where}: {name} must be a {kind.__name__}, for example {example}; got {shown(value)}.{hint}")


def check_text(where: str, name: str, value: object) -> None:
    """Raise unless a value is one line of text that is not empty."""
    if not isinstance(value, str) or not value.strip() or "\n" in value:
        raise TypeError(f"{where}: {name} must be one line of text; got {shown(value)}.")


def as_tuple(where: str, name: str, value: object, kind: type, example: str) -> tuple[Any, ...]:
    """A list or tuple of instances of a class as a tuple; a string, which is a sequence of letters, is refused."""
    if isinstance(value, (list, tuple)):
        wrong = [each for each in value if not isinstance(each, kind)]
        if not wrong:
            return tuple(value)
        value = wrong[0]
    hint = f" Did you mean ({shown(value)},)?" if isinstance(value, kind) and not isinstance(value, type) else ""
    raise TypeError(
        f"{where}: {name} must be a tuple of {kind.__name__} values, for example {example}; got {shown(value)}.{hint}"
    )


def check_distinct(where: str, name: str, values: Sequence[object]) -> None:
    """Raise if a value is listed twice."""
    for number, value in enumerate(values):
        if value in values[:number]:
            raise ValueError(f"{where}: {name} must be different from each other; got {value!r} twice.")


def check_optimizer(where: str, methods: Sequence[Method]) -> None:
    """Raise unless the first method is the optimizer, and the only one."""
    optimizers = [type(method).__name__ for method in methods if method.is_optimizer]
    if len(optimizers) != 1 or not methods[0].is_optimizer:
        listed = ", ".join(type(method).__name__ for method in methods) or "nothing"
        raise ValueError(
            f"{where}: methods must be exactly one optimizer, such as SGD or Adam, and after it the others; got "
            f"{listed}."
        )


def check_hyperparameters(where: str, method: Method) -> None:
    """Raise if a method is not a dataclass of single values, none of them nan."""
    name = type(method).__name__
    if method.runs() is not None:
        raise ValueError(
            f"{where}: methods: {method!r} holds a sequence. A setting has one value for each hyperparameter; write "
            "one setting for each value, they are stacked for you."
        )
    for key, value in method.hyperparameters().items():
        if isinstance(value, float) and math.isnan(value):
            raise ValueError(f"{where}: methods: {key} of {name} must be a number; got nan.")


def plain_details(where: str, details: object, taken: Sequence[str]) -> dict[str, str | float | int]:
    """The details of a setting by name, with Python's numbers in the place of NumPy's."""
    if not isinstance(details, Mapping):
        raise TypeError(
            f'{where}: details must be a dict of names and values, for example {{"step_size": 0.01}}; got '
            f"{shown(details)}."
        )
    found: dict[str, str | float | int] = {}
    for name, value in details.items():
        check_text(where, "a name in details", name)
        if name in taken:
            raise ValueError(
                f"{where}: details must not have the name {name!r}, which is a column of the results already "
                f"({', '.join(taken)})."
            )
        found[name] = _plain_detail(f"{where}: details[{name!r}]", value)
    return found


def _plain_detail(place: str, value: object) -> str | float | int:
    if isinstance(value, (str, bool)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    raise TypeError(f"{place} must be a text or a finite number; got {shown(value)}.")


def check_problem(where: str, problem: Problem) -> None:
    """Raise unless a problem, which may be the user's own, says things of itself that can be trained on."""
    name = type(problem).__name__
    check_whole(problem, tasks=1)
    for attribute in ("steps_per_task", "outputs"):
        value = getattr(problem, attribute)
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{where}: {name}.{attribute} must be a whole number of at least 1; got {value!r}.")
    shape = problem.input_shape
    if not isinstance(shape, tuple) or not shape or not all(_is_size(side) for side in shape):
        raise ValueError(
            f"{where}: {name}.input_shape must be a tuple of whole numbers of at least 1, such as (784,); got "
            f"{shape!r}."
        )
    for attribute, known in (("loss", LOSSES), ("performance", PERFORMANCES)):
        value = getattr(problem, attribute)
        if value not in known:
            raise ValueError(
                f"{where}: {name}.{attribute} must be one of {', '.join(known)}; got {value!r}.{nearest(value, known)}"
            )
    try:
        hash(problem)
    except TypeError:
        raise TypeError(
            f"{where}: {name} cannot be hashed: make it a frozen dataclass whose fields are numbers, strings and "
            "tuples."
        ) from None


def shown(value: object) -> str:
    """A value as a message shows it: a class by its name, a long text cut."""
    text = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _is_size(side: object) -> bool:
    return isinstance(side, Integral) and not isinstance(side, bool) and int(side) >= 1
