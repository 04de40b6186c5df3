"""What is measured at the start of a task, or at its end where an agent acts: correlates of lost plasticity.

A measure is a function of a `Snapshot` (hidden activations and weights of some runs) that gives one number per run. Add
one by writing the function and its line in `MEASURES`. Measures for which a copy has to learn are in
`plasticity_probe`.

Where the hidden units are is found by tracing the network, as in `diagnose`, and they are read at the same points: at
the input of the layer that consumes them (behind a pooling), but before a norm that follows the activation.

Each run has its own forward pass (or that of a fixed number of runs at once), and decompositions are of one matrix
each, so a run measures the same in any stack. On a GPU the processor decomposes, and what `begin_measure` returns
waits for it: the next task can be trained meanwhile.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from neoteny import metrics
from neoteny.layers.groups import UnitGroup
from neoteny.metrics.gram import BATCHED_SIZE, Submit, effective_rank_by_gram, effective_rank_later
from neoteny.metrics.host_threads import host_threads
from neoteny.processors import processors
from neoteny.stacking.forward import ChainForward, is_chain
from neoteny.stacking.stack import Stack
from neoteny.suite.plasticity_probe import LEARNING_MEASURES
from neoteny.text import nearest
from neoteny.wiring.hidden import hidden_layers
from neoteny.wiring.read_point import by_unit, read_at
from neoteny.wiring.sandbox import few_examples

_CHUNK_BYTES = 2**29  # of a layer's activations on a GPU, where small networks are measured together
_BATCH = 32  # runs in one forward pass there, always as many: which algorithm a library takes may depend on it
_ENOUGH_PROCESSORS = 8  # that decompose large matrices faster than a GPU on which nothing else runs
_SPREAD = -7046029254386353131  # 2**64 over the golden ratio, as a signed number: its multiples have no pattern


@dataclass(frozen=True)
class Snapshot:
    """R networks at one moment: activations (R, examples, units) of each hidden layer, and their weights (R, ...)."""

    activations: Sequence[Tensor]
    positions: Sequence[Tensor]
    """The same with every position of a convolution as a row, so that a unit is a channel."""
    weights: Sequence[Tensor]
    repeats: Tensor
    """How often an example occurs, (R, examples), at its first place; 0 at the others. Probes are drawn with
    replacement, so that some examples occur twice."""


def dead_units(snapshot: Snapshot) -> Tensor:
    """Share of all hidden units that are zero on every example."""
    return _share_of_units(metrics.dead_share, snapshot)


def saturated_units(snapshot: Snapshot) -> Tensor:
    """Share of all hidden units that are within 0.01 of -1 or 1 on every example: those of tanh that hardly learn."""
    return _share_of_units(metrics.saturated_share, snapshot)


def effective_rank(snapshot: Snapshot) -> Tensor:
    """Effective rank of the activations, mean over hidden layers."""
    ranks = [effective_rank_by_gram(layer, snapshot.repeats) for layer in snapshot.activations]
    return torch.stack(ranks).mean(0)


def weight_magnitude(snapshot: Snapshot) -> Tensor:
    """Mean absolute weight, without biases."""
    return metrics.weight_magnitude(snapshot.weights, run_dims=1)


def linearised_units(snapshot: Snapshot) -> Tensor:
    """Share of all hidden units that are positive on 90% of the examples: ReLU units that are linear there."""
    return _share_of_units(metrics.linearised_share, snapshot)


def duplicate_units(snapshot: Snapshot) -> Tensor:
    """Share of all hidden units whose correlation with another unit of their layer is beyond 0.95."""
    return _share_of_units(metrics.duplicate_share, snapshot)


def distance_from_isometry(snapshot: Snapshot) -> Tensor:
    """How far the singular values of the scaled weight matrices are from 1, mean over matrices."""
    return metrics.distance_from_isometry(snapshot.weights, run_dims=1)


MEASURES: dict[str, Callable[[Snapshot], Tensor]] = {
    "dead_units": dead_units,
    "saturated_units": saturated_units,
    "linearised_units": linearised_units,
    "duplicate_units": duplicate_units,
    "effective_rank": effective_rank,
    "weight_magnitude": weight_magnitude,
    "distance_from_isometry": distance_from_isometry,
}
_OF_WEIGHTS = ("weight_magnitude", "distance_from_isometry")


def check_measures(names: Sequence[str]) -> None:
    """Refuse a name that is not a measure."""
    known = [*MEASURES, *LEARNING_MEASURES]
    for name in names:
        if name not in known:
            raise ValueError(f"Unknown measure {name!r}.{nearest(name, known)} Known are {', '.join(known)}.")


def _share_of_units(share: Callable[[Tensor], Tensor], snapshot: Snapshot) -> Tensor:
    """A share of each layer's units as one of all hidden units."""
    counts = [share(layer) * layer.shape[-1] for layer in snapshot.positions]
    return torch.stack(counts).sum(0) / sum(layer.shape[-1] for layer in snapshot.positions)


@torch.no_grad()
def measure(names: Sequence[str], stack: Stack, inputs: Tensor) -> dict[str, Tensor]:
    """Every named measure, (n,) float64 on the CPU, from inputs (n, examples, ...) on the stack's device.

    Measures of hidden units are nan for a network that has none, such as a linear baseline.

    Raises:
        ValueError: tracing cannot tell where the hidden units of the network are; the message names it.
    """
    return begin_measure(names, stack, inputs)()


@torch.no_grad()
def begin_measure(names: Sequence[str], stack: Stack, inputs: Tensor) -> Callable[[], dict[str, Tensor]]:
    """Begin to measure; the function that is returned waits for the rest and gives what `measure` gives.

    All that reads the networks is done, or queued on the device, on return: they may be trained on meanwhile.
    """
    groups = _hidden_units(stack, inputs) if any(name not in _OF_WEIGHTS for name in names) else ()
    found: dict[str, list[Callable[[], Tensor]]] = {name: [] for name in names}
    runs, together = len(inputs), _together(stack, inputs)
    for start in range(0, runs, together):
        stop = min(start + together, runs)
        snapshot = _take(stack, groups, inputs, start, stop, together > 1, count_repeats="effective_rank" in names)
        for name in names:
            needs = snapshot.weights if name in _OF_WEIGHTS else snapshot.activations
            if not needs:
                values = torch.full((stop - start,), torch.nan)
            elif name == "effective_rank" and inputs.is_cuda:
                found[name].append(_ranks_later(snapshot))
                continue
            else:
                values = MEASURES[name](snapshot)
            found[name].append(lambda values=values: values)
    return lambda: {
        name: torch.cat([each().to("cpu", torch.float64) for each in parts]) for name, parts in found.items()
    }


def _ranks_later(snapshot: Snapshot) -> Callable[[], Tensor]:
    """`effective_rank`, with the decompositions of each layer in threads of the host where that is faster."""
    ranks: list[Callable[[], Tensor]] = []
    for layer in snapshot.activations:
        on_host = min(layer.shape[-2:]) <= BATCHED_SIZE or processors() >= _ENOUGH_PROCESSORS
        submit: Submit | None = host_threads(layer.device).submit if on_host else None
        ranks.append(effective_rank_later(layer, snapshot.repeats, submit=submit))
    return lambda: torch.stack([rank() for rank in ranks]).mean(0)


_TRACED: weakref.WeakKeyDictionary[Stack, tuple[Hashable, tuple[UnitGroup, ...]]] = weakref.WeakKeyDictionary()


def _hidden_units(stack: Stack, inputs: Tensor) -> tuple[UnitGroup, ...]:
    """The layers of hidden units of a stack's networks, traced once, and again where a method rewrote the networks."""
    shapes = tuple((name, tensor.shape) for name, tensor in stack.view.tensors.items())
    if stack not in _TRACED or _TRACED[stack][0] != shapes:
        try:
            _TRACED[stack] = shapes, hidden_layers(stack.template, few_examples(inputs[0]))
        except ValueError as error:
            if isinstance(error.__cause__, Exception):  # the network itself raised: the user wants to see that
                raise error.__cause__ from None
            raise
    return _TRACED[stack][1]


def _together(stack: Stack, inputs: Tensor) -> int:
    """How many runs are measured together: one, but many small ones on a GPU. The stack's size does not matter."""
    examples, parameters = inputs.shape[1], stack.view.parameters.values()
    widest = max((tensor.shape[1] for tensor in parameters), default=1)
    linear = all(tensor.dim() <= 3 for tensor in parameters)
    if inputs.is_cuda and linear and min(widest, examples) <= BATCHED_SIZE:
        return max(1, _CHUNK_BYTES // (8 * examples * widest))
    return 1


def _take(
    stack: Stack, groups: Sequence[UnitGroup], inputs: Tensor, start: int, stop: int, many: bool, count_repeats: bool
) -> Snapshot:
    """The snapshot of runs start to stop - 1; `many`: read as one of many, also where a single run is left."""
    module, tensors = stack.template, stack.evaluation_tensors
    if many and _reads_linear(module, groups):
        layers = _read_together(module, groups, tensors, inputs, start, stop)
    else:
        runs = [
            _read(module, groups, {name: tensor[run] for name, tensor in tensors.items()}, inputs[run])
            for run in range(start, stop)
        ]
        layers = [torch.stack(units) for units in zip(*runs, strict=True)]  # (R, examples, units, what a unit has)
    parameters = dict(module.named_parameters())
    weights = [tensors[name][start:stop] for name, parameter in parameters.items() if parameter.dim() >= 2]
    repeats = torch.ones(stop - start, inputs.shape[1], device=inputs.device)
    if count_repeats:
        together = max(1, _CHUNK_BYTES // (8 * inputs[0].numel())) if inputs.is_cuda else 1
        repeats = torch.cat([_repeats(some) for some in inputs[start:stop].split(together)])
    positions = [layer.movedim(2, -1).flatten(1, -2) for layer in layers]
    return Snapshot([layer.flatten(2) for layer in layers], positions, weights, repeats)


def _reads_linear(module: nn.Module, groups: Sequence[UnitGroup]) -> bool:
    """Whether one pass of `ChainForward` shows all hidden units: they are read by linear layers of a chain."""
    return is_chain(module) and all(isinstance(module.get_submodule(read_at(group)), nn.Linear) for group in groups)


def _read_together(
    module: nn.Module, groups: Sequence[UnitGroup], tensors: dict[str, Tensor], inputs: Tensor, start: int, stop: int
) -> list[Tensor]:
    """Each layer's units (R, examples, units, features of a unit) of runs start to stop - 1, `_BATCH` in a pass."""
    forward = ChainForward(module, dict.fromkeys(map(read_at, groups)))
    parts: list[list[Tensor]] = [[] for _ in groups]
    training = module.training
    module.eval()
    try:
        for first in range(start, stop, _BATCH):
            runs = torch.arange(first, first + _BATCH, device=inputs.device).clamp_max(stop - 1)
            _, seen = forward({name: tensor[runs] for name, tensor in tensors.items()}, inputs[runs])
            for group, part in zip(groups, parts, strict=True):
                port = next(port for port in (*group.consumers, *group.norms) if port.module == read_at(group))
                assert port.features is not None
                units = seen[read_at(group)][: stop - first].flatten(1, -2)
                part.append(units[..., port.features.to(units.device)])
    finally:
        module.train(training)
    return [torch.cat(part) for part in parts]


def _read(module: nn.Module, groups: Sequence[UnitGroup], tensors: dict[str, Tensor], inputs: Tensor) -> list[Tensor]:
    """Each layer's units in one pass in evaluation mode, (examples, units, features and positions of a unit)."""
    seen: dict[str, list[Tensor]] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(_layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen.setdefault(name, []).append(args[0] if args else next(iter(kwargs.values())))

        return hook

    layers = {name: module.get_submodule(name) for name in map(read_at, groups)}
    handles = [layer.register_forward_pre_hook(keep(name), with_kwargs=True) for name, layer in layers.items()]
    training = module.training
    module.eval()
    try:
        functional_call(module, tensors, (inputs,))
    finally:
        for handle in handles:
            handle.remove()
        module.train(training)
    found = []
    for group in groups:
        calls = [by_unit(layers[read_at(group)], group, values) for values in seen[read_at(group)]]
        units = torch.cat(
            [each.unflatten(2, (len(inputs), -1)) for each in calls], 3
        )  # (units, features, examples, rest)
        found.append(units.permute(2, 0, 1, 3).flatten(2))
    return found


def _repeats(examples: Tensor) -> Tensor:
    """How often each example (R, examples, ...) occurs in its run, at its first place; 0 at the others."""
    bits = examples.flatten(2).to(torch.float64).view(torch.int64)
    factors = torch.arange(1, bits.shape[-1] + 1, device=bits.device) * _SPREAD | 1
    keys, order = torch.sort((bits * factors).sum(-1), stable=True)  # equal examples have equal keys
    fresh = torch.ones_like(keys, dtype=torch.bool)
    fresh[:, 1:] = keys[:, 1:] != keys[:, :-1]
    run, place = (~fresh).nonzero(as_tuple=True)  # few: only these are looked at closely
    fresh[run, place] = (bits[run, order[run, place]] != bits[run, order[run, place - 1]]).any(-1)
    group = fresh.cumsum(1) - 1
    counts = torch.zeros_like(keys).scatter_add(1, group, torch.ones_like(keys))
    return torch.zeros_like(keys).scatter(1, order, torch.where(fresh, counts.gather(1, group), 0)).float()
