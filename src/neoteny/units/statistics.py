"""Running statistics of units: mean activations (equations 3 and 4 of the paper) and contributions (equations 2, 5, 6).

Before this: `view` (live tensors and recorded activations). After it: the utilities of `ContinualBackprop`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from neoteny.layers.ports import ConsumerPort
from neoteny.layers.regions import ChosenUnits
from neoteny.units import numerics
from neoteny.units.magnitudes import Magnitudes
from neoteny.units.utilities import INCOMING, OUTGOING
from neoteny.units.view import LiveGroup, Reader, View

Statistics = dict[str, Any]
"""Of one group: `mean_activation` and `utility` (*R, U) before correction, `decay_power` (*R, U) the decay rate to the
power of the age, `born` (*R, U) the step of the last reset, `column_means` {consumer: (*R, U, repeat, taps)}."""


def new_statistics(view: View, group: LiveGroup, keep_column_means: bool) -> Statistics:
    """Statistics of units that are all zero steps old."""
    weight = view.tensor(group.producers[0].weight)
    dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
    shape = (*view.runs, group.units)
    zeros = torch.zeros(shape, dtype=dtype, device=weight.device)
    means = {port.key: zeros.new_zeros(*shape, port.repeat, port.taps) for port in group.means if keep_column_means}
    return {
        "mean_activation": zeros,
        "utility": zeros.clone(),
        "decay_power": torch.ones_like(zeros),
        "born": torch.zeros(shape, dtype=torch.int64, device=weight.device),
        "column_means": means,
    }


def batches_of(view: View, reader: Reader, dtype: torch.dtype) -> list[Tensor]:
    """As `read`; all features of the module, (*R, B, features, positions), where several groups share its input."""
    if view.shared_inputs.start(reader) is not None:
        return view.shared_inputs.batches(reader, dtype)
    return read(view, reader, dtype)


def read(view: View, reader: Reader, dtype: torch.dtype) -> list[Tensor]:
    """A group's activations since the last tick, one (*R, B, U, positions) a forward pass."""
    return [reader.split(inputs, len(view.runs)).to(dtype) for inputs in view.activations[reader.key]]


def update_means(
    view: View,
    group: LiveGroup,
    reader: Reader,
    statistics: Statistics,
    batches: list[Tensor],
    decay: float | tuple[float, ...],
) -> None:
    """One tick of the running means: f = decay * f + (1 - decay) * (mean over the examples).

    A unit whose mean is not finite (a batch with NaN in it) keeps what it had.
    """
    mean = statistics["mean_activation"]
    rate = view.per_run(decay, mean, axes=1)
    shared, means = view.shared_inputs, list[Tensor]()
    if (start := shared.start(reader)) is not None:
        observed = shared.unit_means(reader, start, mean.dtype)
    else:
        means = [numerics.example_mean(batch) for batch in batches]  # (*R, U, positions)
        over_positions = [each.squeeze(-1) if each.shape[-1] == 1 else each.mean(-1) for each in means]
        observed = numerics.average(over_positions, batches)
    before = move_mean(statistics, observed, rate)
    for port in group.means if statistics["column_means"] else ():
        kept: Tensor = statistics["column_means"][port.key]
        inputs = view.activations.get(port.key)
        if not inputs:
            kept.mul_(unchanged(statistics, before))
            continue
        if (start := shared.start(port)) is not None:
            shared.follow(port, start, statistics["column_means"], 1.0 - view.per_run(decay, mean, axes=3))
            continue
        seen = means
        if port is not reader:
            seen = [numerics.example_mean(part) for part in read(view, port, mean.dtype)]
        columns = [port.column_means(each, whole) for each, whole in zip(seen, inputs, strict=True)]
        move_columns(kept, numerics.average(columns, inputs), 1.0 - view.per_run(decay, mean, axes=3))


def move_mean(statistics: Statistics, observed: Tensor, rate: float | Tensor) -> Tensor:
    """Move the running means towards what was observed; returns the correction (*R, U) as it was before."""
    mean, power = statistics["mean_activation"], statistics["decay_power"]
    finite = torch.isfinite(observed)
    before = 1.0 - power
    if all_on_host(finite):
        power.mul_(rate)
        mean.lerp_(observed, 1.0 - rate)
    else:
        power.copy_(torch.where(finite, power * rate, power))
        mean.lerp_(torch.where(finite, observed, mean), 1.0 - rate)
    return before


def move_columns(kept: Tensor, observed: Tensor, weight: float | Tensor) -> None:
    """Move a consumer's column means towards what was observed, where that is finite."""
    kept.lerp_(torch.where(torch.isfinite(observed), observed, kept), weight)


def unchanged(statistics: Statistics, before: Tensor) -> Tensor:
    """What the column means of a consumer that did not run are multiplied by: corrected, they stay as they are."""
    return torch.where(before > 0.0, correction(statistics) / before, 1.0)[..., None, None]


def all_on_host(flags: Tensor) -> bool:
    """Whether all flags are known to be set; False on another device, which is not waited for."""
    return flags.device.type == "cpu" and bool(flags.all())


def correction(statistics: Statistics) -> Tensor:
    """1 - decay^age, (*R, U): what turns a running average that started at zero into a mean."""
    return 1.0 - statistics["decay_power"]


def contribution(
    view: View, group: LiveGroup, reader: Reader, magnitudes: Magnitudes, batches: list[Tensor], centre: Tensor | None
) -> Tensor:
    """Mean over examples of |h - centre| times the mean absolute outgoing weight, (*R, U).

    Through a flatten each position is weighed with its own column, then averaged. With several consumers the outgoing
    weights of all of them count alike.

    Args:
        view, group, reader: whose units, and where they are read.
        magnitudes: of the weights after the update.
        batches: what `batches_of` gives for the reader.
        centre: (*R, U) the mean activations; None for the uncentred contribution.
    """
    start = view.shared_inputs.start(reader) or 0
    return weigh(group, reader, magnitudes, mean_deviation(group, reader, batches, centre, start))


def mean_deviation(
    group: LiveGroup, reader: Reader, batches: list[Tensor], centre: Tensor | None, start: int = 0
) -> Tensor:
    """Mean over examples of |h - centre|, (*R, U, columns of the reader); `start`: the feature of the first unit."""
    deviations = [_deviation(batch, centre, reader, start, group.units) for batch in batches]
    return numerics.average(deviations, batches)


def weigh(group: LiveGroup, reader: Reader, magnitudes: Magnitudes, deviation: Tensor) -> Tensor:
    """Deviations (*R, U, columns) times the mean absolute outgoing weight, (*R, U)."""
    average = deviation if deviation.shape[-1] == 1 else deviation.mean(-1, keepdim=True)
    fan_out = sum(port.fan_out for port in group.consumers)
    if deviation.shape[-1] == 1 and (all_outgoing := magnitudes.outgoing_sums(group)) is not None:
        return (deviation.squeeze(-1) * all_outgoing).sum(0) / fan_out
    total: Tensor | None = None
    for port in group.consumers:
        outgoing = magnitudes.outgoing_sum(port)  # (*R, U, repeat)
        if port is reader and outgoing.shape[-1] == deviation.shape[-1]:
            share = deviation * outgoing
        else:
            share = average * outgoing
        share = share.squeeze(-1) if share.shape[-1] == 1 else share.mean(-1)
        total = share if total is None else total + share
    assert total is not None
    return total / fan_out


def instant_utility(
    group: LiveGroup, magnitudes: Magnitudes, terms: int, contributed: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """The utility of this tick alone, (*R, U).

    Args:
        group, magnitudes: whose units, and their weights after the update.
        terms: of the utility, see `utilities`; not RANDOM.
        contributed: the contribution, where ACTIVITY is among the terms.
        dtype: of the statistics.
    """
    utility: Tensor | float = 1.0
    if contributed is not None:
        utility = contributed
    elif terms & OUTGOING:
        total: Any = sum(magnitudes.outgoing_sum(port).mean(-1) for port in group.consumers)
        utility = total / sum(port.fan_out for port in group.consumers)
    if terms & INCOMING:
        # A unit without incoming weights is a constant: without this rule its utility would be 1 / 0.
        incoming = magnitudes.incoming_mean(group).to(dtype)
        utility = (utility / incoming).masked_fill(incoming == 0.0, 0.0)
    assert isinstance(utility, Tensor)
    return utility


def move_utility(statistics: Statistics, utility: Tensor, rate: float | Tensor) -> None:
    """Move the running utilities towards those of this tick, where these are finite."""
    running: Tensor = statistics["utility"]
    finite = torch.isfinite(utility)
    if not all_on_host(finite):
        utility = torch.where(finite, utility, running)
    running.lerp_(utility.to(running.dtype), 1.0 - rate)


def means_seen(statistics: Statistics, chosen: ChosenUnits) -> Callable[[ConsumerPort], Tensor]:
    """For each consumer the bias-corrected running means (M, repeat, taps) of what it sees of the chosen units."""
    remaining = correction(statistics)[chosen.index].clamp_min(torch.finfo(statistics["utility"].dtype).tiny)

    def means(port: ConsumerPort) -> Tensor:
        kept = statistics["column_means"].get(port.key)
        seen = statistics["mean_activation"][chosen.index][:, None, None] if kept is None else kept[chosen.index]
        return seen / remaining[:, None, None]

    return means


def start_again(statistics: Statistics, chosen: ChosenUnits, step: int) -> None:
    """Make the chosen units zero steps old."""
    for key in ("mean_activation", "utility"):
        chosen.put(statistics[key], 0.0)
    for means in statistics["column_means"].values():
        chosen.put(means, 0.0)
    chosen.put(statistics["decay_power"], 1.0)
    chosen.put(statistics["born"], step)


def has_columns(reader: Reader) -> bool:
    """Whether each position of a unit at a reader is a column of weights of its own (behind a flatten)."""
    return isinstance(reader, ConsumerPort) and reader.convolution is None


def _deviation(batch: Tensor, centre: Tensor | None, reader: Reader, start: int, units: int) -> Tensor:
    """(*R, U, columns): mean over examples, and over positions that are not columns of the reader."""
    distance = numerics.mean_deviation(batch, centre, start, units)
    return distance if has_columns(reader) or distance.shape[-1] == 1 else distance.mean(-1, keepdim=True)
