"""Totals: one tick of continual backpropagation from sums over passes and over ranks.

Equal to `ContinualBackprop`'s own tick up to the order of sums. What a tick needs of the activations are sums: of h for
the means, and of |h - c| for the utility, where c is the running mean *after* this update. So there are two
rounds: c needs the sums of all ranks, and the sums of |h - c| need c. Each round is one reduction for all groups
together; a utility that is not centred needs only the first. Utilities are reduced, not deviations: the statistics of
all ranks then have the same bits, whatever the ranks computed from their weights.

Where inputs are forgotten after each pass, c is not known yet. `Deviations` says what is kept instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from neoteny.units import numerics
from neoteny.units import statistics as units
from neoteny.units.device_tick import Settings
from neoteny.units.ranks import Ranks
from neoteny.units.utilities import ACTIVITY, CENTRED, RANDOM, UTILITIES
from neoteny.units.view import LiveGroup, Reader, View

State = dict[str, Any]


class Deviations:
    """The sum of |h - c| over examples, for a centre c that is known only after h is forgotten.

    |h - c| is s (h - c), with s the sign of h - c. The sign is taken at a guess of c, the mean with the passes so far;
    the sums of s and of s h then give the sum for any c. It is wrong only for activations between the guess and c, by
    twice their distance to c. h is counted from the first guess, which keeps the sums small; what equals that guess
    (a silent unit is 0, and so is its mean) is counted apart, since its sign is not known.

    Args:
        like: (U, columns) for shape and type.
    """

    def __init__(self, like: Tensor) -> None:
        self._first: Tensor | None = None
        self._signed, self._signs, self._equal = (torch.zeros_like(like) for _ in range(3))
        self._examples = 0

    def add(self, batch: Tensor, guess: Tensor | None) -> None:
        """Add one pass: batch (B, U, positions), guess (U,); without a guess, c is 0."""
        columns = self._signs.shape[-1]
        self._examples += batch.shape[0] * batch.shape[-1] // columns
        if guess is None:
            self._signed += _over_examples(batch.abs(), columns)
            return
        if self._first is None:
            self._first = guess
        from_first = batch - self._first.unsqueeze(-1)
        signs = torch.sign(from_first - (guess - self._first).unsqueeze(-1))
        equal = from_first == 0
        signs.masked_fill_(equal, 0.0)
        self._signs += _over_examples(signs, columns)
        self._signed += _over_examples(signs.mul_(from_first), columns)
        self._equal += _over_examples(equal.to(batch.dtype), columns)

    def mean(self, centre: Tensor | None) -> Tensor:
        """(U, columns) the mean over examples of |h - centre|."""
        if centre is None or self._first is None:
            return self._signed / self._examples
        moved = (centre - self._first).unsqueeze(-1)
        return (self._signed - moved * self._signs + moved.abs() * self._equal) / self._examples


class Totals:
    """What one group has seen since the last tick.

    Args:
        group: whose units.
        statistics: of the group.
        keep_inputs: whether `deviation` has the inputs themselves, so that it is exact.
    """

    def __init__(self, group: LiveGroup, statistics: State, keep_inputs: bool) -> None:
        self._group, self._statistics = group, statistics
        like: Tensor = statistics["mean_activation"]
        self.mean = torch.zeros_like(like)
        self.weight = 0.0
        """Examples times positions."""
        self.columns = {key: torch.zeros_like(means) for key, means in statistics["column_means"].items()}
        self.column_weights = dict.fromkeys(self.columns, 0.0)
        self.reader: Reader | None = None
        self._batches: list[Tensor] = []
        self._deviations: Deviations | None = None
        self._keep_inputs = keep_inputs

    def add(self, view: View, decay: float, terms: int) -> None:
        """Add what this process has recorded."""
        own = view.own_activations
        reader = self._group.reading(own)
        if reader is None:
            return
        self.reader = reader
        means: list[Tensor] = []
        for inputs in own[reader.key]:
            batch = reader.split(inputs, 0).to(self.mean.dtype)  # (B, U, positions)
            mean = numerics.example_mean(batch)
            means.append(mean)
            count = batch.shape[0] * batch.shape[-1]
            self.mean.add_(mean.squeeze(-1) if mean.shape[-1] == 1 else mean.mean(-1), alpha=count)
            self.weight += count
            if terms & ACTIVITY and self._keep_inputs:
                self._batches.append(batch)
            elif terms & ACTIVITY:
                self._guess(batch, reader, decay, terms)
        for port in self._group.means if self.columns else ():
            inputs = own.get(port.key) or []
            seen = means
            if port is not reader:
                seen = [numerics.example_mean(port.split(each, 0).to(self.mean.dtype)) for each in inputs]
            for mean, each in zip(seen, inputs, strict=True):
                count = each.numel() / port.width
                self.columns[port.key].add_(port.column_means(mean, each), alpha=count)
                self.column_weights[port.key] += count

    def deviation(self, centre: Tensor | None) -> Tensor:
        """(U, columns of the reader) the mean over this process's examples of |h - centre|."""
        assert self.reader is not None
        if self._deviations is not None:
            return self._deviations.mean(centre)
        return units.mean_deviation(self._group, self.reader, self._batches, centre)

    def _guess(self, batch: Tensor, reader: Reader, decay: float, terms: int) -> None:
        if self._deviations is None:
            columns = batch.shape[-1] if units.has_columns(reader) else 1
            self._deviations = Deviations(self.mean.new_zeros(len(self.mean), columns))
        guess = None
        if terms & CENTRED:
            mean, power = self._statistics["mean_activation"], self._statistics["decay_power"]
            guess = torch.lerp(mean, self.mean / self.weight, 1.0 - decay) / (1.0 - power * decay)
        self._deviations.add(batch, guess)


def add_passes(view: View, state: State, settings: Settings) -> None:
    """Add what was recorded since the last call to the sums of every group, in `view.totals`."""
    assert view.totals is not None
    totals: dict[str, Totals] = view.totals.setdefault(id(state), {})
    for group in view.groups:
        if group.name not in totals:
            totals[group.name] = Totals(group, state[group.name], keep_inputs=False)
        totals[group.name].add(view, float(settings.decay), UTILITIES[settings.utility])  # pyright: ignore[reportArgumentType]


def measure_totals(view: View, state: State, settings: Settings) -> list[LiveGroup]:
    """One tick of the running means and utilities; returns the groups that were measured, on every rank the same."""
    ranks = view.ranks
    if ranks is None or not ranks.first_only:
        return _measure(view, state, settings, ranks)
    measured = _measure(view, state, settings, None) if ranks.rank == 0 else []
    tensors = [tensor for group in view.groups for tensor in _tensors(state[group.name])]
    if not tensors:
        return []
    found, flags = ranks.of_first(_alike(tensors), [group in measured for group in view.groups])
    for tensor, value in zip(tensors, found, strict=True):
        tensor.copy_(value)
    return [group for group, flag in zip(view.groups, flags, strict=True) if flag]


def _measure(view: View, state: State, settings: Settings, ranks: Ranks | None) -> list[LiveGroup]:
    terms, decay = UTILITIES[settings.utility], float(settings.decay)  # pyright: ignore[reportArgumentType]
    totals: dict[str, Totals] = {} if view.totals is None else view.totals.pop(id(state), {})
    groups = [group for group in view.groups if view.trainable(group)]
    for group in groups:
        if group.name not in totals:
            totals[group.name] = Totals(group, state[group.name], keep_inputs=True)
            if view.totals is None:
                totals[group.name].add(view, decay, terms)
    if ranks is None:
        groups = [group for group in groups if totals[group.name].weight]
    if not groups:
        return []
    magnitudes = view.magnitudes()

    def shares(centred: bool) -> Iterator[Tensor]:
        """Each group's utility as this process sees it, times its weight; zeros where it saw nothing."""
        for group in groups:
            mine, mean = totals[group.name], state[group.name]["mean_activation"]
            if not mine.weight:
                yield torch.zeros_like(mean)
                continue
            contributed = None
            if terms & ACTIVITY:
                assert mine.reader is not None
                centre = mean / units.correction(state[group.name]) if centred else None
                contributed = units.weigh(group, mine.reader, magnitudes, mine.deviation(centre))
            utility = units.instant_utility(group, magnitudes, terms, contributed, mean.dtype)
            yield utility.to(mean.dtype) * mine.weight

    at_once = not terms & (CENTRED | RANDOM)
    seen = [total for group in groups for total in (totals[group.name].mean, *totals[group.name].columns.values())]
    weights = [
        weight
        for group in groups
        for weight in (totals[group.name].weight, *totals[group.name].column_weights.values())
    ]
    sums, counts = _sum(ranks, [*seen, *(shares(centred=False) if at_once else ())], weights)
    whole: list[Tensor | float] = []
    places = iter(zip(sums, counts, strict=False))
    for group in groups:
        whole.append(_move_means(state[group.name], totals[group.name], places, decay))
    if not terms & RANDOM:
        found = sums[len(seen) :] if at_once else _sum(ranks, list(shares(centred=True)), [])[0]
        for group, utility, weight in zip(groups, found, whole, strict=True):
            units.move_utility(state[group.name], utility / weight, decay)
    # What ran here ran. Only for the others a device must be asked whether they ran elsewhere.
    return [group for group, weight in zip(groups, whole, strict=True) if totals[group.name].weight or bool(weight > 0)]


def _move_means(
    statistics: State, totals: Totals, places: Iterator[tuple[Tensor, Tensor | float]], decay: float
) -> Tensor | float:
    """Move a group's running means towards those of all ranks; returns the weight of all ranks."""
    total, weight = next(places)
    before = units.move_mean(statistics, total / weight, decay)
    for key in totals.columns:
        kept: Tensor = statistics["column_means"][key]
        columns, count = next(places)
        if isinstance(count, Tensor) and not totals.column_weights[key]:  # it ran on other ranks, or on none
            stays = kept * units.unchanged(statistics, before)
            units.move_columns(kept, columns / count, 1.0 - decay)
            kept.copy_(torch.where(count > 0, kept, stays))
        elif totals.column_weights[key]:
            units.move_columns(kept, columns / count, 1.0 - decay)
        else:
            kept.mul_(units.unchanged(statistics, before))
    return weight


def _sum(
    ranks: Ranks | None, parts: Sequence[Tensor], weights: Sequence[float]
) -> tuple[list[Tensor], list[Tensor] | list[float]]:
    """The sums over all ranks, in one reduction, in the parts' own types."""
    if ranks is None:
        return list(parts), list(weights)
    sums, counts = ranks.sum(_alike(parts), weights)
    return [each.to(part.dtype) for each, part in zip(sums, parts, strict=True)], counts


def _alike(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors in one type that holds them all."""
    wide = any(each.dtype == torch.float64 for each in tensors)
    return [each.to(torch.float64 if wide else torch.float32) for each in tensors]


def _tensors(statistics: State) -> list[Tensor]:
    names = ("mean_activation", "utility", "decay_power")
    return [*(statistics[name] for name in names), *statistics["column_means"].values()]


def _over_examples(values: Tensor, columns: int) -> Tensor:
    """(B, U, positions) -> (U, columns): sums over examples, and over positions that are not columns."""
    total = values.sum(0)
    return total if total.shape[-1] == columns else total.sum(-1, keepdim=True)
