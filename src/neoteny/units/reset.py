"""`reset_units`: the only code that rewrites a unit.

A method decides which units. This file rewrites, in each of their ports, incoming weights, biases, norm statistics,
outgoing weights and the consumers' biases, and tells the optimizer and every method which elements are new.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from neoteny.layers.ports import ConsumerPort
from neoteny.layers.regions import ChosenUnits
from neoteny.units.view import LiveGroup, View

Means = Callable[[ConsumerPort], Tensor]
"""From a consumer to the mean input (M, repeat, taps) that it sees of the chosen units."""


@torch.no_grad()
def reset_units(
    view: View,
    group: LiveGroup,
    chosen: ChosenUnits,
    step: int,
    *,
    means: Means | None = None,
    by: object = None,
) -> None:
    """Replace the chosen units of one group by new ones: `clear_outgoing`, then `draw_incoming`.

    Args:
        view, group: where the units live.
        chosen: which units; `ChosenUnits.of(mask)` for a mask (*R, U).
        step: the step of the draw, counted by the method.
        means: with it, each unit's mean contribution is added to the biases of its consumers, which keeps their mean
            pre-activation.
        by: the method that resets; every other one is told (`Method.on_units_reset`).
    """
    clear_outgoing(view, group, chosen, means)
    draw_incoming(view, group, chosen, step, by)


@torch.no_grad()
def clear_outgoing(view: View, group: LiveGroup, chosen: ChosenUnits, means: Means | None) -> None:
    """The first half of a reset: consumers keep their mean, and no longer read the units.

    The compensation reads the old outgoing weights, so it comes before they are cleared. Several groups all go through
    this half first: a consumer's row that is new at the same tick must not keep what is added to its bias here.
    """
    for port in group.consumers:
        outgoing = port.region(chosen)
        weight = view.tensor(port.weight)
        if means is not None and port.bias is not None:
            port.compensate(weight, view.tensor(port.bias), chosen, means(port))
        elif means is not None and port.running_mean is not None:
            port.compensate(weight, view.tensor(port.running_mean), chosen, means(port), sign=-1.0)
        view.write(outgoing, 0.0)
        view.was_reset(outgoing)


@torch.no_grad()
def draw_incoming(view: View, group: LiveGroup, chosen: ChosenUnits, step: int, by: object) -> None:
    """The second half: new incoming weights, biases and norms.

    Where a layer feeds its own units (a recurrence), a weight from one replaced unit to another, or to itself, is an
    outgoing one: it is zero.
    """
    for port, distribution in zip(group.producers, group.initial, strict=True):
        incoming, bias = port.regions(chosen)
        seeds = view.seeds[chosen.runs] if chosen.runs else view.seeds
        _, rows = port.indices(chosen)
        fresh = distribution.draw(seeds.unsqueeze(-1), step, port.weight, rows, port.fan_in)
        view.write(incoming, fresh.unflatten(-1, port.row_shape))
        for consumer in group.consumers:
            if consumer.weight == port.weight:
                view.write(consumer.region(chosen), 0.0)
        view.was_reset(incoming)
        if bias is not None:
            view.write(bias, 0.0)
            view.was_reset(bias)
    for port in group.norms:
        for region, value in port.regions(chosen):
            view.write(region, value)
            view.was_reset(region)
    view.units_were_reset(group, chosen, by)
