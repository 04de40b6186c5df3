"""The NaN probe: which input features of which module does a unit reach?

A recording pass keeps the output of every Linear, Conv and norm. In a probe pass those modules compute nothing: they
return what was kept, with the chosen units set to NaN, so a taint travels through all Python code between two
layers and stops at the next layer, where it is logged. A norm passes on the taint of its input. The result is
evidence; `classify.py` turns it into groups and `verify.py` checks them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from neoteny.layers.kinds import by_feature, fill_features, loose_parameters, watched_modules, width_out
from neoteny.wiring.sandbox import Forward, Sandbox, leaves, map_tensors

# Reading a parameter's type or shape is not using it.
_HARMLESS = {"type_as", "new_zeros", "new_ones", "new_empty", "new_full", "new_tensor", "zeros_like", "ones_like"}


@dataclass
class Pass:
    """The observations of one probe pass."""

    order: list[str] = field(default_factory=list)  # watched modules as they were called
    hits: dict[str, Tensor] = field(default_factory=dict)  # boundary or norm -> tainted input features (bool)
    opaque: list[str] = field(default_factory=list)  # opaque modules that were handed tainted values
    inputs: dict[str, Tensor] = field(default_factory=dict)  # kept on request: (features, rest)
    outputs: list[Tensor | float] = field(default_factory=list)
    leaked: bool = False  # NaN in the model's output
    error: Exception | None = None


class Probe:
    """The recording of one model on one example, and the passes that reuse it.

    Args:
        sandbox: runs the model.

    Attributes:
        order: names of the watched modules in the order of their calls.
        calls: how often each was called.
        outside: parameters used outside the forward of the module that owns them, owner -> parameter names.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.watched = watched_modules(sandbox.model)
        self.order: list[str] = []
        self.kept: dict[str, list[Any]] = defaultdict(list)
        self.outside: dict[str, set[str]] = defaultdict(set)
        self.loose = loose_parameters(sandbox.model)
        self.outputs = leaves(self._record())
        self.calls = Counter(self.order)

    def module(self, name: str) -> nn.Module:
        """A watched module by name."""
        return self.watched[name][0]

    def named(self, kind: str) -> list[str]:
        """Called modules of one kind in the order of their first calls."""
        return [name for name in dict.fromkeys(self.order) if self.watched[name][1] == kind]

    def taint(self, name: str, units: Tensor | None = None) -> Pass:
        """The pass with units (bool, all by default) of a boundary, or all output of an opaque module, set to NaN."""
        module, kind = self.watched[name]
        if kind == "opaque":
            return self.replay({name: lambda kept: map_tensors(_nan_like, kept)})
        chosen = torch.ones(width_out(module), dtype=torch.bool) if units is None else units
        return self.replay({name: lambda kept: fill_features(module, kept, chosen, math.nan)})

    def taint_inputs(self) -> Pass:
        """The pass of what the inputs reach without a layer: NaN for floats, and other values for all of them."""
        seen = self.replay({}, example=map_tensors(_nan_like, self.sandbox.example))
        for change in (torch.zeros_like, _flip):
            changed = self._differ({}, {}, example=map_tensors(change, self.sandbox.example))[1]
            for sink, features in changed.hits.items():
                seen.hits[sink] = seen.hits.get(sink, torch.zeros_like(features)) | features
        return seen

    def taint_parameters(self, names: list[str]) -> Pass:
        """The pass with parameters of custom modules set to NaN; they are restored at once."""
        saved = [(self.loose[name].data, self.loose[name].detach().clone()) for name in names]
        try:
            for data, _ in saved:
                data.fill_(math.nan)
            return self.replay({})
        finally:
            for data, values in saved:
                data.copy_(values)

    def move(self, name: str) -> tuple[Pass, Pass]:
        """Two passes with finite values of opposite sign; the second's hits are what differs between them.

        Finite values get through where NaN is swallowed (`torch.where(x > 0, x, 0)`), and through dead ReLUs.
        """
        kept = self.kept[name][0]
        pattern = torch.randn(kept.shape, generator=torch.Generator().manual_seed(0)).mul_(8).to(kept)
        return self._differ({name: lambda _: pattern.clone()}, {name: lambda _: -pattern})

    def _differ(
        self, left: dict[str, Callable[[Any], Any]], right: dict[str, Callable[[Any], Any]], example: Any = None
    ) -> tuple[Pass, Pass]:
        first = self.replay(left, identity_norms=True, keep_inputs=True)
        second = self.replay(right, identity_norms=True, keep_inputs=True, example=example)
        second.hits = {}
        for sink, now in second.inputs.items():
            if sink in first.inputs and first.inputs[sink].shape == now.shape:
                features = (first.inputs[sink] != now).any(1).cpu()
                if features.any():
                    second.hits[sink] = features
        second.leaked = second.error is None and not same_leaves(first.outputs, second.outputs)
        first.inputs, second.inputs = {}, {}
        return first, second

    def decode(self, name: str, base: Pass) -> dict[str, Tensor] | None:
        """For each sink of `base`, the unit behind each feature: -1 none, -2 several or not clear.

        Unit i is tainted in pass b where bit b of i is one, and in that pass's complement where it is zero, so a
        feature spells the number of its unit in 2 * ceil(log2(units)) passes. None if a pass went differently.
        """
        units = width_out(self.module(name))
        numbers = torch.arange(units)
        owner = {sink: torch.where(features, 0, -1) for sink, features in base.hits.items()}
        for bit in range((units - 1).bit_length()):
            ones = (numbers >> bit) % 2 == 1
            passes = [self.taint(name, ones), self.taint(name, ~ones)]
            if any(p.error is not None or p.order != self.order for p in passes):
                return None
            for sink, code in owner.items():
                one, zero = (p.hits.get(sink, torch.zeros_like(base.hits[sink])) for p in passes)
                clear = (one ^ zero) & (code >= 0)
                owner[sink] = torch.where(clear, code + one * (1 << bit), torch.where(code == -1, -1, -2))
        return {sink: torch.where(code >= units, -2, code) for sink, code in owner.items()}

    def replay(
        self,
        sources: dict[str, Callable[[Any], Any]],
        *,
        identity_norms: bool = False,
        keep_inputs: bool = False,
        example: Any = None,
    ) -> Pass:
        """One pass in which watched modules return their kept output, changed by `sources` where named."""
        seen = Pass()
        count: Counter[str] = Counter()

        def fake(name: str, module: nn.Module, kind: str) -> Forward:
            def forward(*args: Any, **kwargs: Any) -> Any:
                seen.order.append(name)
                index, count[name] = count[name], count[name] + 1
                if index >= len(self.kept[name]):
                    raise _Diverged(name)
                kept = self.kept[name][index]
                if kind == "opaque":
                    if any(_has_nan(value) for value in leaves([args, kwargs])) and name not in seen.opaque:
                        seen.opaque.append(name)
                    return sources[name](kept) if name in sources else map_tensors(torch.clone, kept)
                values: Tensor = args[0] if args else next(iter(kwargs.values()))
                tainted = torch.isnan(values)
                features = by_feature(module, tainted).any(1).cpu()
                if features.any():
                    seen.hits[name] = seen.hits.get(name, torch.zeros_like(features)) | features
                if keep_inputs and name not in seen.inputs:
                    seen.inputs[name] = by_feature(module, values).clone()
                if kind == "norm":
                    return values.clone() if identity_norms else kept.masked_fill(tainted, math.nan)
                return sources[name](kept) if name in sources else kept.clone()

            return forward

        fakes = {module: fake(name, module, kind) for name, (module, kind) in self.watched.items()}
        try:
            seen.outputs = leaves(self.sandbox.forward(fakes, example=example))
            seen.leaked = any(_has_nan(value) for value in seen.outputs)
        except _Diverged:
            pass
        except Exception as error:  # any code may reject NaN in its own way
            seen.error = error
        return seen

    def listen(self, *, training: bool = False, example: Any = None) -> list[str] | None:
        """The order of calls when the modules really compute (norms excepted, in training); None if the model raises.

        Norms pass on their input in training mode: BatchNorm would refuse an example of one row.
        """
        order: list[str] = []

        def ear(name: str, module: nn.Module, kind: str) -> Forward:
            original = module.forward

            def forward(*args: Any, **kwargs: Any) -> Any:
                order.append(name)
                if training and kind == "norm":
                    return (args[0] if args else next(iter(kwargs.values()))).clone()
                return original(*args, **kwargs)

            return forward

        fakes = {module: ear(name, module, kind) for name, (module, kind) in self.watched.items()}
        try:
            self.sandbox.forward(fakes, training=training, example=example)
        except Exception:  # only the order of calls of a pass that works counts
            return None
        return order

    def _record(self) -> Any:
        inside: list[str] = [""]

        def recorder(name: str, module: nn.Module) -> Forward:
            original = module.forward

            def forward(*args: Any, **kwargs: Any) -> Any:
                self.order.append(name)
                inside.append(name)
                try:
                    result = original(*args, **kwargs)
                finally:
                    inside.pop()
                self.kept[name].append(map_tensors(lambda tensor: tensor.detach().clone(), result))
                return result

            return forward

        owners = {
            id(parameter): (name, key)
            for name, (module, kind) in self.watched.items()
            if kind != "opaque"
            for key, parameter in module.named_parameters(recurse=False)
        }
        with _ParameterUse(owners, inside, self.outside):
            return self.sandbox.forward({module: recorder(name, module) for name, (module, _) in self.watched.items()})


def record(sandbox: Sandbox) -> Probe:
    """The probe of a model, after its recording pass; errors say what to do about the example."""
    try:
        probe = Probe(sandbox)
    except Exception as error:
        raise ValueError(
            f"expected an example batch the model accepts; with {_describe(sandbox.example)} the model raised "
            f"{type(error).__name__}: {error}: pass an example batch the model accepts (a tensor, a tuple of "
            "positional or a dict of keyword arguments)."
        ) from error
    if not any(isinstance(leaf, Tensor) for leaf in probe.outputs):
        raise ValueError("expected the model to return at least one tensor; found none in what it returned.")
    spoilt = [name for name in probe.order if any(_nan_tensor(leaf) for leaf in leaves(probe.kept[name]))]
    if spoilt or any(_nan_tensor(leaf) for leaf in probe.outputs):
        broken = [name for name, value in sandbox.model.named_parameters() if not bool(torch.isfinite(value).all())]
        if broken:
            raise ValueError(f"expected finite weights; the network has diverged: {', '.join(broken)} are not finite.")
        where = f" (first in {spoilt[0]})" if spoilt else ""
        raise ValueError(f"expected finite activations; the model gives NaN on the example{where}: pass another one.")
    return probe


def same_leaves(left: list[Tensor | float], right: list[Tensor | float]) -> bool:
    """Whether two flattened outputs are exactly equal, NaN equal to NaN."""
    return len(left) == len(right) and all(_same(a, b) for a, b in zip(left, right, strict=True))


class _Diverged(Exception):
    """A module was called more often than in the recording."""


class _ParameterUse(TorchFunctionMode):
    """Notes parameters that an operation reads while no call of the module that owns them is running."""

    def __init__(self, owners: dict[int, tuple[str, str]], inside: list[str], outside: dict[str, set[str]]) -> None:
        super().__init__()
        self.owners, self.inside, self.outside = owners, inside, outside

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if any(isinstance(leaf, Tensor) for leaf in leaves([result])) and name not in _HARMLESS:
            for position, leaf in enumerate(_flat([args, kwargs])):
                owner, key = self.owners.get(id(leaf), ("", ""))
                if key and owner != self.inside[-1] and not (name == "to" and position > 0):
                    self.outside[owner].add(key)
        return result


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _flat(item)
    elif isinstance(value, dict):
        yield from _flat(list(value.values()))
    else:
        yield value


def _nan_like(tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, math.nan) if tensor.is_floating_point() else tensor.clone()


def _flip(tensor: Tensor) -> Tensor:
    return tensor.roll(1) if tensor.is_floating_point() else tensor.clone()


def _has_nan(value: Tensor | float) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point() and bool(torch.isnan(value).any())
    return bool(value != value)


def _nan_tensor(value: Tensor | float) -> bool:
    return isinstance(value, Tensor) and _has_nan(value)


def _same(left: Tensor | float, right: Tensor | float) -> bool:
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return bool(left == right or (left != left and right != right))
    if left.shape != right.shape:
        return False
    equal = left == right
    return bool((equal | (torch.isnan(left) & torch.isnan(right)) if left.is_floating_point() else equal).all())


def _describe(example: Any) -> str:
    if isinstance(example, Tensor):
        return f"a {str(example.dtype).removeprefix('torch.')} tensor of shape {tuple(example.shape)}"
    if isinstance(example, dict):
        return "{" + ", ".join(f"{key!r}: {_describe(value)}" for key, value in example.items()) + "}"
    if isinstance(example, (tuple, list)):
        return f"a {type(example).__name__} of ({', '.join(map(_describe, example))})"
    return type(example).__name__
