"""What the compiled functions of the CPU kernel are given: other files' dataclasses as tuples of arrays and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from neoteny.backends.kernel.examples import Examples
from neoteny.backends.kernel.options import Numbers, Options
from neoteny.backends.kernel.pack import Packed, draw_purposes
from neoteny.draws.rng import purpose_code
from neoteny.units.utilities import INCOMING, OUTGOING


class Shape(NamedTuple):
    """`pack.Layout` as uint64 arrays, and the codes of the draws' purposes for each layer."""

    inputs: np.ndarray
    outputs: np.ndarray
    stride: np.ndarray
    weight: np.ndarray
    bias: np.ndarray
    scale: np.ndarray
    shift: np.ndarray
    unit: np.ndarray
    purposes: np.ndarray  # (6, layers): the codes of `pack.draw_purposes`, in that order
    bounds: np.ndarray  # float64: of new weights


class Flags(NamedTuple):
    """`options.Options` as numbers; see there."""

    activation: int
    loss: int
    optimizer: int
    norm: bool
    forward_decay: float
    backward_decay: float
    norm_eps: float
    dropout: float
    shrink: bool
    noise: bool
    noise_first: bool
    utility: int
    compensate: bool
    beta1: float
    beta2: float
    eps: float
    sums_in: bool
    sums_out: bool
    dropout_purpose: int


class State(NamedTuple):
    """`Packed` as arrays."""

    parameters: np.ndarray
    first: np.ndarray
    second: np.ndarray
    mean: np.ndarray
    utility: np.ndarray
    power: np.ndarray
    born: np.ndarray
    buffers: np.ndarray
    dropout_seed: np.ndarray
    seeds: np.ndarray
    replaced: np.ndarray


class Rates(NamedTuple):
    """`Numbers` as arrays."""

    step_size: np.ndarray
    momentum: np.ndarray
    shrink: np.ndarray
    noise_std: np.ndarray
    threshold: np.ndarray
    decay: np.ndarray


class Inputs(NamedTuple):
    """`Examples` as arrays."""

    start: np.ndarray
    feature: np.ndarray
    level: np.ndarray
    values: np.ndarray
    target: np.ndarray
    order: np.ndarray
    place: np.ndarray
    stream: np.ndarray
    mask: np.ndarray


def as_array(tensor: Tensor) -> np.ndarray:
    """The tensor's own memory."""
    return tensor.detach().numpy()


def state_of(packed: Packed) -> State:
    """The state of all runs, in place."""
    return State(
        as_array(packed.parameters),
        as_array(packed.first),
        as_array(packed.second),
        as_array(packed.mean_activation),
        as_array(packed.utility),
        as_array(packed.decay_power),
        as_array(packed.born),
        as_array(packed.buffers),
        as_array(packed.dropout_seed),
        as_array(packed.seeds),
        packed.replaced,
    )


def shape_of(packed: Packed, scales: Sequence[float]) -> Shape:
    """The shape of a network; `scales`: the bounds of new weights."""
    layout, purposes = packed.layout, draw_purposes(packed.options)

    def unsigned(values: Sequence[int]) -> np.ndarray:
        return np.array([max(value, 0) for value in values], dtype=np.uint64)

    return Shape(
        unsigned(layout.inputs),
        unsigned(layout.outputs),
        unsigned(layout.stride),
        unsigned(layout.weight),
        unsigned(layout.bias),
        unsigned(layout.scale),
        unsigned(layout.shift),
        unsigned(layout.unit),
        np.array([[purpose_code(text) for text in row] for row in purposes.values()], dtype=np.uint64),
        np.array([*scales, 0.0]),
    )


def flags_of(options: Options) -> Flags:
    """The options of a learner."""
    s = options
    return Flags(
        s.activation,
        s.loss,
        s.optimizer,
        s.norm,
        s.forward_decay,
        s.backward_decay,
        s.norm_eps,
        s.dropout,
        s.shrink,
        s.noise,
        s.noise_first,
        s.utility,
        s.compensate,
        s.beta1,
        s.beta2,
        s.eps,
        bool(s.utility & INCOMING),
        bool(s.utility & OUTGOING),
        purpose_code("dropout"),
    )


def rates_of(numbers: Numbers) -> Rates:
    """The hyperparameters of all runs."""
    return Rates(
        numbers.step_size,
        numbers.momentum,
        numbers.shrink,
        numbers.noise_std,
        numbers.maturity_threshold,
        numbers.decay_rate,
    )


def inputs_of(examples: Examples) -> Inputs:
    """The examples of a task."""
    table = examples.table
    return Inputs(
        table.start,
        table.feature,
        table.level,
        table.values,
        table.target,
        examples.order,
        examples.place,
        examples.stream,
        table.mask,
    )
