"""Which units, and which elements of which tensors: the two ways in which a reset is addressed.

`ChosenUnits` names units of a group. A port turns them into `Region`s, elements of one parameter. A region applies to
every tensor of the parameter's shape: the parameter itself, an optimizer's moments, a method's anchor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ChosenUnits:
    """M chosen units of a group.

    Args:
        runs: run numbers, one tensor (M,); empty if R = ().
        units: unit numbers (M,).
        active: bool (M,), which of the M are really chosen; None for all. With it the number of chosen units may
            depend on data that only the device knows.
    """

    runs: tuple[Tensor, ...]
    units: Tensor
    active: Tensor | None = None

    @classmethod
    def of(cls, mask: Tensor) -> ChosenUnits:
        """The units where a mask (*R, U) is true.

        On a CPU they are listed. On another device listing would wait for it, so all units are named and `mask` says
        which are active.
        """
        if mask.device.type == "cpu":
            *runs, units = mask.nonzero(as_tuple=True)
            return cls(tuple(runs), units)
        places = torch.arange(mask.numel(), device=mask.device)
        units = places % mask.shape[-1]
        runs = (places // mask.shape[-1],) if mask.dim() > 1 else ()
        return cls(runs, units, mask.flatten())

    @property
    def index(self) -> tuple[Tensor, ...]:
        """What indexes a tensor (*R, U, ...)."""
        return (*self.runs, self.units)

    @property
    def is_empty(self) -> bool:
        """Whether no unit can be chosen; False where only the device knows."""
        return len(self.units) == 0

    def put(self, tensor: Tensor, value: Tensor | float) -> None:
        """Set the chosen units' entries of a tensor (*R, U, ...)."""
        put(tensor, self.index, value, self.active)


@dataclass(frozen=True, eq=False)
class Region:
    """Some elements of one parameter, and of every tensor of the same shape (an optimizer's moments, for example).

    Args:
        name: the parameter's name.
        index: index tensors, broadcasting together to (M, repeat): run, then row, or run, group and column in group.
        groups: None for rows (or elements of a vector); for columns the number of groups of the convolution.
        active: bool (M,), which of the M entries count; None for all.
        mask: bool, of the parameter's shape: single elements that need not be whole rows or columns. Nothing else is
            given then (`Region.where`).
        is_whole: whether it is known to be every element of the parameter.
    """

    name: str
    index: tuple[Tensor, ...]
    groups: int | None = None
    active: Tensor | None = None
    mask: Tensor | None = None
    is_whole: bool = False

    @classmethod
    def whole(cls, name: str, tensor: Tensor, run_axes: int) -> Region:
        """Every element of a parameter (*R, rows, ...)."""
        sizes = tensor.shape[:run_axes]
        runs = torch.arange(math.prod(sizes), device=tensor.device).unsqueeze(1)
        if tensor.dim() == run_axes:  # one number per run
            return cls(name, (runs,) if run_axes else (), is_whole=True)
        rows = torch.arange(tensor.shape[run_axes], device=tensor.device).unsqueeze(0)
        return cls(name, (runs, rows) if run_axes else (rows,), is_whole=True)

    @classmethod
    def where(cls, name: str, mask: Tensor) -> Region:
        """The elements of a parameter (*R, ...) at which a mask of its shape is true."""
        return cls(name, (), mask=mask)

    def view(self, tensor: Tensor) -> Tensor:
        """`tensor` with the indexed axes first."""
        if self.groups is None:
            return tensor
        run_axes = len(self.index) - 2
        split = tensor.unflatten(run_axes, (self.groups, -1))  # (*R, groups, out / groups, in / groups, *kernel)
        return split.movedim(run_axes + 2, run_axes + 1)  # (*R, groups, in / groups, out / groups, *kernel)

    def read(self, tensor: Tensor) -> Tensor:
        """The elements, (M, repeat, ...); of a mask the whole tensor, from which `write` takes what it needs."""
        return tensor if self.mask is not None else self.view(tensor)[self.index]

    def write(self, tensor: Tensor, value: Tensor | float) -> None:
        """Set the elements; one operation on a view, so that the tensor itself changes.

        With a mask, `value` is a number or has a value for every element of the tensor.
        """
        if self.mask is not None:
            mask = self.mask.to(tensor.device)
            fresh = value.to(tensor) if isinstance(value, Tensor) else torch.full_like(tensor, value)
            tensor.copy_(torch.where(mask, fresh, tensor))
            return
        put(self.view(tensor), self.index, value, self.active)

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Set the elements of one tensor to those of another of the same shape."""
        self.write(target, self.read(source))


def put(tensor: Tensor, index: tuple[Tensor, ...], value: Tensor | float, active: Tensor | None = None) -> None:
    """tensor[index] = value where `active` (M,) is true, without waiting for the device."""
    if isinstance(value, Tensor):
        value = value.to(tensor)
    else:
        value = torch.full((), value, dtype=tensor.dtype, device=tensor.device)
    if active is not None:
        before = tensor[index]
        value = torch.where(active.reshape(-1, *(1,) * (before.dim() - 1)), value, before)
    if index:
        tensor.index_put_(index, value)
    else:  # a single number
        tensor.copy_(value)


def tap_layout(weight: Tensor) -> tuple[int, int] | None:
    """How far apart two inputs and two taps of a weight (out, in, *kernel) lie in a row; None if rows are not whole."""
    if weight.is_contiguous():
        return math.prod(weight.shape[2:]), 1
    if weight.dim() == 4 and weight.is_contiguous(memory_format=torch.channels_last):
        return 1, weight.shape[1]
    return None
