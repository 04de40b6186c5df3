"""When units are replaced and how many: known on the host, whatever the data.

Ages tick by one and the number of eligible units follows from earlier counts, so no tensor of the network is read here
and nothing waits for a device. *Which* units are replaced is decided elsewhere, from their utilities.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

IntArray = np.ndarray
FloatArray = np.ndarray


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
        self.accumulator += self._growth
        most = self.accumulator[0] if len(self.accumulator) == 1 else self.accumulator.max()
        if most < 1.0:
            return None
        whole = np.floor(self.accumulator)
        self.accumulator -= whole
        # With count="layer" more units may be due than are eligible; what cannot be replaced is forgotten.
        counts = np.minimum(whole, self.eligible).astype(np.int64)
        self.eligible = self.eligible - counts
        self._add_births(self.step, counts)
        self._grow()
        return counts

    def state(self) -> dict[str, Any]:
        """What `load` needs besides the units' birth steps."""
        return {"step": self.step, "accumulator": self.accumulator.tolist()}

    def load(self, step: int, accumulator: list[float], born: IntArray) -> None:
        """Restore from `state()` and the birth steps (N, units)."""
        self.step = step
        self.accumulator = np.asarray(accumulator, dtype=np.float64)
        self._restore(born)

    def _grow(self) -> None:
        if self.count == "eligible":
            self._growth = self.replacement_rate * self.eligible
        else:
            self._growth = np.where(self.eligible > 0, self.replacement_rate * self.units, 0.0)

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
