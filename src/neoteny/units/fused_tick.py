"""One compiled pass for the commonest group: a linear layer read by one linear layer, on the CPU.

The same arithmetic as `units.update_means` and `units.contribution`, for all units at once: at batch size 1 a small
network's tick is otherwise spent in the overhead of some forty small torch operations. Other groups, other devices, and
machines without numba take the general path.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from neoteny.jit import compiler
from neoteny.units.magnitudes import Magnitudes
from neoteny.units.numerics import is_plain
from neoteny.units.utilities import ACTIVITY, CENTRED, GRADIENT, INCOMING, OUTGOING, RANDOM
from neoteny.units.view import LiveGroup, View


def measure_compiled(
    view: View,
    group: LiveGroup,
    statistics: dict[str, Any],
    magnitudes: Magnitudes,
    decay_rate: float | tuple[float, ...],
    terms: int,
) -> bool:
    """One tick of the running means and the utility of a group; False, and nothing done, if it is not of this kind.

    `terms`: of the utility, see `utilities`.
    """
    if not group.plain_linear or terms & GRADIENT:
        return False
    inputs = view.activations[group.reader.key]  # its one consumer, so the group ran if and only if that did
    if len(inputs) != 1 or not is_plain(inputs[0]) or inputs[0].dtype != statistics["utility"].dtype:
        return False
    kernel = compiled_tick()
    if kernel is None:
        return False
    producer, consumer = group.producers[0], group.consumers[0]
    incoming, outgoing = magnitudes.sums(producer.weight).arrays, magnitudes.sums(consumer.weight).arrays
    if incoming is None or outgoing is None:
        return False
    arrays = statistics.get("arrays")
    runs = view.runs[0] if view.runs else 1
    if arrays is None:
        shape = (runs, group.units)
        names = ("mean_activation", "utility", "decay_power")
        decay = np.broadcast_to(np.asarray(decay_rate, dtype=np.float64), (runs,)).copy()
        arrays = (*(statistics[name].numpy().reshape(shape) for name in names), decay)
        statistics["arrays"] = arrays
    mean, running, power, decay = arrays
    activations = inputs[0].numpy().reshape(runs, -1, group.units)
    kernel(
        activations,
        mean,
        running,
        power,
        decay,
        incoming[0],
        producer.fan_in,
        outgoing[1],
        consumer.fan_out,
        terms,
    )
    return True


@functools.cache
def compiled_tick() -> Callable[..., None] | None:
    """The compiled tick, or None where numba is not installed."""
    compile_ = compiler()
    if compile_ is None:
        return None

    @compile_
    def tick(h, mean, running, power, decay, incoming, fan_in, outgoing, fan_out, terms):  # pragma: no cover
        runs, examples, units = h.shape
        averages, deviations, centres = np.empty(units), np.zeros(units), np.zeros(units)
        for n in range(runs):
            eta = decay[n]
            # Row by row, as the activations lie: column by column a batch of a wide layer costs ten times as much.
            averages[:] = 0.0
            for b in range(examples):
                row = h[n, b]
                for i in range(units):
                    averages[i] += row[i]
            for i in range(units):
                averages[i] /= examples
                if np.isfinite(averages[i]):
                    power[n, i] *= eta
                    mean[n, i] += (1.0 - eta) * (averages[i] - mean[n, i])
                    if terms & CENTRED:
                        centres[i] = mean[n, i] / (1.0 - power[n, i])
            if terms & ACTIVITY:
                deviations[:] = 0.0
                for b in range(examples):
                    row = h[n, b]
                    for i in range(units):
                        deviations[i] += abs(row[i] - centres[i])
            for i in range(units):
                if terms & RANDOM or not np.isfinite(averages[i]):
                    continue
                instant = 1.0
                if terms & ACTIVITY:
                    instant = deviations[i] / examples
                if terms & OUTGOING:
                    instant *= outgoing[n, i] / fan_out
                if terms & INCOMING:
                    if incoming[n, i] > 0.0:
                        instant /= incoming[n, i] / fan_in
                    elif incoming[n, i] == 0.0:
                        instant = 0.0
                    else:
                        instant = np.nan
                if np.isfinite(instant):
                    running[n, i] += (1.0 - eta) * (instant - running[n, i])

    return tick
