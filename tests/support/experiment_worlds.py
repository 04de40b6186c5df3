"""Made-up results of an experiment: a world in which its claims hold, and changes of some of its curves.

A world lists settings with their curves; a curve is knots, equally spaced over the tasks. A change names the settings
it is about by method and details and gives them another curve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from neoteny import experiments
from neoteny.report.claim import Outcome
from neoteny.suite.sweep import Detail
from support.frames import Curve, make_frame

Knots = tuple[float, ...]


@dataclass(frozen=True)
class Change:
    """Other knots for the settings whose method and details have these values."""

    where: Mapping[str, Detail]
    knots: Knots


@dataclass(frozen=True)
class World:
    """The settings of an experiment: method, details, knots.

    Args:
        metric: of the knots.
        settings: whose curves make all claims hold.
        tasks: how many.
        quiet, loud: noise that hides nothing, and noise that hides everything.
        loud_seed: of the loud noise; one in twenty intervals misses its mean, and a test must not meet that one.
        scale: of its results.
    """

    metric: str
    settings: Sequence[tuple[str, Mapping[str, Detail], Knots]]
    tasks: int
    quiet: float
    loud: float
    loud_seed: int = 0
    scale: str = "paper"

    def frame(
        self, *changes: Change, runs: int = 8, noise: float | None = None, scale: str = "", seed: int = 0
    ) -> pd.DataFrame:
        """Results of this world with some curves changed; the last change that fits counts."""
        curves = []
        used = set()
        for method, details, knots in self.settings:
            described = {"method": method, **details}
            for number, change in enumerate(changes):
                if all(described.get(name) == value for name, value in change.where.items()):
                    knots = change.knots
                    used.add(number)
            line = np.interp(np.linspace(0, 1, self.tasks), np.linspace(0, 1, len(knots)), knots)
            curves.append(Curve(method, details, {self.metric: line}))
        unused = [change for number, change in enumerate(changes) if number not in used]
        if unused:
            raise KeyError(f"no setting fits {unused}")
        noise = self.quiet if noise is None else noise
        return make_frame(curves, runs=runs, tasks=self.tasks, noise=noise, scale=scale or self.scale, seed=seed)

    def hide(self) -> pd.DataFrame:
        """The world under loud noise."""
        return self.frame(noise=self.loud, seed=self.loud_seed)


def judge(experiment: str, claim: str, frame: pd.DataFrame) -> Outcome:
    """The outcome of one claim of an experiment."""
    return {one.name: one for one in experiments.load(experiment).claims}[claim].evaluate(frame).outcome
