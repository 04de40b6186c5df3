"""How a monitor listens: its hooks, and the inputs of training passes that it keeps until they are enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from neoteny.wiring.modules import unwrap
from neoteny.wiring.sandbox import as_example, as_plain, map_tensors

MOST_BYTES = 64 * 2**20
"""Inputs that are kept for one sample: they lie where the model is."""


def check_model(model: nn.Module) -> nn.Module:
    """The module itself, without the wrappers of torch.compile and of data parallel training.

    Raises:
        TypeError: not a module, or one whose parameters are spread over processes.
    """
    inner = unwrap(model)
    while type(inner).__name__ in ("DistributedDataParallel", "DataParallel"):
        inner = unwrap(inner.module)  # pyright: ignore[reportArgumentType]
    for name, module in inner.named_modules():
        if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(module).__mro__):
            raise TypeError(
                f"{name or 'the model'} is a FullyShardedDataParallel: no process has all weights of a layer, so that "
                "none can measure it."
            )
    sharded = next((name for name, each in inner.named_parameters() if hasattr(each, "device_mesh")), None)
    if sharded is not None:
        raise TypeError(f"{sharded} is a DTensor: no process has all of it, so that none can measure its layer.")
    return inner


class Gathering:
    """Batches, as `diagnose` takes them.

    Args:
        examples: how many are enough.
        passes: after how many passes it is enough with fewer.
    """

    def __init__(self, examples: int, passes: int) -> None:
        self.batches: list[Any] = []
        self._examples = examples
        self._passes = passes
        self._gathered = self._bytes = 0

    def add(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep a copy of one call's arguments, unless there are enough."""
        if self.enough():
            return
        batch = map_tensors(lambda tensor: tensor.detach().clone(), as_plain(as_example(model, args, kwargs)))
        tensors = [leaf for leaf in tree_flatten(batch)[0] if isinstance(leaf, Tensor)]
        self.batches.append(batch)
        self._gathered += next((len(tensor) for tensor in tensors if tensor.dim()), 1)
        self._bytes += sum(tensor.nbytes for tensor in tensors)

    def enough(self) -> bool:
        """Whether there are enough examples, passes or bytes."""
        return self._gathered >= self._examples or len(self.batches) >= self._passes or self._bytes >= MOST_BYTES

    def joined(self) -> list[Any]:
        """The batches as one, if every tensor has an example per row and all are of one shape; else one by one.

        Small batches would take a pass each.
        """
        flat = [tree_flatten(batch) for batch in self.batches]
        columns = list(zip(*(items for items, _ in flat), strict=False))
        if len(flat) < 2 or any(spec != flat[0][1] for _, spec in flat) or not all(map(_fit, columns)):
            return self.batches
        lengths = [[len(item) for item in column] for column in columns if isinstance(column[0], Tensor)]
        if any(each != lengths[0] for each in lengths):
            return self.batches
        together = [torch.cat(column) if isinstance(column[0], Tensor) else column[0] for column in columns]
        return [tree_unflatten(together, flat[0][1])]

    def clear(self) -> None:
        """Forget what was kept."""
        self.batches = []
        self._gathered = self._bytes = 0


def _fit(column: tuple[Any, ...]) -> bool:
    """Whether the same argument of all batches can be one: tensors equal in all but the first axis, or equals."""
    if isinstance(column[0], Tensor):
        return all(isinstance(each, Tensor) and each.dim() and each.shape[1:] == column[0].shape[1:] for each in column)
    return all(type(each) is type(column[0]) and each == column[0] for each in column)


class Hook:
    """A hook that a copied or pickled model does not carry on. Without a `__dict__` it is not followed by a sandbox."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> None:
        self._call(*arguments)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Nothing:
        return _Nothing()

    def __reduce__(self) -> tuple[type[_Nothing], tuple[()]]:
        return _Nothing, ()


class _Nothing:
    """What a hook becomes in a copied or pickled model."""

    def __call__(self, *arguments: Any) -> None:
        return


def first_process() -> bool:
    """Whether this process measures: the only one, or the first of several."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized() and distributed.get_rank() != 0)
