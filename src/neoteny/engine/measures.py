"""What is measured at the start of a task: the paper's three correlates of lost plasticity, for every run of a stack.

A measure is a function of a `Snapshot` (one run's hidden activations and weights) that gives one number. Add one by
writing the function and its line in `MEASURES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from neoteny import metrics
from neoteny.engine.sweep import nearest
from neoteny.stacking import ELEMENTWISE, Stack


@dataclass(frozen=True)
class Snapshot:
    """One network at one moment: activations (examples, units) of each hidden layer, and its weights."""

    activations: Sequence[Tensor]
    positions: Sequence[Tensor]
    """The same with every position of a convolution as a row, so that a unit is a channel."""
    weights: Sequence[Tensor]


def dead_units(snapshot: Snapshot) -> Tensor:
    """Share of all hidden units that are zero on every example."""
    counts = [metrics.dead_share(layer) * layer.shape[-1] for layer in snapshot.positions]
    return torch.stack(counts).sum() / sum(layer.shape[-1] for layer in snapshot.positions)


def effective_rank(snapshot: Snapshot) -> Tensor:
    """Effective rank of the activations, mean over hidden layers."""
    return torch.stack([metrics.effective_rank(layer) for layer in snapshot.activations]).mean()


def weight_magnitude(snapshot: Snapshot) -> Tensor:
    """Mean absolute weight, without biases."""
    return metrics.weight_magnitude(snapshot.weights)


MEASURES: dict[str, Callable[[Snapshot], Tensor]] = {
    "dead_units": dead_units,
    "effective_rank": effective_rank,
    "weight_magnitude": weight_magnitude,
}


def check_measures(names: Sequence[str]) -> None:
    """Refuse a name that is not a measure."""
    for name in names:
        if name not in MEASURES:
            known = list(MEASURES)
            raise ValueError(f"Unknown measure {name!r}.{nearest(name, known)} Known are {', '.join(known)}.")


@torch.no_grad()
def measure(names: Sequence[str], stack: Stack, inputs: Tensor) -> dict[str, Tensor]:
    """Every named measure, (n,) float64 on the CPU, from inputs (n, examples, ...)."""
    values: dict[str, list[Tensor]] = {name: [] for name in names}
    for run in range(len(inputs)):
        snapshot = _take(stack.module(run).eval(), inputs[run])
        for name in names:
            needs = snapshot.weights if name == "weight_magnitude" else snapshot.activations
            value = MEASURES[name](snapshot) if needs else torch.tensor(float("nan"))
            values[name].append(value.to("cpu", torch.float64))
    return {name: torch.stack(each) for name, each in values.items()}


def _take(module: nn.Module, inputs: Tensor) -> Snapshot:
    outputs: list[Tensor] = []

    def keep(_layer: nn.Module, _inputs: object, output: Tensor) -> None:
        outputs.append(output)

    handles = [
        layer.register_forward_hook(keep)
        for layer in module.modules()
        if isinstance(layer, ELEMENTWISE) and not isinstance(layer, nn.Identity)
    ]
    module(inputs)
    for handle in handles:
        handle.remove()
    positions = [output.movedim(1, -1).flatten(0, -2) if output.dim() > 2 else output for output in outputs]
    weights = [parameter for parameter in module.parameters() if parameter.dim() >= 2]
    return Snapshot([output.flatten(1) for output in outputs], positions, weights)
