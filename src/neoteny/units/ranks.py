"""Ranks: the processes that train replicas of one model, and what they tell each other.

Replicas stay equal if every rank sees the same numbers. Continual backpropagation adds its sums over the ranks
(`units/totals.py`); any other method that reads activations sees those of all ranks, gathered when it looks at them
(`Gathered`). Before this: `attachment/replicas.py` finds the process group. After it: methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_Parts = list[tuple[tuple[int, ...], torch.dtype]]


class Ranks:
    """The ranks of one process group.

    Args:
        group: torch's process group.
        first_only: the first rank's batch counts instead of that of all ranks.
    """

    def __init__(self, group: Any, first_only: bool) -> None:
        self.group = group
        self.first_only = first_only
        self.size: int = dist.get_world_size(group)
        self.rank: int = dist.get_rank(group)
        self._weights: dict[tuple[Any, ...], Tensor] = {}

    def sum(self, parts: Sequence[Tensor], weights: Sequence[float]) -> tuple[list[Tensor], list[Tensor]]:
        """The sums over all ranks of some tensors and numbers, in one reduction; every rank gets the same bits.

        Args:
            parts: tensors of one type and device; of the same shapes on every rank.
            weights: numbers, as many on every rank.
        """
        flat = torch.cat([*(part.reshape(-1) for part in parts), self._as_tensor(weights, parts[0])])
        dist.all_reduce(flat, group=self.group)
        return _split(flat, parts), list(flat[flat.numel() - len(weights) :].unbind()) if weights else []

    def of_first(self, parts: Sequence[Tensor], flags: Sequence[bool]) -> tuple[list[Tensor], list[bool]]:
        """The first rank's tensors and flags, in one broadcast; a device is waited for."""
        flat = torch.cat([*(part.reshape(-1) for part in parts), self._as_tensor([float(x) for x in flags], parts[0])])
        dist.broadcast(flat, self.global_rank(0), group=self.group)
        return _split(flat, parts), [bool(x) for x in flat[flat.numel() - len(flags) :].tolist()]

    def share(self, value: Any, device: torch.device, source: int = 0) -> Any:
        """What one rank has, on all of them; a picklable value."""
        box = [value]
        dist.broadcast_object_list(box, self.global_rank(source), group=self.group, device=device)
        return box[0]

    def all_have(self, value: Any) -> list[Any]:
        """What each rank has, in the order of ranks; picklable values."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.group)
        return found

    def count(self, number: int, device: torch.device) -> int:
        """The sum of a whole number over all ranks; a device is waited for."""
        total = torch.tensor([number], dtype=torch.int64, device=device)
        dist.all_reduce(total, group=self.group)
        return int(total)

    def gather(self, tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
        """The tensors of all ranks (of the first, if only that one counts), in the order of ranks."""
        parts: _Parts = [(tuple(each.shape), each.dtype) for each in tensors]
        known: list[_Parts] = [self.share(parts, device)] if self.first_only else self.all_have(parts)
        sizes = [sum(_bytes(*part) for part in each) for each in known]
        if not max(sizes):
            return []
        flat = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
        if tensors and (self.rank == 0 or not self.first_only):
            own = torch.cat([each.detach().contiguous().reshape(-1).view(torch.uint8) for each in tensors])
            flat[: own.numel()] = own
        if self.first_only:
            dist.broadcast(flat, self.global_rank(0), group=self.group)
            gathered = [flat]
        else:
            gathered = [torch.empty_like(flat) for _ in range(self.size)]
            dist.all_gather(gathered, flat, group=self.group)
        return [each for data, rank in zip(gathered, known, strict=True) for each in _unpack(data, rank)]

    def global_rank(self, rank: int) -> int:
        """The number that a rank of this group has among all processes."""
        return dist.get_global_rank(self.group, rank)

    def _as_tensor(self, numbers: Sequence[float], like: Tensor) -> Tensor:
        """The numbers on a device, copied there once: batches are mostly of one size."""
        key = (*numbers, like.dtype, like.device)
        if key not in self._weights:
            if len(self._weights) >= 16:
                self._weights.clear()
            self._weights[key] = torch.tensor(numbers, dtype=like.dtype, device=like.device)
        return self._weights[key]


class Gathered(Mapping[str, list[Tensor]]):
    """What modules of all ranks were given since the last tick; communicated when a method first looks at a module.

    Methods act alike on all ranks, so they look at the same modules in the same order.

    Args:
        own: what this rank recorded, by module.
        ranks: who takes part.
        device: where the model is.
        scale: what every number is multiplied by.
    """

    def __init__(self, own: Mapping[str, list[Tensor]], ranks: Ranks, device: torch.device, scale: float = 1.0) -> None:
        self.own = own
        self._ranks, self._device, self._scale = ranks, device, scale
        self._found: dict[str, list[Tensor]] = {}

    def __getitem__(self, key: str) -> list[Tensor]:
        if key not in self._found:
            found = self._ranks.gather(self.own[key], self._device)
            self._found[key] = found if self._scale == 1.0 else [each * self._scale for each in found]
        return self._found[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.own)

    def __len__(self) -> int:
        return len(self.own)

    def forget(self) -> None:
        """There are other inputs now, or none."""
        self._found.clear()


def _split(flat: Tensor, parts: Sequence[Tensor]) -> list[Tensor]:
    """The first parts of a flat tensor, in the shapes of others."""
    found: list[Tensor] = []
    place = 0
    for part in parts:
        found.append(flat[place : place + part.numel()].view(part.shape))
        place += part.numel()
    return found


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return torch.Size(shape).numel() * dtype.itemsize


def _unpack(data: Tensor, parts: _Parts) -> list[Tensor]:
    found: list[Tensor] = []
    place = 0
    for shape, dtype in parts:
        size = _bytes(shape, dtype)
        found.append(data[place : place + size].clone().view(dtype).reshape(shape))  # a copy begins at a whole number
        place += size
    return found
