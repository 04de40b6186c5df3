"""What `example=` may be: one call of the model, or a list of several.

A tensor is one argument, a tuple holds the positional arguments of a call, a mapping its keyword arguments. A list
holds several calls, each of one of these kinds. A batch of a data loader is a list as well, so a list that the model
does not take as calls is refused with what to pass. `trace.py` comes here first.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from neoteny.wiring.recording import describe_example, first_alone
from neoteny.wiring.sandbox import Sandbox, as_plain


def split_calls(example: Any) -> list[Any]:
    """The calls that an example stands for."""
    if not isinstance(example, list):
        return [as_plain(example)]
    if not example:
        raise ValueError("example must hold at least one call of the model; got an empty list.")
    return [as_plain(call) for call in example]


def check_calls(sandbox: Sandbox, calls: list[Any]) -> None:
    """Refuse a list of calls that the model does not take as such, or that can be read in two ways.

    Raises:
        ValueError: says what to pass.
    """
    errors = [_error(sandbox, call) for call in calls]
    failed = [number for number, error in enumerate(errors) if error is not None]
    if failed:
        number, error = failed[0], errors[failed[0]]
        raise ValueError(
            f"a list as example holds several calls of the model; call {number} of {len(calls)}, with "
            f"{describe_example(calls[number])}, raised {type(error).__name__}: {error}."
            f"{_advice(sandbox, calls) or ' Pass calls that the model accepts.'}"
        ) from error
    if all(isinstance(call, Tensor) for call in calls) and _error(sandbox, (calls,)) is None:
        raise ValueError(
            "the example is a list of tensors, and the model accepts each of them as well as the list itself: pass "
            "example=([...],) for one call with the list as its argument, or example=[(first,), (second,)] for several "
            "calls."
        )


def _advice(sandbox: Sandbox, calls: list[Any]) -> str:
    if _error(sandbox, (calls,)) is None:
        return " The model accepts the list itself as one argument: pass it in a tuple, example=([...],)."
    if _error(sandbox, tuple(calls)) is None:
        return " The model accepts them as the arguments of one call: pass a tuple, example=tuple([...])."
    return first_alone(sandbox, calls)


def _error(sandbox: Sandbox, call: Any) -> Exception | None:
    try:
        sandbox.forward(example=call)
    except Exception as error:  # a model may raise anything
        return error
    return None
