"""The NaN probe: which input features of which module does a unit reach?

In a probe pass Linear, Conv and norm modules compute nothing: they return what the recording kept (`recording.py`),
with the chosen units set to NaN, so a taint travels through all Python code between two layers and stops at the next
layer, where it is logged. A norm passes on the taint of its input. The result is evidence; `classify.py` turns it into
groups and `verify.py` checks them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from neoteny.layers.kinds import by_feature, feature_dim, fill_features, width_in, width_out
from neoteny.layers.recurrent import RECURRENT, Recurrent, fill_hidden, given_states, returned_states, sequence
from neoteny.wiring.flow import OUTPUT
from neoteny.wiring.recording import FunctionalUse, Recording, has_nan
from neoteny.wiring.sandbox import Forward, leaves, map_tensors

Change = Callable[[Any], Any]  # from what a module returned in the recording to what it returns in a pass


@dataclass
class Pass:
    """The observations of one probe pass."""

    order: list[str] = field(default_factory=list)  # watched modules as they were called
    hits: dict[str, Tensor] = field(default_factory=dict)  # boundary or norm -> tainted input features (bool)
    uses: dict[str, set[int]] = field(default_factory=dict)  # boundary or norm -> which of its calls were tainted
    opaque: list[str] = field(default_factory=list)  # opaque modules that were handed tainted values
    inputs: dict[str, list[Tensor]] = field(default_factory=dict)  # call by call, kept on request
    outputs: list[Tensor | float] = field(default_factory=list)
    leaked: bool = False  # NaN in the model's output
    error: Exception | None = None

    def only(self, places: set[str]) -> Pass:
        """What was seen at some places."""
        hits = {sink: features for sink, features in self.hits.items() if sink in places}
        opaque = [sink for sink in self.opaque if sink in places]
        leaked = self.leaked and OUTPUT in places
        return Pass(self.order, hits, self.uses, opaque, leaked=leaked, error=self.error)

    def places(self) -> set[str]:
        """Where anything was seen."""
        return {*self.hits, *self.opaque, *([OUTPUT] if self.leaked else [])}


class Probe:
    """Passes that replay a recording with some values changed."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.sandbox = recording.sandbox
        self.watched, self.order, self.calls = recording.watched, recording.order, recording.calls

    def module(self, name: str) -> nn.Module:
        """A watched module by name."""
        return self.recording.module(name)

    def named(self, kind: str) -> list[str]:
        """Called modules of one kind in the order of their first calls."""
        return self.recording.named(kind)

    def taint(self, names: Sequence[str]) -> Pass:
        """The pass with all units of boundaries, and all that opaque modules return, set to NaN."""
        return self.replay({name: self._marking(name) for name in names})

    def taint_units(self, units: Mapping[str, Tensor]) -> Pass:
        """The pass with some units (bool) of some boundaries set to NaN."""

        def filled(name: str, chosen: Tensor) -> Change:
            return lambda kept: fill_features(self.module(name), kept, chosen, math.nan)

        return self.replay({name: filled(name, chosen) for name, chosen in units.items()})

    def taint_inputs(self) -> Pass:
        """The pass of what the inputs reach without a layer: NaN for floats, and other values for all of them."""
        example = self.recording.example
        seen = self.replay({}, example=map_tensors(_nan_like, example))
        usual = self.replay({}, identity_norms=True, keep_inputs=True)
        for change in (torch.zeros_like, _flip):
            other = self.replay({}, identity_norms=True, keep_inputs=True, example=map_tensors(change, example))
            for sink, features in self._differences(usual, other).items():
                seen.hits[sink] = seen.hits.get(sink, torch.zeros_like(features)) | features
        return seen

    def taint_parameters(self, names: Sequence[str]) -> Pass:
        """The pass with parameters of custom modules set to NaN; they are restored at once."""
        loose = self.recording.loose
        saved = [(loose[name].data, loose[name].detach().clone()) for name in names]
        try:
            for data, _ in saved:
                data.fill_(math.nan)
            return self.replay({})
        finally:
            for data, values in saved:
                data.copy_(values)

    def move(self, names: Sequence[str]) -> tuple[Pass, Pass]:
        """Two passes with finite values of opposite sign; the second's hits are what differs between them.

        Finite values get through where NaN is swallowed (`torch.where(x > 0, x, 0)`), and through dead ReLUs.
        """
        calls = {id(kept): call for name in names for call, kept in enumerate(self.recording.kept[name])}

        def returning(name: str, sign: int) -> Change:
            mark = self._marking(name)
            return lambda kept: map_tensors(lambda each: _fill_marked(each, sign, calls[id(kept)]), mark(kept))

        first, second = (
            self.replay(
                {name: returning(name, sign) for name in names},
                identity_norms=True,
                keep_inputs=True,
            )
            for sign in (1, -1)
        )
        second.hits = self._differences(first, second)
        second.leaked = second.error is None and not same_leaves(*(self._beyond_states(p) for p in (first, second)))
        first.inputs, second.inputs = {}, {}
        return first, second

    def disturb(self, change: Callable[[Tensor], Tensor]) -> Pass:
        """The pass with all floating-point inputs, and all that layers return, changed."""

        def changed(value: Any) -> Any:
            return map_tensors(lambda tensor: change(tensor) if tensor.is_floating_point() else tensor.clone(), value)

        layers = [*self.named("boundary"), *self.named("opaque")]
        example = changed(self.recording.example)
        return self.replay(dict.fromkeys(layers, changed), identity_norms=True, keep_inputs=True, example=example)

    def replay(
        self,
        sources: Mapping[str, Change],
        *,
        identity_norms: bool = False,
        closed_norms: bool = False,
        keep_inputs: bool = False,
        example: Any = None,
    ) -> Pass:
        """One pass in which watched modules return their kept output, changed by `sources` where named.

        Norms pass on what is marked; with `identity_norms` all that they are given, with `closed_norms` nothing.
        """
        seen = Pass()
        count: Counter[str] = Counter()

        def fake(name: str, module: nn.Module, kind: str) -> Forward:
            def forward(*args: Any, **kwargs: Any) -> Any:
                seen.order.append(name)
                index, count[name] = count[name], count[name] + 1
                if index >= len(self.recording.kept[name]):
                    raise _Diverged(name)
                kept = self.recording.kept[name][index]
                if kind == "opaque":
                    if any(has_nan(value) for value in leaves([args, kwargs])) and name not in seen.opaque:
                        seen.opaque.append(name)
                    return sources[name](kept) if name in sources else map_tensors(torch.clone, kept)
                values: Tensor = sequence(args[0] if args else next(iter(kwargs.values())))
                features = _nan_features(module, values)
                tainted = bool(features.any())
                if tainted:
                    seen.hits[name] = seen.hits.get(name, torch.zeros_like(features)) | features
                    seen.uses.setdefault(name, set()).add(index)
                if keep_inputs:
                    seen.inputs.setdefault(name, []).append(values.clone())
                if kind == "norm" and identity_norms:
                    return values.clone()
                if kind == "norm":
                    return (
                        kept.masked_fill(torch.isnan(values), math.nan)
                        if tainted and not closed_norms
                        else kept.clone()
                    )
                result = sources[name](kept) if name in sources else map_tensors(torch.clone, kept)
                if isinstance(module, RECURRENT) and name not in seen.opaque:
                    marked = returned_states(module, result)[0]
                    if any(_beyond(state, marked) for state in given_states(module, args, kwargs)):
                        seen.opaque.append(name)  # an initial state is carried on, not only multiplied by weights
                return result

            return forward

        fakes = {m: fake(name, m, kind) for name, (m, kind) in self.watched.items()}
        fakes = {**self.recording.without_noise(), **fakes}
        functional = self.recording.functional
        uses = FunctionalUse(functional, seen.opaque) if functional else nullcontext()
        try:
            example = self.recording.example if example is None else example
            with uses:
                output = self.sandbox.forward(fakes, training=self.recording.training, example=example)
            seen.outputs = leaves(output)
            seen.leaked = any(has_nan(value) for value in self._beyond_states(seen))
        except _Diverged:
            pass
        except Exception as error:  # any code may reject NaN in its own way
            seen.error = error
        return seen

    def _marking(self, name: str) -> Change:
        """From what a module returned to the same with NaN for all of it; for all units of a recurrent module."""
        module = self.module(name)
        if isinstance(module, RECURRENT) and self.watched[name][1] == "boundary":
            return lambda kept: fill_features(module, kept, torch.ones(width_out(module), dtype=torch.bool), math.nan)
        return lambda kept: map_tensors(_nan_like, kept)

    def taint_inner(self, name: str) -> Pass:
        """The pass with the states of a recurrent module's layers below the last one set to NaN."""
        module = cast(Recurrent, self.module(name))
        nothing = torch.zeros(width_out(module), dtype=torch.bool)
        return self.replay({name: lambda kept: fill_hidden(module, kept, nothing, math.nan, inner=True)})

    def _beyond_states(self, seen: Pass) -> list[Tensor | float]:
        """The outputs of a pass without the states of recurrent modules, which a user gives back to them."""
        return [value for place, value in enumerate(seen.outputs) if place not in self.recording.states]

    def _differences(self, first: Pass, second: Pass) -> dict[str, Tensor]:
        """For each module whose kept inputs differ between two passes, the features that do."""
        hits: dict[str, Tensor] = {}
        for sink, calls in second.inputs.items():
            for before, now in zip(first.inputs.get(sink, []), calls, strict=False):
                if before.shape == now.shape and not torch.equal(before, now):
                    features = by_feature(self.module(sink), before != now).any(1).cpu()
                    hits[sink] = hits.get(sink, torch.zeros_like(features)) | features
        return hits


def same_leaves(left: list[Tensor | float], right: list[Tensor | float]) -> bool:
    """Whether two flattened outputs are exactly equal, NaN equal to NaN."""
    return len(left) == len(right) and all(_same(a, b) for a, b in zip(left, right, strict=True))


class _Diverged(Exception):
    """A module was called more often than in the recording."""


def _nan_features(module: nn.Module, values: Tensor) -> Tensor:
    """The input features of a boundary or norm that hold NaN anywhere; a maximum of NaN is NaN."""
    if not values.is_floating_point() or not values.numel():
        return torch.zeros(width_in(module), dtype=torch.bool)
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        values = values.flatten(values.dim() - len(module.normalized_shape))
    axis = feature_dim(module, values)
    others = [dim for dim in range(values.dim()) if dim != axis]
    return torch.isnan(values.amax(others) if others else values).cpu()


def _beyond(state: Tensor, marked: Tensor) -> bool:
    """Whether an initial state holds NaN in other features than a module's own that are marked."""
    if state.shape != marked.shape:
        return has_nan(state)
    other = torch.isnan(state) & ~torch.isnan(marked)
    return bool(other.any())


def _fill_marked(marked: Tensor, sign: int, seed: int) -> Tensor:
    """Random numbers in the place of NaN."""
    if not marked.is_floating_point():
        return marked
    pattern = torch.randn(marked.shape, generator=torch.Generator().manual_seed(seed)).mul_(8 * sign).to(marked)
    return torch.where(torch.isnan(marked), pattern, marked)


def _nan_like(tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, math.nan) if tensor.is_floating_point() else tensor.clone()


def _flip(tensor: Tensor) -> Tensor:
    return tensor.roll(1) if tensor.is_floating_point() else tensor.clone()


def _same(left: Tensor | float, right: Tensor | float) -> bool:
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return bool(left == right or (left != left and right != right))
    if left.shape != right.shape:
        return False
    if left.dtype == right.dtype and left.device == right.device and torch.equal(left, right):
        return True
    equal = left == right
    return bool((equal | (torch.isnan(left) & torch.isnan(right)) if left.is_floating_point() else equal).all())
