"""Totals: one tick of continual backpropagation from sums over passes and over ranks.

Equal to `ContinualBackprop`'s own tick up to the order of sums. What a tick needs of the activations are sums: of h for
the means, and of |h - c| for the utility, where c is the running mean *after* this update. So there are two
rounds: c needs the sums of all ranks, and the sums of |h - c| need c. Each round is one reduction for all groups
together; a utility that is not centred needs only the first. Utilities are reduced, not deviations: the statistics of
all ranks then have the same bits, whatever the ranks computed from their weights.

Where inputs are forgotten after each pass, c is not known yet. `Deviations` says what is kept instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from neoteny.units import numerics
from neoteny.units import statistics as units
from neoteny.units.device_tick import Settings
from neoteny.units.magnitudes import Magnitudes
from neoteny.units.plain_totals import PlainTotals, plain_totals
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
        terms: of the utility.
        keep_inputs: whether deviations are taken from the inputs themselves, so that they are exact.
    """

    def __init__(self, group: LiveGroup, statistics: State, terms: int, keep_inputs: bool) -> None:
        self._group, self._statistics, self._terms = group, statistics, terms
        like: Tensor = statistics["mean_activation"]
        self._mean = torch.zeros_like(like)
        self.weight = 0.0
        """Examples times positions."""
        self._columns = {key: torch.zeros_like(means) for key, means in statistics["column_means"].items()}
        self._column_weights = dict.fromkeys(self._columns, 0.0)
        self._reader: Reader | None = None
        self._batches: list[Tensor] = []
        self._deviations: Deviations | None = None
        self._keep_inputs = keep_inputs

    @property
    def sums(self) -> list[Tensor]:
        """The sums over examples: of the units, then of the columns of each consumer."""
        return [self._mean, *self._columns.values()]

    @property
    def weights(self) -> list[float]:
        """By what each sum has to be divided."""
        return [self.weight, *self._column_weights.values()]

    def add(self, view: View, decay: float) -> None:
        """Add what this process has recorded."""
        own = view.own_activations
        reader = self._group.reading(own)
        if reader is None:
            return
        self._reader = reader
        means: list[Tensor] = []
        for inputs in own[reader.key]:
            batch = reader.split(inputs, 0).to(self._mean.dtype)  # (B, U, positions)
            mean = numerics.example_mean(batch)
            means.append(mean)
            count = batch.shape[0] * batch.shape[-1]
            self._mean.add_(mean.squeeze(-1) if mean.shape[-1] == 1 else mean.mean(-1), alpha=count)
            self.weight += count
            if self._terms & ACTIVITY and self._keep_inputs:
                self._batches.append(batch)
            elif self._terms & ACTIVITY:
                self._guess(batch, reader, decay)
        for port in self._group.means if self._columns else ():
            inputs = own.get(port.key) or []
            seen = means
            if port is not reader:
                seen = [numerics.example_mean(port.split(each, 0).to(self._mean.dtype)) for each in inputs]
            for mean, each in zip(seen, inputs, strict=True):
                count = each.numel() / port.width
                self._columns[port.key].add_(port.column_means(mean, each), alpha=count)
                self._column_weights[port.key] += count

    def move_means(self, sums: Sequence[Tensor], counts: Sequence[Tensor | float], decay: float) -> None:
        """Move the running means towards those of all ranks."""
        before = units.move_mean(self._statistics, sums[0] / counts[0], decay)
        for key, columns, count in zip(self._columns, sums[1:], counts[1:], strict=True):
            kept: Tensor = self._statistics["column_means"][key]
            if self._column_weights[key]:
                units.move_columns(kept, columns / count, 1.0 - decay)
                continue
            stays = kept * units.unchanged(self._statistics, before)
            if isinstance(count, Tensor):  # it ran on other ranks, or on none
                units.move_columns(kept, columns / count, 1.0 - decay)
                stays = torch.where(count > 0, kept, stays)
            kept.copy_(stays)

    def share(self, magnitudes: Magnitudes) -> Tensor:
        """The utility of this tick as this process sees it, times its weight; zeros if it saw nothing."""
        mean: Tensor = self._statistics["mean_activation"]
        if not self.weight:
            return torch.zeros_like(mean)
        contributed = None
        if self._terms & ACTIVITY:
            assert self._reader is not None
            centre = mean / units.correction(self._statistics) if self._terms & CENTRED else None
            if self._deviations is None:
                deviation = units.mean_deviation(self._group, self._reader, self._batches, centre)
            else:
                deviation = self._deviations.mean(centre)
            contributed = units.weigh(self._group, self._reader, magnitudes, deviation)
        utility = units.instant_utility(self._group, magnitudes, self._terms, contributed, mean.dtype)
        return utility.to(mean.dtype) * self.weight

    def move_utility(self, total: Tensor, weight: Tensor | float, decay: float) -> None:
        """Move the running utilities towards those of all ranks."""
        units.move_utility(self._statistics, total / weight, decay)

    def _guess(self, batch: Tensor, reader: Reader, decay: float) -> None:
        if self._deviations is None:
            columns = batch.shape[-1] if units.has_columns(reader) else 1
            self._deviations = Deviations(self._mean.new_zeros(len(self._mean), columns))
        guess = None
        if self._terms & CENTRED:
            mean, power = self._statistics["mean_activation"], self._statistics["decay_power"]
            guess = torch.lerp(mean, self._mean / self.weight, 1.0 - decay) / (1.0 - power * decay)
        self._deviations.add(batch, guess)


def add_passes(view: View, state: State, settings: Settings) -> None:
    """Add what was recorded since the last call to the sums of every group, in `view.totals`."""
    assert view.totals is not None
    totals: dict[str, Totals] = view.totals.setdefault(id(state), {})
    for group in view.groups:
        if group.name not in totals:
            totals[group.name] = Totals(group, state[group.name], UTILITIES[settings.utility], keep_inputs=False)
        totals[group.name].add(view, _one(settings.decay))


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
    terms, decay = UTILITIES[settings.utility], _one(settings.decay)
    groups = [group for group in view.groups if view.trainable(group)]
    magnitudes = view.magnitudes()
    kept: dict[str, Totals] = {} if view.totals is None else view.totals.pop(id(state), {})
    totals = [
        kept.get(group.name) or _totals(view, group, state[group.name], magnitudes, terms, decay) for group in groups
    ]
    if ranks is None:
        groups = [group for group, each in zip(groups, totals, strict=True) if each.weight]
        totals = [each for each in totals if each.weight]
    if not groups:
        return []
    at_once = not terms & (CENTRED | RANDOM)
    seen = [total for each in totals for total in each.sums]
    early = [each.share(magnitudes) for each in totals] if at_once else []
    sums, counts = _sum(ranks, [*seen, *early], [weight for each in totals for weight in each.weights])
    whole: list[Tensor | float] = []
    place = 0
    for each in totals:
        own = slice(place, place + len(each.weights))
        each.move_means(sums[own], counts[own], decay)
        whole.append(counts[place])
        place = own.stop
    if not terms & RANDOM:
        shares = sums[place:] if at_once else _sum(ranks, [each.share(magnitudes) for each in totals], [])[0]
        for each, total, weight in zip(totals, shares, whole, strict=True):
            each.move_utility(total, weight, decay)
    # What ran here ran. Only for the others a device must be asked whether they ran elsewhere.
    found = zip(groups, totals, whole, strict=True)
    return [group for group, each, weight in found if each.weight or bool(weight > 0)]


def _totals(
    view: View, group: LiveGroup, statistics: State, magnitudes: Magnitudes, terms: int, decay: float
) -> Totals | PlainTotals:
    """What a group has seen at this tick, with its inputs; nothing where sums were kept instead."""
    plain = plain_totals(view, group, statistics, magnitudes, terms) if view.totals is None else None
    if plain is not None:
        return plain
    made = Totals(group, statistics, terms, keep_inputs=True)
    if view.totals is None:
        made.add(view, decay)
    return made


def _one(decay: float | tuple[float, ...]) -> float:
    assert isinstance(decay, (int, float))  # a user's module is one run
    return float(decay)


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
