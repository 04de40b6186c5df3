"""Whether a tick kept the promise of a unit group, worked out without the library's own indices.

What is taken from the library is what a user can read: which features of which modules a group names
(`plastic.wiring.groups`), and how old each unit is (`plastic.state_dict()`). From these, this file works out by itself
which elements of which tensor belong to the replaced units, and compares copies of all parameters, buffers and
optimizer state from before the tick with what is there after it:

- outgoing weights of replaced units are zero, except where the reader is itself a new unit, whose row was drawn;
- incoming biases are zero, and norms are as in a new model;
- incoming weights have the spread (standard deviation) that the same rows had in the new model;
- the consumers' mean pre-activation is what it was, on the inputs of the last pass (where the consumer has a bias, or a
  norm behind it whose running mean takes the place of one);
- Adam's moments of these elements are zero, and those of all others are unchanged, bit for bit;
- every other element of every parameter and buffer is unchanged, bit for bit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from zoo_parts.layouts import Model, Regions, key_of, mean_output

MEAN_TOLERANCE = 1e-4
"""Of the size of the pre-activations, in float64 arithmetic on float32 weights."""

SPREAD_SLACK = 0.02
"""Relative; five standard errors of both estimates come on top."""

_SEEN = ("weight", "weight_ih_l0", "weight_ih")
"""Weights that multiply what their module is given; the others of a recurrent layer meet its states."""


def same_bits(one: Tensor, other: Tensor) -> Tensor:
    """Where two tensors of one shape hold the same, nan included."""
    return (one == other) | ((one != one) & (other != other))


def spreads(model: Model, groups: Iterable[Any]) -> dict[tuple[str, str], tuple[float, int]]:
    """The standard deviation of each group's incoming weights, by group and producer, with their number."""
    found: dict[tuple[str, str], tuple[float, int]] = {}
    for group in groups:
        for port in group.producers:
            name = model.weight_of(port)
            values = model.tensors[name].detach()[model.rows(port, list(range(group.units)))].double()
            found[group.name, name] = (float(values.std()), values.numel())
    return found


def covered_share(model: Model, groups: Iterable[Any]) -> float:
    """The share of the model's parameters that lies in rows, columns and norms of its groups."""
    regions = model.regions({group: list(range(group.units)) for group in groups})
    inside = sum(int(regions.changed(name, value.shape).sum()) for name, value in model.parameters.items())
    return inside / max(1, sum(value.numel() for value in model.parameters.values()))


def ages(plastic: Any) -> dict[str, Tensor]:
    """The age of each unit of each group, in ticks, as the attachment's saved state tells."""
    state = plastic.state_dict()["states"][0]
    return {name: each["schedule"]["step"] - torch.as_tensor(each["born"]) for name, each in state.items()}


@contextmanager
def consumer_inputs(model: Model, groups: Iterable[Any]) -> Iterator[dict[str, list[Tensor]]]:
    """What each consumer is given from here on, by module name; the caller clears it before each pass."""
    names = {port.module for group in groups for port in group.consumers}
    seen: dict[str, list[Tensor]] = {name: [] for name in names}

    def keep(name: str, _: nn.Module, given: tuple[Any, ...]) -> None:
        if given and isinstance(given[0], Tensor):
            seen[name].append(given[0].detach().clone())

    hooks = [model.modules[name].register_forward_pre_hook(functools.partial(keep, name)) for name in names]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


class Tick:
    """One tick under observation: made before it, asked for faults after it.

    Args:
        model: the model.
        plastic: its attachment.
        optimizer: an Adam.
        fresh: `spreads` of the new model.
        inputs: what `consumer_inputs` saw in the pass before.
    """

    def __init__(
        self,
        model: Model,
        plastic: Any,
        optimizer: torch.optim.Optimizer,
        fresh: dict[tuple[str, str], tuple[float, int]],
        inputs: dict[str, list[Tensor]],
    ) -> None:
        self._model, self._plastic, self._optimizer = model, plastic, optimizer
        self._fresh, self._inputs = fresh, inputs
        self._before = {name: value.detach().clone() for name, value in model.tensors.items()}
        self._weights = {
            port.module: getattr(model.modules[port.module], key_of(port)).detach().clone()
            for group in plastic.wiring.groups
            for port in group.consumers
            if key_of(port) in _SEEN
        }
        self._state = self._copy_state()
        self._counts = dict(plastic.replaced)
        self._random = torch.get_rng_state()
        self.replaced: dict[str, int] = {}
        self.means_kept = 0

    def faults(self) -> list[str]:
        """What does not hold, one line each; `replaced` and `means_kept` are known afterwards."""
        age = ages(self._plastic)
        groups = {group.name: group for group in self._plastic.wiring.groups}
        chosen = {groups[name]: (age[name] == 0).nonzero().flatten().tolist() for name in groups}
        self.replaced = {group.name: len(units) for group, units in chosen.items()}
        found = []
        for name, count in self._plastic.replaced.items():
            if count - self._counts[name] != self.replaced[name]:
                found.append(f"{name}: {count - self._counts[name]} counted, {self.replaced[name]} of age 0")
        chosen = {group: units for group, units in chosen.items() if units}
        regions = self._model.regions(chosen)
        found += self._values(regions)
        found += self._spread(chosen, regions)
        found += self._means(chosen, regions)
        found += self._moments(regions)
        if not torch.equal(self._random, torch.get_rng_state()):
            found.append("torch's random state moved")
        return found

    def _copy_state(self) -> dict[str, dict[str, Any]]:
        return {
            name: {
                key: value.clone() if isinstance(value, Tensor) else value
                for key, value in self._optimizer.state.get(parameter, {}).items()
            }
            for name, parameter in self._model.parameters.items()
        }

    def _values(self, regions: Regions) -> list[str]:
        """Zero outgoing weights, fresh biases and norms, everything else as before."""
        found = []
        for name, before in self._before.items():
            after = self._model.tensors[name].detach()
            touched = regions.changed(name, before.shape)
            if name in regions.outgoing:
                columns = regions.outgoing[name]
                if name in regions.incoming:
                    columns = columns & ~regions.incoming[name]
                if name in regions.own:
                    columns = columns | regions.own[name]
                if bool((after[columns] != 0).any()):
                    found.append(f"{name}: {int((after[columns] != 0).sum())} outgoing weights are not zero")
            if name in regions.fixed:
                mask, value = regions.fixed[name]
                if bool((after[mask] != value).any()):
                    found.append(f"{name}: {int((after[mask] != value).sum())} values are not {value:g}")
            if name in regions.compensated:
                touched = touched | regions.compensated[name]
            moved = ~same_bits(before, after) & ~touched
            if bool(moved.any()):
                found.append(f"{name}: {int(moved.sum())} other values changed")
        return found

    def _spread(self, chosen: dict[Any, list[int]], regions: Regions) -> list[str]:
        """New incoming weights vary as those of the new model."""
        found = []
        for group, units in chosen.items():
            for port in group.producers:
                name = self._model.weight_of(port)
                mask = self._model.rows(port, units)
                if name in regions.outgoing:
                    mask = mask & ~regions.outgoing[name]
                values = self._model.tensors[name].detach()[mask].double()
                if values.numel() < 2:
                    continue
                spread, number = self._fresh[group.name, name]
                error = SPREAD_SLACK + 5 * (1 / math.sqrt(2 * values.numel()) + 1 / math.sqrt(2 * number))
                if abs(float(values.std()) - spread) > error * spread + 1e-12:
                    found.append(f"{name}: new weights spread {float(values.std()):.4g}, a new model's {spread:.4g}")
        return found

    def _means(self, chosen: dict[Any, list[int]], regions: Regions) -> list[str]:
        """The consumers' mean pre-activations, where their unit was not replaced itself."""
        found = []
        ports = {port.module: port for group in chosen for port in group.consumers if key_of(port) in _SEEN}
        for consumer, port in ports.items():
            module, inputs, bias = self._model.modules[consumer], self._inputs.get(consumer), self._model.bias_of(port)
            sign = 1.0
            if bias is None:  # what the norm behind takes away
                bias, sign = self._model.mean_behind(port), -1.0
            if bias is None or not inputs:
                continue
            shift, shift_before = sign * self._model.tensors[bias], sign * self._before[bias]
            now = getattr(module, key_of(port))
            before = mean_output(module, inputs, self._weights[consumer], shift_before)
            after = mean_output(module, inputs, now, shift)
            without = mean_output(module, inputs, now, shift_before)
            old = torch.ones(before.shape, dtype=torch.bool)
            if bias in regions.fixed:
                old &= ~regions.fixed[bias][0]
            size = float(before.square().mean().sqrt() + (without - before).square().mean().sqrt())
            worst = float((after - before)[old].abs().max()) if bool(old.any()) else 0.0
            if worst > MEAN_TOLERANCE * size + 1e-7:
                found.append(f"{consumer}: the mean pre-activation moved by {worst:.3g} (of {size:.3g})")
            self.means_kept += 1
        return found

    def _moments(self, regions: Regions) -> list[str]:
        """Adam's state: zero for the new elements, as before for the others."""
        found = []
        for name, parameter in self._model.parameters.items():
            now = self._optimizer.state.get(parameter, {})
            if now.keys() != self._state[name].keys():
                found.append(f"{name}: the optimizer's state has other entries")
                continue
            new = regions.changed(name, parameter.shape)
            for key, value in now.items():
                before = self._state[name][key]
                if not isinstance(value, Tensor) or value.shape != parameter.shape or value.dim() == 0:
                    if not torch.equal(torch.as_tensor(value), torch.as_tensor(before)):
                        found.append(f"{name}: {key} changed")
                    continue
                if bool((value[new] != 0).any()):
                    found.append(f"{name}: {key} is not fresh in {int((value[new] != 0).sum())} elements")
                if bool((~same_bits(value, before) & ~new).any()):
                    found.append(f"{name}: {key} of others changed")
        return found
