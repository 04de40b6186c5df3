"""The friction of every task of the Slippery Ant: log-uniform in a range, and a function of (seed, task) alone.

Before this: `problems/draws.py`; after it: `problem.py` checks its arguments here, and `env.py` sets the frictions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from neoteny.problems.draws import draw
from neoteny.text import nearest

CHANGES = ("step", "episode")
"""When friction changes: at the step, mid-episode; or at the start of the next episode."""
LARGEST_SEED = 2**63 - 1


def check_range(friction_range: Sequence[float]) -> tuple[float, float]:
    """The bounds (low, high) of a range of frictions, refused unless they are finite and 0 < low <= high."""
    bounds = tuple(friction_range) if isinstance(friction_range, (tuple, list)) else ()
    if len(bounds) != 2 or not all(_is_positive(bound) for bound in bounds) or bounds[0] > bounds[1]:
        raise ValueError(
            "friction_range must be two numbers (low, high), both finite and above 0 because friction is drawn "
            f"log-uniformly, with low <= high; got {friction_range!r}."
        )
    return float(bounds[0]), float(bounds[1])


def check_first(first_friction: float | None) -> None:
    """Refuse a friction of the first task that is neither None (the simulator's standard value) nor positive."""
    if first_friction is not None and not _is_positive(first_friction):
        raise ValueError(
            "first_friction must be a finite number above 0, or None for the simulator's standard value; "
            f"got {first_friction!r}."
        )


def check_change(change: str) -> None:
    """Refuse a time of change other than "step" and "episode"."""
    if change not in CHANGES:
        raise ValueError(
            f"change must be one of {', '.join(map(repr, CHANGES))}; got {change!r}.{nearest(change, CHANGES)}"
        )


def check_steps(name: str, steps: int) -> None:
    """Refuse a number of steps that is not a whole number above 0."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"{name} must be a whole number of at least 1; got {steps!r}.")


def draw_friction(seed: int, task: int, friction_range: Sequence[float], first: float) -> float:
    """The friction of a task (from 0) of the run of this seed: `first` in task 0, then log-uniform in the range.

    Example:
        >>> draw_friction(3, 0, (1e-4, 1e4), first=1.5)
        1.5
        >>> 1e-4 <= draw_friction(3, 1, (1e-4, 1e4), first=1.5) <= 1e4
        True
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"A seed must be a whole number from 0 to 2**63 - 1; got {seed!r}.")
    low, high = check_range(friction_range)
    if task == 0:
        return first
    share = draw([seed], 0, "ant.friction", task, task + 1).item()
    drawn = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    return min(max(drawn, low), high)  # exp(log(low)) may be a rounding below low


class FrictionClock:
    """Counts the steps of a run over all its episodes and knows the friction of each.

    Step t (from 0) belongs to task t // period_steps. With change "step" it has the friction of that task; with
    "episode" all steps of an episode have the friction of its first step.

    Attributes:
        seed: of the run.
        steps: taken so far.
        task: whose friction is in force.
        friction: in force.
    """

    def __init__(self, period_steps: int, friction_range: Sequence[float], first: float, change: str) -> None:
        check_steps("period_steps", period_steps)
        check_first(first)
        check_change(change)
        self.period_steps, self.first = period_steps, first
        self.friction_range = check_range(friction_range)
        self.mid_episode = change == "step"
        self.seed = self.steps = self.task = 0
        self.friction = first

    def start(self, seed: int) -> None:
        """Begin the sequence of this seed."""
        draw_friction(seed, 0, self.friction_range, self.first)
        self.seed, self.steps, self.task, self.friction = seed, 0, 0, self.first

    def enter_episode(self) -> None:
        """Bring task and friction to those of the next step, the first of an episode."""
        task = self.steps // self.period_steps
        if task != self.task:
            self.task = task
            self.friction = draw_friction(self.seed, task, self.friction_range, self.first)

    def enter_step(self) -> None:
        """Bring task and friction to those of the next step."""
        if self.mid_episode:
            self.enter_episode()

    def state(self) -> dict[str, Any]:
        """The clock's state, as plain numbers."""
        return {"seed": self.seed, "steps": self.steps, "task": self.task, "friction": self.friction}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.seed, self.steps, self.task, self.friction = (state[k] for k in ("seed", "steps", "task", "friction"))


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
