"""Checks of hyperparameters: what was expected, what came."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from neoteny.text import nearest

if TYPE_CHECKING:
    from neoteny.methods.method import Method


def check_number(
    method: Method,
    name: str,
    low: float = 0.0,
    high: float = math.inf,
    *,
    below_high: bool = False,
    whole: bool = False,
    single: bool = False,
) -> None:
    """Refuse a hyperparameter outside its range; turn a sequence into a tuple (one value per run).

    Args:
        method: the frozen dataclass.
        name: the field.
        low, high: the closed range.
        below_high: whether `high` itself is refused.
        whole: whether the value must be an integer.
        single: whether all runs of a stack share it, so that a sequence is refused.
    """
    value = getattr(method, name)
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        value = tuple(each.item() if isinstance(each, (Tensor, np.generic)) else each for each in value)
    if single and isinstance(value, tuple):
        raise TypeError(f"{type(method).__name__}: {name} must be one number for all runs; got {value!r}.")
    object.__setattr__(method, name, value)
    upper = f"{high:g}{')' if below_high else ']'}" if math.isfinite(high) else "inf)"
    expected = f"{'an integer' if whole else 'a number'} in [{low:g}, {upper}"
    for number in value if isinstance(value, tuple) else (value,):
        label = f"{type(method).__name__}: {name} must be {expected}"
        if isinstance(number, bool) or not isinstance(number, int if whole else (int, float)):
            raise TypeError(f"{label}; got {number!r}.")
        inside = low <= number < high if below_high else low <= number <= high
        if not inside or not abs(number) <= sys.float_info.max:
            raise ValueError(f"{label}; got {number!r}.")
    if value == ():
        raise ValueError(f"{type(method).__name__}: {name} must have one value, or one per run; got an empty sequence.")


def check_betas(method: Method, *, pair: bool = True) -> None:
    """Refuse decay rates `betas` that are not two numbers in [0, 1), or one or more; turn a list into a tuple."""
    value: Any = vars(method)["betas"]
    expected = f"{type(method).__name__}: betas must be {'two' if pair else 'one or more'} numbers in [0, 1)"
    if isinstance(value, (Tensor, np.ndarray)):
        value = value.tolist()
    if not isinstance(value, (tuple, list)) or not all(
        isinstance(beta, (int, float)) and not isinstance(beta, bool) for beta in value
    ):
        raise TypeError(f"{expected}; got {value!r}.")
    if not value or (pair and len(value) != 2) or not all(0.0 <= beta < 1.0 for beta in value):
        raise ValueError(f"{expected}; got {value!r}.")
    object.__setattr__(method, "betas", tuple(value))


def check_choice(method: Method, name: str, choices: Sequence[str]) -> None:
    """Refuse a value that is not one of the choices, suggesting the nearest."""
    value = getattr(method, name)
    if value not in choices:
        known = ", ".join(choices)
        hint = nearest(value, choices)
        raise ValueError(f"{type(method).__name__}: {name} must be one of {known}; got {value!r}.{hint}")


def check_flag(method: Method, name: str) -> None:
    """Refuse a value that is neither True nor False."""
    value = getattr(method, name)
    if not isinstance(value, bool):
        raise TypeError(f"{type(method).__name__}: {name} must be True or False; got {value!r}.")
