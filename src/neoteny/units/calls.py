"""Call: one forward pass of the network as it was made, so that a method can make it again or keep its inputs.

`attachment` and `stacking` note the calls of an update in `view.calls`; `View.forward` makes one again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

PLAIN = (type(None), bool, int, float, str)
"""What a kept argument may be beside a tensor."""


class Call(NamedTuple):
    """One forward pass.

    Attributes:
        arguments: the positional arguments; in a stack one tensor (*R, B, ...).
        keywords: the keyword arguments.
        autocast: the number type of `torch.autocast` around it ("bfloat16"), or "" for none.
    """

    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any] = {}
    autocast: str = ""

    @property
    def tensors(self) -> list[Tensor]:
        """The arguments that are tensors."""
        return [value for value in (*self.arguments, *self.keywords.values()) if isinstance(value, Tensor)]

    def kept(self, who: str) -> dict[str, Any]:
        """A copy as a part of a method's state, which `made_from` turns into a call again.

        Args:
            who: the method, for the error.

        Raises:
            TypeError: an argument is neither a tensor nor a plain value.
        """
        positions = {str(number): value for number, value in enumerate(self.arguments)}
        for name, value in (*positions.items(), *self.keywords.items()):
            if not isinstance(value, (Tensor, *PLAIN)):
                raise TypeError(
                    f"{who} keeps the inputs of the network, which must be tensors, numbers, strings or None; argument "
                    f"{name} is a {type(value).__name__}. Pass its tensors as arguments of their own."
                )
        return {"arguments": _copied(positions), "keywords": _copied(self.keywords), "autocast": self.autocast}

    @classmethod
    def made_from(cls, kept: Mapping[str, Any]) -> Call:
        """The call that `kept` was made of."""
        arguments = tuple(kept["arguments"][str(number)] for number in range(len(kept["arguments"])))
        return cls(arguments, kept["keywords"], kept["autocast"])

    def again(self) -> contextlib.AbstractContextManager[Any]:
        """The autocast context of the call."""
        device = next((each.device.type for each in self.tensors), "cpu")
        if not self.autocast:
            return torch.autocast(device, enabled=False)
        return torch.autocast(device, getattr(torch, self.autocast))


class Pass(NamedTuple):
    """What a forward pass gave.

    Attributes:
        outputs: of the network.
        inputs: module name -> what it was given, one tensor (*R, B, ...) per time that it ran.
    """

    outputs: Any
    inputs: dict[str, list[Tensor]]


def autocast_of(tensors: Iterable[Any]) -> str:
    """The number type of the autocast that is on for the device of these tensors; "" if it is off."""
    device = next((each.device.type for each in tensors if isinstance(each, Tensor)), "cpu")
    if not torch.is_autocast_enabled(device):
        return ""
    return str(torch.get_autocast_dtype(device)).removeprefix("torch.")


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    # A data loader may use the memory of a batch again.
    return {name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in values.items()}
