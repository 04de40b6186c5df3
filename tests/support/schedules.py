"""A replacement schedule together with the birth step of every unit."""

from __future__ import annotations

import numpy as np

from neoteny.units.schedule import Schedule


def make(units: int, rates: list[float], thresholds: list[int], count: str) -> Schedule:
    return Schedule(units, np.array(rates, dtype=np.float64), np.array(thresholds, dtype=np.int64), count)


class Simulation:
    """A schedule together with the birth step of every unit; `order` ranks units, eligible or not."""

    def __init__(self, schedule: Schedule, order: np.ndarray | None = None) -> None:
        self.schedule = schedule
        runs = len(schedule.replacement_rate)
        self.born = np.zeros((runs, schedule.units), dtype=np.int64)
        self.order = np.arange(schedule.units) if order is None else order

    def eligible_before(self) -> np.ndarray:
        """Which units will be eligible at the next tick, (N, units)."""
        return self.schedule.step + 1 - self.born > self.schedule.maturity_threshold[:, None]

    def tick(self) -> np.ndarray:
        """The number replaced in each run; the first eligible units in `order` are born again."""
        eligible = self.eligible_before()
        counts = self.schedule.tick()
        if counts is None:
            return np.zeros(len(self.born), dtype=np.int64)
        for run, count in enumerate(counts):
            due = [unit for unit in self.order if eligible[run, unit]][:count]
            self.born[run, due] = self.schedule.step
        return counts
