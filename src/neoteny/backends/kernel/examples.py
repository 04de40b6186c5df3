"""The plan of a task as a kernel reads it: which inputs are not zero, in which order they come, and the targets.

Digits and bits are mostly zeros. They are kept once, as lists of what is not zero; a permutation of pixels is applied
by looking up where each of them goes. Where a task has labels of its own, it has its own list of where an image begins
and ends, and shares the rest.

Before this: the plans of `problems`; after it: `cpu` and `cuda`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from neoteny.problems.data.labelled import LabelledImages
from neoteny.problems.data.pixels import pixel_values
from neoteny.problems.mnist.permuted import PermutedPlan
from neoteny.problems.problem import Plan, Stream
from neoteny.problems.regression import RegressionPlan
from neoteny.problems.relabelled.plan import RelabelledPlan

_MASK_BITS = 31
_MOST_TABLE_BYTES = 300 << 20  # of a table of all images of a set; above it, a task has a table of its own images


@dataclass(frozen=True)
class Table:
    """Inputs by number, each as the list of its features that are not zero.

    Attributes:
        start: int32 (N + 1,), input k has the entries start[k] to start[k + 1] - 1.
        feature: int16 (entries,).
        level: uint8 (entries,); the value is values[level].
        values: float32 (256,).
        target: float32 (N,), a class number or a value to predict.
        mask: int32 (N,), bit i is feature i, where inputs are zeros and ones and have at most 31 features; else empty.
    """

    start: np.ndarray
    feature: np.ndarray
    level: np.ndarray
    values: np.ndarray
    target: np.ndarray
    mask: np.ndarray


@dataclass(frozen=True)
class Examples:
    """One task of n runs. Runs of the same seed share their rows.

    Attributes:
        table: the inputs.
        order: int32 (streams, steps * batch), the inputs of each update.
        place: int16 (streams, features), the row of the first weight matrix that a feature meets.
        stream: int32 (n,), the row of `order` and `place` that belongs to a run.
        batch: examples per update.
    """

    table: Table
    order: np.ndarray
    place: np.ndarray
    stream: np.ndarray
    batch: int = 1

    @property
    def steps(self) -> int:
        """Updates of the task."""
        return self.order.shape[1] // self.batch


Described = tuple[Table, np.ndarray, np.ndarray]
"""The table, the order and the places of `Examples`."""
Drawn = tuple[Plan, Described]


class SharedPlan(Plan):
    """One task of n runs of which those of one seed share a stream."""

    def __init__(self, plan: Plan, described: Described, stream: np.ndarray) -> None:
        self.distinct, self.described, self.stream, self.steps = plan, described, stream, plan.steps

    @staticmethod
    def of(stream: Stream, seeds: Sequence[int], task: int) -> SharedPlan:
        """The plan of a task for the runs of these seeds."""
        distinct, number = np.unique(np.asarray(seeds, dtype=np.int64), return_inverse=True)
        plan, described = _draw(stream, tuple(distinct.tolist()), task)
        if plan.seen_classes:
            raise ValueError(f"Kernels count all outputs; {type(plan).__name__} has some that do not count.")
        return SharedPlan(plan, described, number.astype(np.int32))

    def batches(self, start: int, stop: int, device: torch.device) -> tuple[Tensor, Tensor]:
        runs = torch.from_numpy(self.stream).to(device).long()
        inputs, targets = self.distinct.batches(start, stop, device)
        return inputs[:, runs], targets[:, runs]

    def probe(self, count: int, device: torch.device) -> Tensor:
        return self.distinct.probe(count, device)[torch.from_numpy(self.stream).to(device).long()]


def examples_of(plan: SharedPlan) -> Examples:
    """A plan as kernels read it."""
    return Examples(*plan.described, plan.stream, getattr(plan.distinct, "batch_size", 1))


_KEPT_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 20  # of the machine's memory, per process
_kept: dict[tuple[int, tuple[int, ...], int], tuple[Stream, Drawn]] = {}


def _draw(stream: Stream, seeds: tuple[int, ...], task: int) -> Drawn:
    """A task and its description. The first are kept: the stacks of a sweep see the same tasks, one after the other.

    Nothing is thrown away for a later task: stacks go through all tasks in order, and would find the wrong ones.
    """
    key = (id(stream), seeds, task)
    if key in _kept:
        plan, (table, order, place) = _kept[key][1]  # the stream is kept with it, so its id stands for it alone
        return plan, (table, order.astype(np.int32), place)
    plan = stream.plan(seeds, task)
    table, order, place = _describe(plan)
    short = order.astype(np.int16) if order.max(initial=0) <= np.iinfo(np.int16).max else order
    tensors = sum(value.nbytes for value in vars(plan).values() if isinstance(value, Tensor))
    if isinstance(plan, RelabelledPlan):
        own = [table.start, table.target, *(() if _is_small(plan.data) else (table.feature, table.level))]
        tensors += sum(array.nbytes for array in own)
    if (tensors + short.nbytes + place.nbytes) * (len(_kept) + 1) <= _KEPT_BYTES:
        _kept[key] = (stream, (plan, (table, short, place)))
    return plan, (table, order, place)


def _describe(plan: Plan) -> Described:
    if isinstance(plan, PermutedPlan):
        # Input i is pixel permutation[i]: pixel p meets row argsort(permutation)[p].
        place = torch.empty_like(plan.permutation, dtype=torch.int16)
        rows = torch.arange(plan.permutation.shape[1], dtype=torch.int16).expand_as(place)
        place.scatter_(1, plan.permutation.long(), rows)
        return _table_of_images(plan.data, plan.pixels), plan.order.numpy(), place.numpy()
    if isinstance(plan, RelabelledPlan):
        return _describe_relabelled(plan)
    if isinstance(plan, RegressionPlan) and plan.inputs is not None and plan.targets is not None:
        streams, codes, features = plan.inputs.shape
        bits = plan.inputs.reshape(streams * codes, features).numpy().astype(np.uint8)
        values = np.arange(256, dtype=np.float32)
        order = plan.codes(0, plan.steps, torch.device("cpu")) + codes * torch.arange(streams).unsqueeze(1)
        place = np.broadcast_to(np.arange(features, dtype=np.int16), (streams, features)).copy()
        return make_table(bits, values, plan.targets.reshape(-1).numpy()), order.int().numpy(), place
    raise TypeError(f"No kernel reads plans of type {type(plan).__name__}.")


def _describe_relabelled(plan: RelabelledPlan) -> Described:
    """Images whose labels are those of one task: entry 2m is the m-th image of all runs, 2m + 1 only ends it."""
    numbers = plan.images.numpy()  # (streams, M)
    if _is_small(plan.data):
        table = _table_of_images(plan.data, plan.pixels)
    else:
        chosen, numbers = np.unique(numbers, return_inverse=True)
        levels = plan.data.images[torch.from_numpy(chosen).long()].cpu().numpy()
        table = make_table(levels, pixel_values(plan.pixels), np.zeros(len(chosen)))
    numbers = numbers.reshape(plan.images.shape)
    start = np.zeros(2 * numbers.size + 1, dtype=np.int32)
    start[:-1:2], start[1::2] = table.start[numbers].ravel(), table.start[numbers + 1].ravel()
    target = np.repeat(plan.labels.numpy().ravel(), 2).astype(np.float32)
    streams, images = numbers.shape
    order = 2 * (plan.order.numpy() + images * np.arange(streams, dtype=np.int32)[:, np.newaxis])
    features = plan.data.images.shape[1]
    place = np.broadcast_to(np.arange(features, dtype=np.int16), (streams, features)).copy()
    return replace(table, start=start, target=target), order, place


def _is_small(data: LabelledImages) -> bool:
    """Whether all images of a set fit into one table."""
    return 3 * data.images.numel() <= _MOST_TABLE_BYTES


@functools.lru_cache(maxsize=4)
def _table_of_images(data: LabelledImages, pixels: str) -> Table:
    return make_table(data.images.cpu().numpy(), pixel_values(pixels), data.labels.cpu().numpy())


def make_table(levels: np.ndarray, values: np.ndarray, target: np.ndarray) -> Table:
    """A table of inputs (N, features) given as levels, uint8, each of which stands for a value.

    Example:
        >>> table = make_table(np.array([[0, 7], [3, 0]], np.uint8), np.arange(256, dtype=np.float32), np.zeros(2))
        >>> table.start.tolist(), table.feature.tolist(), table.level.tolist()
        ([0, 1, 2], [1, 0], [7, 3])
    """
    width = levels.shape[1]
    present = (values != 0)[levels]
    start = np.zeros(len(levels) + 1, dtype=np.int32)
    np.cumsum(present.sum(1), out=start[1:])
    if present.all():  # centred pixels: numbers of all entries would need much memory
        feature = np.tile(np.arange(width, dtype=np.int16), len(levels))
    else:
        feature = np.nonzero(present)[1].astype(np.int16)
    mask = np.zeros(0, np.int32)
    if width <= _MASK_BITS and values[1] == 1.0 and levels.max(initial=0) <= 1:
        mask = (levels.astype(np.int64) << np.arange(width)).sum(1).astype(np.int32)
    return Table(start, feature, levels[present], values, target.astype(np.float32), mask)
