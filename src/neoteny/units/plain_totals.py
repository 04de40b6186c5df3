"""PlainTotals: `Totals` of the commonest group, a linear layer read by one linear layer on the CPU, in compiled passes.

At small batches a tick is otherwise spent in the overhead of some forty small torch operations for each group. Whether
a group is served does not depend on what a rank was given, and what is moved towards the sums of all ranks is rounded
as Python rounds: so all ranks keep the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neoteny.jit import compiler
from neoteny.units.utilities import ACTIVITY, CENTRED, INCOMING, OUTGOING
from neoteny.units.view import LiveGroup, Magnitudes, View


class PlainTotals:
    """What one group has seen since the last tick; see `Totals`."""

    def __init__(
        self,
        view: View,
        group: LiveGroup,
        statistics: dict[str, Any],
        arrays: tuple[np.ndarray, np.ndarray],
        kernels: Kernels,
        terms: int,
    ) -> None:
        self._group, self._statistics, self._arrays = group, statistics, arrays
        self._kernels, self._terms = kernels, terms
        mean: Tensor = statistics["mean_activation"]
        recorded = view.own_activations[group.reader.key]
        self._inputs = [each.to(mean.dtype).contiguous().numpy().reshape(-1, group.units) for each in recorded]
        self.weight = float(sum(len(each) for each in self._inputs))
        self._mean, self._centre = np.zeros(group.units, mean.numpy().dtype), np.zeros(group.units)
        for each in self._inputs:
            kernels.add_rows(each, self._mean)

    @property
    def sums(self) -> list[Tensor]:
        """The sum over examples."""
        return [torch.from_numpy(self._mean)]

    @property
    def weights(self) -> list[float]:
        """The number of examples."""
        return [self.weight]

    def move_means(self, sums: Sequence[Tensor], counts: Sequence[Tensor | float], decay: float) -> None:
        """Move the running means towards those of all ranks."""
        mean, power = (self._statistics[key].numpy() for key in ("mean_activation", "decay_power"))
        self._kernels.move_mean(sums[0].numpy(), float(counts[0]), mean, power, self._centre, decay)

    def share(self, magnitudes: Magnitudes) -> Tensor:
        """The utility of this tick as this process sees it, times its examples."""
        deviation = np.zeros(self._group.units)
        found = np.zeros_like(self._mean)
        if self._terms & ACTIVITY:
            centre = self._centre if self._terms & CENTRED else deviation.copy()
            for each in self._inputs:
                self._kernels.add_deviations(each, centre, deviation)
        producer, consumer = self._group.producers[0], self._group.consumers[0]
        incoming, outgoing = self._arrays
        if self.weight:
            self._kernels.weigh(
                deviation, self.weight, incoming, producer.fan_in, outgoing, consumer.fan_out, self._terms, found
            )
        return torch.from_numpy(found)

    def move_utility(self, total: Tensor, weight: Tensor | float, decay: float) -> None:
        """Move the running utilities towards those of all ranks."""
        self._kernels.move_utility(total.numpy(), float(weight), self._statistics["utility"].numpy(), decay)


def plain_totals(
    view: View, group: LiveGroup, statistics: dict[str, Any], magnitudes: Magnitudes, terms: int
) -> PlainTotals | None:
    """The totals of a group of this kind, or None."""
    if not group.plain_linear or statistics["utility"].device.type != "cpu":
        return None
    kernels = compiled_parts()
    if kernels is None:
        return None
    incoming = magnitudes.sums(group.producers[0].weight).arrays
    outgoing = magnitudes.sums(group.consumers[0].weight).arrays
    if incoming is None or outgoing is None:
        return None
    return PlainTotals(view, group, statistics, (incoming[0][0], outgoing[1][0]), kernels, terms)


class Kernels:
    """The compiled passes; h is (B, U), all else (U,)."""

    def __init__(self, compile_: Callable[..., Any], exact: Callable[..., Any]) -> None:
        @compile_
        def add_rows(h, total):  # pragma: no cover - compiled
            for b in range(h.shape[0]):
                row = h[b]
                for i in range(h.shape[1]):
                    total[i] += row[i]

        @compile_
        def add_deviations(h, centre, total):  # pragma: no cover - compiled
            for b in range(h.shape[0]):
                row = h[b]
                for i in range(h.shape[1]):
                    total[i] += abs(row[i] - centre[i])

        @exact
        def move_mean(total, weight, mean, power, centre, eta):  # pragma: no cover - compiled
            for i in range(len(total)):
                observed = total[i] / weight
                if np.isfinite(observed):
                    power[i] *= eta
                    mean[i] += (1.0 - eta) * (observed - mean[i])
                centre[i] = mean[i] / (1.0 - power[i])

        @exact
        def weigh(deviation, weight, incoming, fan_in, outgoing, fan_out, terms, found):  # pragma: no cover - compiled
            for i in range(len(found)):
                utility = 1.0
                if terms & ACTIVITY:
                    utility = deviation[i] / weight
                if terms & OUTGOING:
                    utility *= outgoing[i] / fan_out
                if terms & INCOMING:
                    if incoming[i] == 0.0:
                        utility = 0.0
                    else:
                        utility /= incoming[i] / fan_in
                found[i] = utility * weight

        @exact
        def move_utility(total, weight, running, eta):  # pragma: no cover - compiled
            for i in range(len(total)):
                utility = total[i] / weight
                if np.isfinite(utility):
                    running[i] += (1.0 - eta) * (utility - running[i])

        self.add_rows, self.add_deviations = add_rows, add_deviations
        self.move_mean, self.weigh, self.move_utility = move_mean, weigh, move_utility


@functools.cache
def compiled_parts() -> Kernels | None:
    """The compiled passes, or None where numba is not installed."""
    compile_, exact = compiler(), compiler(exact=True)
    return None if compile_ is None or exact is None else Kernels(compile_, exact)
