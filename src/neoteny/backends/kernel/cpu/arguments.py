"""What the compiled functions of the CPU kernel are given: other files' dataclasses as tuples of arrays and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from neoteny.backends.kernel.examples import Examples
from neoteny.backends.kernel.options import Numbers, Options
from neoteny.backends.kernel.pack import Packed, draw_purposes
from neoteny.draws.rng import purpose_code
from neoteny.units.utilities import INCOMING, OUTGOING

Arguments = TypeVar("Arguments")


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
    """`pack.Packed` as arrays."""

    parameters: np.ndarray
    first: np.ndarray
    second: np.ndarray
    mean_activation: np.ndarray
    utility: np.ndarray
    decay_power: np.ndarray
    born: np.ndarray
    buffers: np.ndarray
    dropout_seed: np.ndarray
    seeds: np.ndarray
    replaced: np.ndarray


class Rates(NamedTuple):
    """`options.Numbers` as arrays."""

    step_size: np.ndarray
    momentum: np.ndarray
    shrink: np.ndarray
    noise_std: np.ndarray
    maturity_threshold: np.ndarray
    decay_rate: np.ndarray


class Inputs(NamedTuple):
    """`examples.Examples` and its table as arrays."""

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
    return _by_name(State, packed)


def shape_of(packed: Packed, scales: Sequence[float]) -> Shape:
    """The shape of a network; `scales`: the bounds of new weights."""
    layout, purposes = packed.layout, draw_purposes(packed.options)
    places = ("inputs", "outputs", "stride", "weight", "bias", "scale", "shift", "unit")
    unsigned = {name: np.maximum(getattr(layout, name), 0).astype(np.uint64) for name in places}
    codes = np.array([[purpose_code(text) for text in row] for row in purposes.values()], dtype=np.uint64)
    return Shape(**unsigned, purposes=codes, bounds=np.array([*scales, 0.0]))


def flags_of(options: Options) -> Flags:
    """The options of a learner."""
    return _by_name(
        Flags,
        options,
        sums_in=bool(options.utility & INCOMING),
        sums_out=bool(options.utility & OUTGOING),
        dropout_purpose=purpose_code("dropout"),
    )


def rates_of(numbers: Numbers) -> Rates:
    """The hyperparameters of all runs."""
    return _by_name(Rates, numbers)


def inputs_of(examples: Examples) -> Inputs:
    """The examples of a task."""
    return _by_name(Inputs, examples, examples.table)


def _by_name(kind: type[Arguments], *sources: object, **values: Any) -> Arguments:
    """A named tuple whose fields are taken by name: from `values`, else from the first source that has them."""
    fields: tuple[str, ...] = kind._fields  # pyright: ignore[reportAttributeAccessIssue]
    for name in fields:
        if name not in values:
            values[name] = next(getattr(source, name) for source in sources if hasattr(source, name))
        if isinstance(values[name], Tensor):
            values[name] = as_array(values[name])
    return kind(**values)
