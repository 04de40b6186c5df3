"""A stack's tensors laid out for a kernel, and back: weights (in, out), all parameters of a run in one row.

Between blocks of updates the packed arrays hold exactly what the stack's tensors would: nothing is left pending, and
sums that a kernel keeps up to date are taken again when a block begins. So a checkpoint is the stack's own state, and a
run that was resumed does the same arithmetic as one that was not.

Before this: `options`; after it: `cpu` and `cuda`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neoteny.backends.kernel.options import OPTIMIZERS, Options
from neoteny.methods.declaration import KernelState
from neoteny.stacking.stack import Stack

PAD = 32
"""Columns of a weight matrix are padded to a multiple of this (up to eight of them to 8), so that every row is a whole
number of unrolled vector operations; what is padded stays zero."""
_ROW = 32  # parameters of a run are padded to a multiple of this, so that every run is aligned
STATISTICS = ("mean_activation", "utility", "decay_power")
BUFFERS = ("mu", "var", "ey", "e1")


@dataclass(frozen=True)
class Layout:
    """Where everything is, for every linear layer l (the last one is the output layer).

    Attributes:
        inputs, outputs: of the layers.
        stride: outputs, padded (see `PAD`).
        weight: offset of the matrix (inputs, stride) in a run's parameters.
        bias: offset of the bias (stride).
        scale, shift: offsets of `OnlineNorm`'s weight and bias (stride); -1 without.
        unit: offset of a hidden layer's units (stride) in a run's statistics.
        parameters: length of a run's parameters, padding included.
        units: length of a run's statistics.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    stride: tuple[int, ...]
    weight: tuple[int, ...]
    bias: tuple[int, ...]
    scale: tuple[int, ...]
    shift: tuple[int, ...]
    unit: tuple[int, ...]
    parameters: int
    units: int

    @staticmethod
    def of(options: Options) -> Layout:
        """The layout of a network.

        Example:
            >>> layout = Layout.of(Options((22, 5, 1), 0, 0, 0))
            >>> layout.stride, layout.weight, layout.bias, layout.parameters
            ((8, 8), (0, 184), (176, 224), 256)
        """
        widths = options.widths
        stride = tuple(_pad(width) for width in widths[1:])
        places: dict[str, list[int]] = {"weight": [], "bias": [], "scale": [], "shift": [], "unit": []}
        at = unit = 0
        for layer, (inputs, columns) in enumerate(zip(widths[:-1], stride, strict=True)):
            places["weight"].append(at)
            at += inputs * columns
            places["bias"].append(at)
            at += columns
            normed = options.norm and layer < options.hidden
            places["scale"].append(at if normed else -1)
            places["shift"].append(at + columns if normed else -1)
            at += 2 * columns if normed else 0
            places["unit"].append(unit)
            unit += columns if layer < options.hidden else 0
        offsets = {name: tuple(values) for name, values in places.items()}
        return Layout(widths[:-1], widths[1:], stride, **offsets, parameters=-(-at // _ROW) * _ROW, units=unit)


def _pad(width: int) -> int:
    return 8 if width <= 8 else -(-width // PAD) * PAD


@dataclass
class Packed:
    """The state of n runs.

    Attributes:
        parameters: (n, layout.parameters).
        first: the velocity or Adam's first moment, the same layout; empty for plain SGD.
        second: Adam's second moment; empty otherwise.
        mean_activation, utility, decay_power: (n, layout.units), of continual backpropagation.
        born: int64 (n, layout.units), the step at which a unit was last replaced.
        accumulator: float64 (n, hidden), units due but not yet replaced.
        replaced: int64 (n, hidden), units replaced so far.
        buffers: (4, n, layout.units), mu, var, ey and e1 of `OnlineNorm`; empty without.
        dropout_seed: int64 (n, hidden), of the dropout layers.
        seeds: int64 (n,).
        step: updates so far.
    """

    options: Options
    layout: Layout
    parameters: Tensor
    first: Tensor
    second: Tensor
    mean_activation: Tensor
    utility: Tensor
    decay_power: Tensor
    born: Tensor
    accumulator: np.ndarray
    replaced: np.ndarray
    buffers: Tensor
    dropout_seed: Tensor
    seeds: Tensor
    step: int = 0

    @staticmethod
    def empty(options: Options, runs: int, dtype: torch.dtype, device: torch.device) -> Packed:
        """Zeros."""
        layout = Layout.of(options)
        optimizer = OPTIMIZERS[options.optimizer]

        def zeros(*shape: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, dtype=kind, device=device)

        moments = {"sgd": 0, "momentum": 1, "adam": 2}[optimizer]
        units = layout.units if options.replaces else 0
        return Packed(
            options,
            layout,
            parameters=zeros(runs, layout.parameters),
            first=zeros(runs, layout.parameters if moments > 0 else 0),
            second=zeros(runs, layout.parameters if moments > 1 else 0),
            mean_activation=zeros(runs, units),
            utility=zeros(runs, units),
            decay_power=zeros(runs, units),
            born=zeros(runs, units, kind=torch.int64),
            accumulator=np.zeros((runs, options.hidden)),
            replaced=np.zeros((runs, options.hidden), dtype=np.int64),
            buffers=zeros(len(BUFFERS), runs, layout.units if options.norm else 0),
            dropout_seed=zeros(runs, options.hidden, kind=torch.int64),
            seeds=zeros(runs, kind=torch.int64),
        )


def layer_names(options: Options) -> list[str]:
    """The linear layers of an `MLP`."""
    return [*(f"fc{number}" for number in range(1, options.hidden + 1)), "out"]


def draw_purposes(options: Options) -> dict[str, list[str]]:
    """What each layer's draws are for, in the library's words: new weights, the random utility, and the noise."""
    names = layer_names(options)
    norms = [f"norm{number}" for number in range(1, len(names) + 1)]
    return {
        "weight": [f"{name}.weight" for name in names],
        "utility": [f"{name}/utility" for name in names],
        "noise": [f"{name}.weight/perturb" for name in names],
        "bias": [f"{name}.bias/perturb" for name in names],
        "gain": [f"{name}.weight/perturb" for name in norms],
        "move": [f"{name}.bias/perturb" for name in norms],
    }


def unit_scales(stack: Stack) -> list[float]:
    """For each hidden layer the bound of the uniform distribution that new units are drawn from."""
    return [group.initial[0].scale for group in stack.view.groups]  # pyright: ignore[reportAttributeAccessIssue]


@torch.no_grad()
def pack(stack: Stack, packed: Packed) -> None:
    """Copy the stack's state into the packed arrays."""
    packed.seeds.copy_(stack.view.seeds)
    for theirs, ours in _pairs(stack, packed):
        ours.copy_(theirs)
    for state in _states(stack):
        if state.clock is not None:
            packed.step = state.clock["step"]
        for number, group in enumerate(stack.view.groups if state.units else ()):
            statistics = state.units[group.name]
            packed.step = statistics["schedule"].step
            packed.accumulator[:, number] = statistics["schedule"].accumulator
            packed.replaced[:, number] = statistics["replaced"]
    if packed.options.dropout:
        packed.step = int(stack.view.tensors["drop1.step"][0])


@torch.no_grad()
def unpack(packed: Packed, stack: Stack) -> None:
    """Copy the packed arrays into the stack's state."""
    for theirs, ours in _pairs(stack, packed):
        theirs.copy_(ours)
    layout, options = packed.layout, packed.options
    for number in range(options.hidden if options.dropout else 0):
        stack.view.tensors[f"drop{number + 1}.step"].fill_(packed.step)
    for state in _states(stack):
        if state.clock is not None:
            state.clock["step"] = packed.step
        if state.resets is not None and options.replaces:
            _write_resets(packed, state.resets)
        for number, group in enumerate(stack.view.groups if state.units else ()):
            statistics = state.units[group.name]
            unit = layout.unit[number]
            born = packed.born[:, unit : unit + group.units].cpu().numpy()
            statistics["schedule"].load(packed.step, packed.accumulator[:, number].tolist(), born)
            statistics["replaced"] = packed.replaced[:, number].copy()


def _states(stack: Stack) -> list[KernelState]:
    """Where the state of each method lies."""
    return [method.kernel_state(state) for method, state in zip(stack.methods, stack.chain.states, strict=True)]


def _write_resets(packed: Packed, resets: dict[str, Any]) -> None:
    """Adam's step counts start again at a unit's birth; a unit that was never replaced was born at step 0."""
    layout, hidden = packed.layout, packed.options.hidden
    for number, name in enumerate(layer_names(packed.options)):
        ports = (("rows", number, ()), ("columns", number - 1, (1,)))
        for axis, layer, group_axis in ports:
            if 0 <= layer < hidden:
                unit = layout.unit[layer]
                steps = packed.born[:, unit : unit + layout.outputs[layer]]
                shaped = steps.reshape(len(steps), *group_axis, -1).clone()
                resets.setdefault(f"{name}.weight", {})[axis] = {"step": shaped}
                if axis == "rows":
                    resets[f"{name}.bias"] = {"rows": {"step": shaped.clone()}}


def _pairs(stack: Stack, packed: Packed) -> Iterator[tuple[Tensor, Tensor]]:
    """Every tensor of the stack that a kernel changes, with the view of the packed arrays that holds the same."""
    options, layout, view = packed.options, packed.layout, stack.view
    states = _states(stack)
    sources: list[tuple[Mapping[str, Tensor], Tensor]] = [(view.tensors, packed.parameters)]
    sources += zip(states[0].moments, (packed.first, packed.second), strict=False)  # as many as the optimizer has
    for tensors, flat in sources:
        for number, name in enumerate(layer_names(options)):
            inputs, outputs, stride = layout.inputs[number], layout.outputs[number], layout.stride[number]
            at = layout.weight[number]
            matrix = flat[:, at : at + inputs * stride].unflatten(1, (inputs, stride))
            yield tensors[f"{name}.weight"], matrix[..., :outputs].transpose(1, 2)
            vectors = {f"{name}.bias": layout.bias[number]}
            if layout.scale[number] >= 0:
                norm = f"norm{number + 1}"
                vectors |= {f"{norm}.weight": layout.scale[number], f"{norm}.bias": layout.shift[number]}
            for key, at in vectors.items():
                yield tensors[key], flat[:, at : at + outputs]
    for number in range(options.hidden):
        unit = slice(layout.unit[number], layout.unit[number] + layout.outputs[number])
        if options.norm:
            for key, buffer in zip(BUFFERS, packed.buffers, strict=True):
                yield view.tensors[f"norm{number + 1}.{key}"], buffer[:, unit]
        if options.dropout:
            yield view.tensors[f"drop{number + 1}.seed"], packed.dropout_seed[:, number]
    for state in states:
        for number, group in enumerate(view.groups if state.units else ()):
            unit = slice(layout.unit[number], layout.unit[number] + group.units)
            for key in STATISTICS:
                yield state.units[group.name][key], getattr(packed, key)[:, unit]
            yield state.units[group.name]["born"], packed.born[:, unit]
