"""Magnitudes: sums of absolute weights or gradients on both sides of every unit; each tensor is read once per tick."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from neoteny.layers.ports import ConsumerPort, ProducerPort
from neoteny.units import numerics

if TYPE_CHECKING:
    from neoteny.units.view import LiveGroup, View


class Magnitudes:
    """Absolute incoming (mean) and outgoing (sum) weights of units; each weight is read once per tick and serves both.

    The paper sums both; a mean gives the same ranking inside a layer.

    Args:
        view: whose units.
        of: from a weight's name to the tensor that is summed; the weight itself by default.
    """

    def __init__(self, view: View, of: Callable[[str], Tensor] | None = None) -> None:
        self._view = view
        self._of = view.tensor if of is None else of
        self._sums: dict[str, numerics.Sums] = {}
        self._by_feature: dict[tuple[str, bool], Tensor] = {}
        self._joined: Tensor | None = None
        self._places: dict[str, Tensor | None] = {}
        wanted: dict[str, list[bool]] = {}
        ports: dict[str, ProducerPort | ConsumerPort] = {}
        for group in view.groups:
            for port in group.producers:
                wanted.setdefault(port.weight, [False, False])[port.input_first] = True
                ports[port.weight] = port
            for port in group.consumers:
                wanted.setdefault(port.weight, [False, False])[not port.input_first] = True
                ports[port.weight] = port
        self._passes = {
            name: numerics.AbsoluteSums(math.prod(view.runs) * port.groups, port.rows_of_a_group, *wanted[name])
            for name, port in ports.items()
        }

    def forget(self) -> None:
        """The weights have changed."""
        self._sums.clear()
        self._by_feature.clear()
        self._joined = None

    def incoming_mean(self, group: LiveGroup) -> Tensor:
        """(*R, U) mean absolute incoming weight, over all producers."""
        sums = [port.per_unit_rows(self._features(port, not port.input_first)) for port in group.producers]
        total = sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)
        return total / sum(port.fan_in * port.repeat for port in group.producers)

    def outgoing_sum(self, port: ConsumerPort) -> Tensor:
        """(*R, U, repeat) sum of absolute outgoing weights to one consumer, for each of a unit's columns."""
        return port.per_unit(self._features(port, port.input_first))

    def outgoing_sums(self, group: LiveGroup) -> Tensor | None:
        """(consumers, U) the same for all consumers of a group at once, for a network of its own.

        None where it would not be quicker (one or two consumers), or where a unit has several columns.
        """
        if group.name not in self._places:
            ports = group.consumers
            together = not self._view.runs and len(ports) > 2 and all(port.repeat == 1 for port in ports)
            self._places[group.name] = self._find_places(group) if together else None
        places = self._places[group.name]
        if places is None:
            return None
        if self._joined is None:
            ports = {port.weight: port for each in self._view.groups for port in each.consumers}
            self._joined = torch.cat([self._features(port, port.input_first) for port in ports.values()])
        return self._joined[places.to(self._joined.device)]

    def _find_places(self, group: LiveGroup) -> Tensor:
        """Where the units' sums lie, (consumers, U), when the features of all consumers follow each other."""
        widths = {port.weight: port.width for each in self._view.groups for port in each.consumers}
        starts = dict(zip(widths, itertools.accumulate(widths.values(), initial=0), strict=False))
        return torch.stack([port.features[:, 0].cpu() + starts[port.weight] for port in group.consumers])

    def sums(self, weight: str) -> numerics.Sums:
        """Row sums (blocks, first axis / groups) and column sums (blocks, second axis * taps) of one weight."""
        found = self._sums.get(weight)
        if found is None:
            found = self._sums[weight] = self._passes[weight](self._of(weight))
        return found

    def _features(self, port: ProducerPort | ConsumerPort, first_axis: bool) -> Tensor:
        """(*R, width) the sums of a port's features, which the weight's first or its second axis counts."""
        key = (port.weight, first_axis)
        if key not in self._by_feature:
            sums = self.sums(port.weight)
            found = sums.rows if first_axis else sums.columns
            assert found is not None
            found = found.reshape(*self._view.runs, port.width, -1)
            self._by_feature[key] = found.squeeze(-1) if found.shape[-1] == 1 else found.sum(-1)
        return self._by_feature[key]
