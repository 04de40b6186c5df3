"""OccasionalMethod: a method that acts when a task begins, every `period` updates, or both.

A subclass has the settings `period` and `at_boundaries`, and writes `act`.
"""

from __future__ import annotations

from neoteny.methods.method import BoundaryData, Method, State, check_flag, check_number, count_update
from neoteny.units.view import View


class OccasionalMethod(Method):
    """A method that changes the network at few moments.

    Attributes:
        period: updates between two acts, or 0 for no clock.
        at_boundaries: whether it acts when a task begins.
    """

    period: int
    at_boundaries: bool

    def check_moments(self) -> None:
        """Refuse impossible values of `period` and `at_boundaries`."""
        check_number(self, "period", 0, whole=True, single=True)
        check_flag(self, "at_boundaries")

    def act(self, view: View, state: State) -> None:
        """Change the network; `state["acts"]`, which counts from 1, is the step of its draws."""
        raise NotImplementedError(f"{type(self).__name__} must say what it does: write act().")

    def init(self, view: View) -> State:
        """The number of updates, and how often it has acted."""
        return {"step": 0, "acts": 0}

    def step(self, view: View, state: State) -> None:
        """Act if a period ends with this update."""
        if count_update(state, self.period or 1) and self.period > 0:
            self._act(view, state)

    def task_boundary(self, view: View, state: State, data: BoundaryData | None = None) -> None:
        """Act, if it is to act at boundaries."""
        if self.at_boundaries:
            self._act(view, state)

    def describe(self, view: View, state: State) -> str:
        """How often it has acted."""
        return f"acted {state['acts']} times"

    def _act(self, view: View, state: State) -> None:
        state["acts"] += 1
        self.act(view, state)
