"""When units are replaced and how many: known on the host, because it does not depend on the data.

Ages tick by one and the number of eligible units follows from earlier counts, so no tensor of the network is read here
and nothing waits for a device. *Which* units are replaced is decided elsewhere, from their utilities.

`Schedule` advances all runs by one step, `count_ahead` one run after the other by a block of steps, for kernels. Both
follow the same two rules, `growth` and `take_whole`.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from neoteny.jit import compiler

IntArray = np.ndarray
FloatArray = np.ndarray


def growth(rate: Any, eligible: Any, units: int, by_layer: bool) -> Any:
    """Units that fall due in one step, of runs (N,) or of one run: a share of the eligible units, or of all units.

    Example:
        >>> float(growth(0.1, 3, 10, by_layer=False)), float(growth(0.1, 3, 10, by_layer=True))
        (0.30000000000000004, 1.0)
        >>> float(growth(0.1, 0, 10, by_layer=True))  # nothing is due while no unit is eligible
        0.0
    """
    return rate * (units * (eligible > 0) if by_layer else eligible)


def take_whole(due: Any, eligible: Any) -> Any:
    """What stays due, and the number of units to replace now.

    With `by_layer` more units may be due than are eligible; what cannot be replaced is forgotten.
    """
    whole = np.floor(due)
    return due - whole, np.minimum(whole, eligible)


class Schedule:
    """The replacement schedule of one group of units, for N runs in lock-step.

    Args:
        units: units in the group.
        replacement_rate: (N,) share of units replaced at each step.
        maturity_threshold: (N,) a unit is eligible when its age exceeds this.
        count: "eligible" accumulates rate * (eligible units), "layer" rate * units while any unit is eligible.
    """

    def __init__(self, units: int, replacement_rate: FloatArray, maturity_threshold: IntArray, count: str) -> None:
        self.units = units
        self.replacement_rate = replacement_rate
        self.maturity_threshold = maturity_threshold
        self.count = count
        self.device: Any = None
        """Where it is counted instead (`device/schedule.py`); this is then a copy that `refresh` brings up to date."""
        self.step = 0
        self.accumulator = np.zeros(replacement_rate.shape)
        self._restore(np.zeros((*replacement_rate.shape, units), dtype=np.int64))

    def tick(self) -> IntArray | None:
        """Advance one step; the number of units to replace in each run, or None where that is zero for all."""
        self.step += 1
        matured = self._maturing.pop(self.step, None)
        if matured is not None:
            self.eligible = self.eligible + matured
            self._grow()
        if self._one is None:
            self.accumulator += self._growth
            most = self.accumulator.max()
        else:  # the same sum: NumPy takes longer for one number than all else here
            most = self.accumulator[0] = self.accumulator.item(0) + self._one
        if most < 1.0:
            return None
        self.accumulator, whole = take_whole(self.accumulator, self.eligible)
        counts = whole.astype(np.int64)
        self.eligible = self.eligible - counts
        self._add_births(self.step, counts)
        self._grow()
        return counts

    def refresh(self) -> None:
        """Bring the numbers up to date where they are counted on a device; this waits for it."""
        if self.device is not None:
            self.device.pull()

    def state(self) -> dict[str, Any]:
        """What `load` needs besides the units' birth steps."""
        return {"step": self.step, "accumulator": self.accumulator.tolist()}

    def load(self, step: int, accumulator: list[float], born: IntArray) -> None:
        """Restore from `state()` and the birth steps (N, units)."""
        self.step = step
        self.accumulator = np.asarray(accumulator, dtype=np.float64)
        self._restore(born)

    def _grow(self) -> None:
        self._growth = growth(self.replacement_rate, self.eligible, self.units, self.count == "layer")
        self._one: float | None = self._growth.item(0) if len(self._growth) == 1 else None

    def _restore(self, born: IntArray) -> None:
        """Rebuild the numbers of eligible and maturing units from birth steps (N, units)."""
        self._maturing: dict[int, IntArray] = defaultdict(lambda: np.zeros(len(born), dtype=np.int64))
        self.eligible = np.zeros(len(born), dtype=np.int64)
        mature_at = born + self.maturity_threshold[:, None] + 1
        for run, steps in enumerate(mature_at):
            self.eligible[run] = int((steps <= self.step).sum())
            for step, number in zip(*np.unique(steps[steps > self.step], return_counts=True), strict=True):
                self._maturing[int(step)][run] += number
        self._grow()

    def _add_births(self, step: int, counts: IntArray) -> None:
        for run in np.flatnonzero(counts):
            self._maturing[int(step + self.maturity_threshold[run] + 1)][run] += counts[run]


_growth: Any = growth  # globals that `compiled_count_ahead` compiles
_take_whole: Any = take_whole


def count_ahead(
    born: IntArray,
    accumulator: FloatArray,
    rate: FloatArray,
    threshold: IntArray,
    by_layer: bool,
    step: int,
    counts: IntArray,
) -> None:
    """Fill counts (N, steps) of one group of units: what `Schedule.tick` gives at the steps after `step`.

    Args:
        born: (N, units) birth steps, ascending.
        accumulator: (N,) units due but not yet replaced; changed in place.
        rate, threshold: (N,), as for `Schedule`.
        by_layer: whether `count` is "layer".
        step: steps before the first of the block.
        counts: filled where a unit is due; zeros before.
    """
    runs, steps = counts.shape
    units = born.shape[1]
    mature_at = np.empty(units + steps, np.int64)  # a queue: units mature in the order of their birth
    number = np.empty(units + steps, np.int64)
    for run in range(runs):
        mature_at[:units] = born[run] + (threshold[run] + 1)
        number[:units] = 1
        first, last, eligible = 0, units, 0
        due = accumulator[run]
        for k in range(steps):
            now = step + 1 + k
            while first < last and mature_at[first] <= now:
                eligible += number[first]
                first += 1
            due += _growth(rate[run], eligible, units, by_layer)
            if due >= 1.0:
                due, whole = _take_whole(due, eligible)
                count = int(whole)
                counts[run, k] = count
                eligible -= count
                mature_at[last] = now + threshold[run] + 1
                number[last] = count
                last += 1
        accumulator[run] = due


@functools.cache
def compiled_count_ahead() -> Callable[..., None]:
    """Compiled exactly: with other rounding, what is due at exactly 1 would come one step late."""
    global _growth, _take_whole  # not closed over: see `jit.compiler`
    compile_ = compiler(exact=True)
    if compile_ is None:
        return count_ahead
    _growth, _take_whole = compile_(growth), compile_(take_whole)
    return compile_(count_ahead)
