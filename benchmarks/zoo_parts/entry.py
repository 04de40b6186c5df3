"""Entry: one model of the zoo with its inputs and its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in a nested output."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)


def mean_square(outputs: Any) -> Tensor:
    """A loss for any model: the mean square of each of its outputs, added up."""
    trained = [each for each in tensors_in(outputs) if each.requires_grad]
    return sum((each.float().square().mean() for each in trained), start=trained[0].new_zeros(()))


def added(outputs: Any) -> Tensor:
    """The sum of the losses that a model returns itself."""
    return sum((each.float().mean() for each in tensors_in(outputs)), start=next(tensors_in(outputs)).new_zeros(()))


@dataclass(frozen=True)
class Entry:
    """One model.

    Args:
        name: in the table.
        build: makes the model.
        example: makes a batch: a tensor, a tuple of arguments or a dict of keyword arguments.
        loss: from the outputs to a number.
        note: what differs from the published size.
    """

    name: str
    build: Callable[[], nn.Module]
    example: Callable[[], Any]
    loss: Callable[[Any], Tensor] = mean_square
    note: str = ""


def call(model: nn.Module, example: Any) -> Any:
    """The model's output on an example."""
    if isinstance(example, Mapping):
        return model(**example)
    return model(*example) if isinstance(example, tuple) else model(example)
