"""Norms of other libraries, recognised by trying a copy of them out.

`kinds.py` asks for norms that override `forward` and for classes named after a norm: timm's BatchNormAct2d and
LayerNorm2d, the RMS norms of transformers, torchvision's FrozenBatchNorm2d. A trial says what a class does, not what
it is called. What it cannot show, the verification of `wiring/` checks on the model itself.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

_PER_FEATURE = ("weight", "bias", "running_mean", "running_var")
_TENSORS = {*_PER_FEATURE, "num_batches_tracked"}
_LEAST = 4  # features; with fewer, neighbours of a coupled norm move as much as the feature itself
_SHAPES = (
    (6, 3, 2),
    (18, 2),
    (3, 3, 2, 2),
    (36,),
)  # examples and positions of a trial; no positions as many as features
_DOMINANT = 1.5  # how much more a feature moves with itself than with any other, behind shared statistics


@dataclass(frozen=True)
class Norm:
    """How a norm of another library acts.

    Attributes:
        features: their number.
        axis: 1 or -1, the axis of its input that holds them.
        couples: whether its statistics run over several features.
        fresh: its tensors by name, each with the value that a new feature has.
    """

    features: int
    axis: int
    couples: bool
    fresh: dict[str, float]


_norms: WeakKeyDictionary[nn.Module, Norm | None] = WeakKeyDictionary()
_tried: dict[tuple[Any, ...], Norm | None] = {}  # by class and settings: a model has dozens of the same


def norm_of(module: nn.Module) -> Norm | None:
    """How a module acts as a norm: one number out for each number in, with parameters per feature; None if it does not.

    Its class is named after a norm, its tensors are all of one length (or a count), and on random inputs each of them,
    and each feature, changes its own feature of the output; behind shared statistics it changes that one most.
    """
    if module not in _norms:
        found = None
        if _is_candidate(module):
            settings = [
                (key, repr(value)) for key, value in vars(module).items() if key[0] != "_" and key != "training"
            ]
            shapes = [(name, tuple(value.shape)) for name, value in _tensors(module)]
            kind = (type(module), repr(module), *settings, *shapes)
            if kind not in _tried:
                with torch.random.fork_rng(devices=[]):  # the copy is on the CPU
                    _tried[kind] = _try(module)
            found = _tried[kind]
        _norms[module] = found
    return _norms[module]


def _is_candidate(module: nn.Module) -> bool:
    named = any("norm" in cls.__name__.lower() for cls in type(module).__mro__)
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return named and bool(own) and set(own) <= _TENSORS and not {"weight", "running_mean"}.isdisjoint(own)


@torch.no_grad()
def _try(module: nn.Module) -> Norm | None:
    """How a copy of a module acts on random inputs."""
    own = {name: value for name, value in _tensors(module) if name in _PER_FEATURE}
    features = next(iter(own.values())).numel()
    if features < _LEAST or any(value.shape != (features,) for value in own.values()):
        return None
    try:
        trial = _Trial(module, own, features)
        found = next(((axis, x) for axis, x in trial.inputs() if trial.runs(x)), None)
        if found is None:
            return None
        axis, x = found
        modes = [trial.couples(x, axis, training) for training in (False, True)]
        if None in modes or not all(trial.is_own(name, x, axis) for name in own):
            return None
        fresh = {"weight": trial.fresh_weight(x), "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
        return Norm(features, axis, True in modes, {name: fresh[name] for name in own})
    except Exception:  # code of any kind
        return None


class _Trial:
    """A copy of a norm with random parameters, and a random half of its features."""

    def __init__(self, module: nn.Module, own: dict[str, Tensor], features: int) -> None:
        self.features = features
        self.random = torch.Generator().manual_seed(0)
        self.twin = copy.deepcopy(module).to("cpu", torch.float64)
        self.own = {name: value.data for name, value in _tensors(self.twin) if name in own}
        for name, value in self.own.items():
            middle, width = (1.0, 1.0) if name in ("weight", "running_var") else (0.0, 0.1)
            value.copy_((torch.rand(features, generator=self.random, dtype=torch.float64) - 0.5) * width + middle)
        self.half = torch.arange(features) % 2 == torch.randint(2, (features // 2 + 1,), generator=self.random)[0]
        self.start = {name: value.clone() for name, value in self.own.items()}

    def inputs(self) -> Iterator[tuple[int, Tensor]]:
        """Inputs of every layout, each with the axis of its features."""
        for examples, *positions in _SHAPES:
            yield 1, self.draw((examples, self.features, *positions))
            yield -1, self.draw((examples, *positions, self.features))

    def draw(self, shape: tuple[int, ...] | torch.Size) -> Tensor:
        return torch.randn(shape, generator=self.random, dtype=torch.float64)

    def __call__(self, x: Tensor, training: bool = False) -> Tensor:
        for name, value in self.own.items():  # a pass in training mode has moved the running statistics
            if name.startswith("running"):
                value.copy_(self.start[name])
        result: Any = type(self.twin).forward(self.twin.train(training), x.clone())
        if not isinstance(result, Tensor) or result.shape != x.shape or not bool(result.isfinite().all()):
            raise ValueError("expected one finite tensor of the same shape")
        return result

    def runs(self, x: Tensor) -> bool:
        try:
            return torch.equal(self(x), self(x))
        except Exception:  # another layout
            return False

    def couples(self, x: Tensor, axis: int, training: bool) -> bool | None:
        """Whether features move each other; None if a feature does not move itself, or not most of all."""
        before = self(x, training)
        if not torch.equal(before, self(x, training)):
            return None
        moved = self(_where(self.half, self.draw(x.shape), x, axis), training) != before
        moved = moved.movedim(axis, 0).flatten(1).any(1)
        if torch.equal(moved, self.half):
            return False
        for feature in torch.randperm(self.features, generator=self.random)[:6].tolist():
            chosen = torch.arange(self.features) == feature
            change = (self(_where(chosen, self.draw(x.shape), x, axis), training) - before).abs()
            size = change.movedim(axis, 0).flatten(1).mean(1)
            if not size[feature] > _DOMINANT * size[~chosen].max():
                return None
        return True

    def is_own(self, name: str, x: Tensor, axis: int) -> bool:
        """Whether an element of a tensor moves its own feature of the output and no other."""
        before, value = self(x), self.own[name]
        changed = torch.where(self.half, self.start[name] + 0.25, self.start[name])
        kept, self.start[name] = self.start[name], changed
        value.copy_(changed)
        moved = (self(x) != before).movedim(axis, 0).flatten(1).any(1)
        self.start[name] = kept
        value.copy_(kept)
        return torch.equal(moved, self.half)

    def fresh_weight(self, x: Tensor) -> float:
        """1 where the weight is a factor; 0 where 1 is added to it, or where it scales an addition."""
        if "weight" not in self.own:
            return 1.0
        self.own["weight"].zero_()
        constant = torch.equal(self(x), self(self.draw(x.shape)))
        self.own["weight"].copy_(self.start["weight"])
        return 1.0 if constant else 0.0


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    own = (*module._parameters.items(), *module._buffers.items())
    return [(name, value) for name, value in own if value is not None]


def _where(chosen: Tensor, new: Tensor, x: Tensor, axis: int) -> Tensor:
    shape = [1] * x.dim()
    shape[axis] = -1
    return torch.where(chosen.view(shape), new, x)
