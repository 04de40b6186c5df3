"""A stack's tensors laid out for the dense kernel, and back: weights (in, out), all parameters of a run in one row.

As in the other kernels, the packed arrays hold between two blocks exactly what the stack's tensors would.

Before this: `terms`; after it: `run`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from neoteny.backends.kernel.dense.places import OUTPUTS, UNIT
from neoteny.backends.kernel.dense.terms import (
    ACTIVITY,
    ADAM,
    GRADIENT,
    MOMENTUM,
    PAD,
    REINIT,
    REPLACE,
    RESET,
    SGD,
    SILENCE,
    DenseOptions,
)
from neoteny.draws.rng import purpose_code
from neoteny.methods.declaration import KernelState, KernelTerms, kernel_terms_of
from neoteny.stacking.stack import Stack

_STATISTICS = ("mean_activation", "utility", "decay_power", "born")


Array = TypeVar("Array")


class DenseState(NamedTuple, Generic[Array]):
    """The state of n runs, as tensors or as NumPy arrays; absent ones are empty.

    P parameters and U hidden units per run, padding included.

    Attributes:
        parameters: (n, P).
        first, second: (n, P), the velocity or average, Adam's moments.
        anchor, slow: (n, P), initial and slow weights.
        mean_activation, utility, decay_power, born: (n, U), of continual backpropagation.
        column_means: (2, n, U), with CReLU.
        since: int64 (n, U), the update at which a unit was last made new by any method.
        accumulator: float64 (n, hidden), units due but not yet replaced.
        replaced, reset: int64 (n, hidden), units replaced by continual backpropagation, and reset, so far.
        worth: (n, P), the utility of weights; redrawn: int64 (n, 1), how many were redrawn so far.
        drawn: int64 (n, P), the update at which a weight was last redrawn, where Adam counts updates.
        score: float64 (n, U), of resets by gradients.
        age, threshold: int64 (n, U), and histogram: int32 (n, U, longest), of resets by silence.
        bounds: float64 (layers,), of new weights.
        seeds: int64 (n,).
    """

    parameters: Array
    first: Array
    second: Array
    anchor: Array
    slow: Array
    mean_activation: Array
    utility: Array
    decay_power: Array
    born: Array
    column_means: Array
    since: Array
    accumulator: Array
    replaced: Array
    reset: Array
    worth: Array
    redrawn: Array
    drawn: Array
    score: Array
    age: Array
    threshold: Array
    histogram: Array
    bounds: Array
    seeds: Array


class DensePacked:
    """The runs of a stack in the kernel's layout, on the stack's device.

    Args:
        options: of the learner.
        stack: whose tensors they are.
        bounds: of new weights, for each layer.

    Attributes:
        tensors: the state of the runs.
    """

    def __init__(self, options: DenseOptions, stack: Stack, bounds: Sequence[float]) -> None:
        self.options, self.stack, self.step = options, stack, 0
        self.names = layer_names(options.hidden)
        self.shape, size, units = _shape(options, self.names)
        runs, weight = stack.view.runs[0], stack.view.parameters["out.weight"]
        self.dtype, self.device = weight.dtype, weight.device
        moments = {SGD: 0, MOMENTUM: 1, ADAM: 2}.get(options.optimizer, 1)
        replaces = units if REPLACE in options.after else 0
        by = options.reset_by if RESET in options.after else ACTIVITY

        def zeros(count: int, *lead: int, kind: torch.dtype = self.dtype) -> Tensor:
            return torch.zeros((*lead, runs, count), dtype=kind, device=self.device)

        self.tensors = DenseState(
            parameters=zeros(size),
            first=zeros(size if moments > 0 else 0),
            second=zeros(size if moments > 1 else 0),
            anchor=zeros(size if options.anchored else 0),
            slow=zeros(size if options.slow else 0),
            mean_activation=zeros(replaces),
            utility=zeros(replaces),
            decay_power=zeros(replaces),
            born=zeros(replaces, kind=torch.int64),
            column_means=zeros(replaces if options.copies > 1 and options.compensate else 0, 2),
            since=zeros(units, kind=torch.int64),
            accumulator=zeros(options.hidden, kind=torch.float64),
            replaced=zeros(options.hidden, kind=torch.int64),
            reset=zeros(options.hidden, kind=torch.int64),
            worth=zeros(size if REINIT in options.after else 0),
            redrawn=zeros(1, kind=torch.int64),
            drawn=zeros(size if options.counts_weights else 0, kind=torch.int64),
            score=zeros(units if by == GRADIENT else 0, kind=torch.float64),
            age=zeros(units if by == SILENCE else 0, kind=torch.int64),
            threshold=zeros(units if by == SILENCE else 0, kind=torch.int64),
            histogram=torch.zeros(
                (runs, units if by == SILENCE else 0, options.longest), dtype=torch.int32, device=self.device
            ),
            bounds=torch.tensor(bounds, dtype=torch.float64, device=self.device),
            seeds=torch.zeros(runs, dtype=torch.int64, device=self.device),
        )

    @property
    def state(self) -> DenseState[np.ndarray]:
        """The state as NumPy arrays in the same memory, where it lies on the CPU."""
        return DenseState(*(tensor.numpy() for tensor in self.tensors))

    @torch.no_grad()
    def read(self) -> None:
        """Copy the stack's state into the layout."""
        state = self.tensors
        state.seeds.copy_(self.stack.view.seeds)
        for tensor in (state.since, state.worth, state.drawn):
            tensor.zero_()
        for theirs, name, ours in self._pairs():
            if name in theirs:  # averages of parameters begin with the first update
                ours.copy_(theirs[name])
        for _, kept in self._kept():
            if kept.clock is not None:
                self.step = kept.clock["step"]
            for _, name, ours in self._parameters({}, state.worth, norms=False) if kept.worth else ():
                if name in kept.worth:
                    ours.copy_(kept.worth[name])
            if kept.redrawn is not None:
                state.redrawn[:, 0] = kept.redrawn.to(self.device)
            resets = kept.resets or {}
            for name, ours in self._drawn():
                if "elements" in resets.get(name, {}):
                    ours.copy_(resets[name]["elements"]["step"])
            for number, group in enumerate(self.stack.view.groups):
                if kept.units:
                    statistics = kept.units[group.name]
                    self.step = statistics["schedule"].step
                    state.accumulator[:, number] = torch.from_numpy(statistics["schedule"].accumulator).to(self.device)
                    state.replaced[:, number] = torch.from_numpy(statistics["replaced"]).to(self.device)
                if kept.resets:
                    steps = kept.resets.get(f"{group.name}.bias", {}).get("rows", {}).get("step")
                    if steps is not None:
                        state.since[:, self._units(number)] = steps.to(self.device)

    @torch.no_grad()
    def write(self) -> None:
        """Copy the layout into the stack's state."""
        for theirs, name, ours in self._pairs():
            if name in theirs:
                theirs[name].copy_(ours)
            elif self.step > 0 and isinstance(theirs, dict):
                theirs[name] = ours.clone(memory_format=torch.contiguous_format)
        for _, kept in self._kept():
            if kept.clock is not None:
                kept.clock["step"] = self.step
            if kept.redrawn is not None:
                kept.redrawn.copy_(self.tensors.redrawn[:, 0])
                kept.worth.clear()
                measured = self.options.averages and self.step % self.options.reinit_period > 0
                for _, name, ours in self._parameters({}, self.tensors.worth, norms=False) if measured else ():
                    if name.endswith("weight"):
                        kept.worth[name] = ours.clone(memory_format=torch.contiguous_format)
            if kept.resets is not None and self.options.rewrites_units:
                self._write_resets(kept.resets)
            if kept.resets is not None and self.step >= self.options.reinit_period:
                for name, ours in self._drawn():
                    steps = ours.clone(memory_format=torch.contiguous_format)
                    kept.resets.setdefault(name, {})["elements"] = {"step": steps}
            for number, group in enumerate(self.stack.view.groups if kept.units else ()):
                statistics = kept.units[group.name]
                born = self.tensors.born[:, self._units(number)].cpu().numpy()
                statistics["schedule"].load(self.step, self.tensors.accumulator[:, number].tolist(), born)
                statistics["replaced"] = self.tensors.replaced[:, number].cpu().numpy().copy()
            for group in kept.groups.values():
                if "batch" in group and self.step > 0:
                    group["batch"] = self.options.batch

    def _kept(self) -> Iterator[tuple[KernelTerms, KernelState]]:
        """Every method's declaration, and where its state lies."""
        for method, state in zip(self.stack.methods, self.stack.chain.states, strict=True):
            terms = kernel_terms_of(method)
            assert isinstance(terms, KernelTerms)
            yield terms, method.kernel_state(state)

    def _units(self, layer: int) -> slice:
        start = int(self.shape[UNIT, layer])
        return slice(start, start + int(self.shape[OUTPUTS, layer]))

    def _pairs(self) -> Iterator[tuple[Mapping[str, Tensor], str, Tensor]]:
        """Every tensor that the kernel changes: the dict that holds it, its name, and where it lies in the layout."""
        state = self.tensors
        yield from self._parameters(self.stack.view.tensors, state.parameters)
        for terms, kept in self._kept():
            for moments, flat in zip(kept.moments, (state.first, state.second), strict=False):
                yield from self._parameters(moments, flat)
            if terms.anchor is not None:
                yield from self._parameters(kept.copies, state.anchor, norms=False)
            if terms.slow is not None:
                yield from self._parameters(kept.copies, state.slow)
            for number, group in enumerate(self.stack.view.groups):
                units = self._units(number)
                if kept.units:
                    for key in _STATISTICS:
                        yield kept.units[group.name], key, getattr(state, key)[:, units]
                    means = kept.units[group.name]["column_means"]
                    for key in means:
                        yield means, key, state.column_means[:, :, units].movedim(0, -1).unsqueeze(-1)
                if kept.groups:
                    yield kept.groups[group.name], "replaced", state.reset[:, number]
                    for key in ("score", "age", "threshold", "histogram"):
                        if key in kept.groups[group.name]:
                            yield kept.groups[group.name], key, getattr(state, key)[:, units]

    def _parameters(
        self, tensors: Mapping[str, Tensor], flat: Tensor, norms: bool = True
    ) -> Iterator[tuple[Mapping[str, Tensor], str, Tensor]]:
        for number, name in enumerate(self.names):
            inputs, outputs, stride, weight, bias, gain, offset = self.shape[:UNIT, number].tolist()
            matrix = flat[:, weight : weight + inputs * stride].unflatten(1, (inputs, stride))
            yield tensors, f"{name}.weight", matrix[..., :outputs].transpose(1, 2)
            yield tensors, f"{name}.bias", flat[:, bias : bias + outputs]
            if norms and self.options.norm and number < self.options.hidden:
                yield tensors, f"norm{number + 1}.weight", flat[:, gain : gain + outputs]
                yield tensors, f"norm{number + 1}.bias", flat[:, offset : offset + outputs]

    def _drawn(self) -> Iterator[tuple[str, Tensor]]:
        """The updates at which the elements of every weight matrix were last redrawn, where Adam counts updates."""
        drawn = self.tensors.drawn
        for _, name, ours in self._parameters({}, drawn, norms=False) if drawn.numel() else ():
            if name.endswith("weight"):
                yield name, ours

    def _write_resets(self, resets: dict[str, Any]) -> None:
        """A unit's step count starts again in its row, its bias, its norm and its columns."""
        for number, name in enumerate(self.names[:-1]):
            steps = self.tensors.since[:, self._units(number)].clone()
            rows = [f"{name}.weight", f"{name}.bias"]
            rows += [f"norm{number + 1}.weight", f"norm{number + 1}.bias"] if self.options.norm else []
            for key in rows:
                resets.setdefault(key, {})["rows"] = {"step": steps.clone()}
            columns = steps.repeat(1, self.options.copies).unsqueeze(1)
            resets.setdefault(f"{self.names[number + 1]}.weight", {})["columns"] = {"step": columns}


def layer_names(hidden: int) -> list[str]:
    """The linear layers of an `MLP`."""
    return [*(f"fc{number}" for number in range(1, hidden + 1)), "out"]


def _shape(options: DenseOptions, names: list[str]) -> tuple[np.ndarray, int, int]:
    """The layout (see `places`), the length of a run's parameters and that of its statistics."""
    columns: list[tuple[int, ...]] = []
    at = unit = 0
    for layer, outputs in enumerate(options.widths[1:]):
        inputs = options.widths[layer] * (options.copies if layer else 1)
        stride = -(-outputs // PAD) * PAD
        bias = at + inputs * stride
        normed = options.norm and layer < options.hidden
        gain = bias + stride if normed else 0
        columns.append((inputs, outputs, stride, at, bias, gain, gain + stride if normed else 0, unit))
        at = bias + stride * (3 if normed else 1)
        unit += stride if layer < options.hidden else 0
    norms = [f"norm{number}" for number in range(1, len(names) + 1)]
    texts = [[f"{name}.weight" for name in names], [f"{name}/utility" for name in names]]
    for what in ("reinit", "reinit_count"):
        texts.append([f"{name}.weight/{what}" for name in names])
    for what in ("perturb", "upgd"):
        for owners, key in ((names, "weight"), (names, "bias"), (norms, "weight"), (norms, "bias")):
            texts.append([f"{owner}.{key}/{what}" for owner in owners])
    codes = np.array([[purpose_code(text) for text in row] for row in texts], dtype=np.uint64)
    return np.concatenate([np.array(columns, dtype=np.uint64).T, codes]), at, unit
