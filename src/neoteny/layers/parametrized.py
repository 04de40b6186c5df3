"""Weights that are computed from other parameters: weight norm, and parametrizations that act element by element.

A reset writes the weight that a layer really multiplies with. Here that weight is read, and what it is computed from is
set so that the rewritten elements have their new values and all others keep theirs, up to rounding. Before this:
`regions.py` names the elements; after it: a view and `wiring/edits.py` write to computed weights as to plain ones.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.weight_norm import WeightNorm

from neoteny.layers.regions import Region

_ROUNDING = 64  # steps of the dtype between a weight that was written and one that is read back


@dataclass(frozen=True, eq=False)
class NormedWeight:
    """A weight g * v / |v|, where |v| runs over all axes but one (weight norm).

    Write s = g / |v|, so that the weight is s * v. Elements that are not rewritten keep their v and their s: g follows
    the new length of v. Where s scales new elements only (the row of a new unit), they begin as a fresh layer does:
    v is the weight itself, and s is 1. Where the weight becomes zero as a whole, g is zero and v stays, since a v of
    zeros has no direction.

    Args:
        module: the layer.
        length, direction: names of g and v in the layer.
        axis: the axis that g has; -1 if g is a single number.
    """

    module: nn.Module
    length: str
    direction: str
    axis: int

    @property
    def originals(self) -> tuple[str, ...]:
        """What the weight is computed from."""
        return self.length, self.direction

    def read(self) -> Tensor:
        """The weight as it is now; a new tensor."""
        return cast(Any, torch)._weight_norm(self._direction, self._length, self.axis)

    @torch.no_grad()
    def write(self, weight: Tensor, new: Tensor) -> None:
        """Give elements their values in `weight` where `new` (bool, may broadcast) is true; others keep theirs."""
        length, direction = self._length, self._direction
        new = new.expand_as(weight)
        scale = length / self._norm(direction)
        whole = self._over(new.all, new)
        scale = torch.where(whole, torch.ones_like(scale), scale)
        safe = torch.where((scale == 0) | ~scale.isfinite(), torch.ones_like(scale), scale)
        proposed = torch.where(new, torch.where(weight == 0, torch.zeros_like(weight), weight / safe), direction)
        norm = self._norm(proposed)
        empty = norm == 0
        changed = self._over(new.any, new)
        direction.copy_(torch.where(empty, direction, proposed))
        length.copy_(torch.where(changed, torch.where(empty, torch.zeros_like(norm), scale * norm), length))

    def regions(self, region: Region, prefix: str) -> list[Region]:
        """The elements of v, and those of g that belong to rewritten elements alone, for a region of the weight.

        The g of a consumer's row belongs to all of its columns. It is scaled, not drawn: it keeps its optimizer state.
        """
        found = [replace(region, name=f"{prefix}{self.direction}")]
        if region.mask is None and (self.axis, region.groups) in ((0, None), (1, 1)):
            found.append(replace(region, name=f"{prefix}{self.length}"))
        return found

    @property
    def _length(self) -> Tensor:
        return self.module.get_parameter(self.length).data

    @property
    def _direction(self) -> Tensor:
        return self.module.get_parameter(self.direction).data

    def _norm(self, direction: Tensor) -> Tensor:
        return torch.norm_except_dim(direction, 2, self.axis)

    def _over(self, reduce: Any, mask: Tensor) -> Tensor:
        """A reduction of a mask to the shape of g."""
        if self.axis == -1:
            return reduce()
        others = [axis for axis in range(mask.dim()) if axis != self.axis]
        return reduce(dim=others).reshape(self._length.shape)


@dataclass(frozen=True, eq=False)
class ElementwiseWeight:
    """A weight each of whose elements is computed from one element of one other parameter, and back.

    Args:
        module: the layer.
        chain: what computes its weight.
    """

    module: nn.Module
    chain: ParametrizationList

    originals = ("parametrizations.weight.original",)

    def read(self) -> Tensor:
        """The weight as it is now; a new tensor."""
        return _forward(self.chain, cast(Tensor, self.chain.original).detach()).clone()

    @torch.no_grad()
    def write(self, weight: Tensor, new: Tensor) -> None:
        """Give elements their values in `weight` where `new` (bool, may broadcast) is true; others keep theirs."""
        original = cast(Tensor, self.chain.original).data
        original.copy_(torch.where(new, _backward(self.chain, weight), original))

    def regions(self, region: Region, prefix: str) -> list[Region]:
        """The same elements of what the weight is computed from."""
        return [replace(region, name=f"{prefix}{self.originals[0]}")]


ComputedWeight = NormedWeight | ElementwiseWeight


def computed_weight(module: nn.Module) -> ComputedWeight | None:
    """How a layer's computed weight is read and written; None for a plain weight, or one that cannot be written."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm) and hook.name == "weight":
            return NormedWeight(module, "weight_g", "weight_v", hook.dim)
    chain = _chain(module)
    if chain is None:
        return None
    if len(chain) == 1 and isinstance(chain[0], _WeightNorm):
        names = ("parametrizations.weight.original0", "parametrizations.weight.original1")
        return NormedWeight(module, *names, axis=cast(int, chain[0].dim))
    return None if _why_not(chain) else ElementwiseWeight(module, chain)


def why_unwritable(module: nn.Module) -> str:
    """Why the elements of a layer's computed weight cannot be rewritten; empty if they can, or if it is plain."""
    computed = [key for key in getattr(module, "parametrizations", {}) if key != "weight"]
    if computed:
        return f"its {computed[0]} is computed from other parameters (a parametrization)"
    if "weight" in module._parameters or computed_weight(module) is not None:
        return ""
    chain = _chain(module)
    if chain is None:
        return "its weight is computed from other parameters (pruning, spectral norm or another hook)"
    return _why_not(chain)


def why_rows_coupled(module: nn.Module, axis: int) -> str:
    """Why a row of a layer's weight cannot be rewritten without a rounding in all others; empty if it can.

    Args:
        module: the layer.
        axis: of its weight, which counts the rows.
    """
    computed = computed_weight(module)
    if isinstance(computed, NormedWeight) and (computed.axis != axis or (axis and getattr(module, "groups", 1) > 1)):
        return "its weight norm runs over its rows, so a new row moves all others by a rounding"
    return ""


def weight_of(module: nn.Module, key: str = "weight") -> Tensor:
    """The weight that a layer multiplies with: its parameter's own memory, or a new tensor where it is computed."""
    computed = computed_weight(module)
    return cast(Tensor, getattr(module, key)).data if computed is None else computed.read()


def write_back(module: nn.Module, weight: Tensor, new: Tensor) -> None:
    """After elements of `weight_of` a layer were changed where `new` (bool) is true: make its weight the same."""
    computed = computed_weight(module)
    if computed is not None:
        computed.write(weight, new)


def computed_from(module: nn.Module) -> tuple[str, ...]:
    """The parameters that a layer's weight is computed from, if it is computed."""
    computed = computed_weight(module)
    return () if computed is None else computed.originals


def _chain(module: nn.Module) -> ParametrizationList | None:
    chain = getattr(module, "parametrizations", {})
    return cast(ParametrizationList, chain["weight"]) if "weight" in chain else None


@torch.no_grad()
def _why_not(chain: ParametrizationList) -> str:
    """Why elements cannot be rewritten one by one, as a trial shows: a row is negated and halved, a column zeroed."""
    names = ", ".join(type(each).__name__.removeprefix("_") for each in chain)
    said = f"its weight is computed by {names}"
    if not all(hasattr(each, "right_inverse") for each in chain):
        return f"{said}, which has no right_inverse"
    try:
        trial = copy.deepcopy(chain).eval()  # in training mode some update their buffers
        original = cast(Tensor, trial.original).detach()
        weight = _forward(trial, original)
        wanted, new = weight.clone(), torch.zeros_like(weight, dtype=torch.bool)
        wanted[0] *= -0.5
        wanted[:, 0] = 0.0
        new[0], new[:, 0] = True, True
        written = torch.where(new, _backward(trial, wanted), original)
        got = _forward(trial, written)
    except Exception as error:  # code of any kind
        return f"{said}, which cannot be inverted ({type(error).__name__})"
    rounding = _ROUNDING * torch.finfo(weight.dtype).eps * wanted.abs().max().clamp_min(1e-30)
    if not bool(written.isfinite().all()) or bool(((got - wanted).abs() > rounding).any()):
        return f"{said}: single rows and columns cannot be rewritten"
    return ""


def _forward(chain: ParametrizationList, original: Tensor) -> Tensor:
    for each in chain:
        original = each(original)
    return original


def _backward(chain: ParametrizationList, weight: Tensor) -> Tensor:
    for each in reversed(list(chain)):
        weight = cast(Any, each).right_inverse(weight)
    return weight
