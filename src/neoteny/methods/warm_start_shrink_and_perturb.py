"""Shrink and perturb at a task boundary, the form that Ash and Adams (2020) published for warm starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from neoteny.layers.regions import Region
from neoteny.methods.card import Card
from neoteny.methods.method import State, check_choice, check_flag, check_number, slot
from neoteny.methods.occasional import OccasionalMethod
from neoteny.units.fresh import draw_fresh, start_of
from neoteny.units.view import View


@dataclass(frozen=True)
class WarmStartShrinkAndPerturb(OccasionalMethod):
    r"""Shrinks all parameters at a boundary and adds a share of fresh or of initial ones (Ash and Adams 2020).

    \(\theta \leftarrow s\,\theta + p\,\theta'\), and the optimizer starts again. \(\theta'\) is a newly drawn network
    (Ash and Adams), or the network that training began with (`towards="initial"`, as baselines of FIRE and of Hare and
    Tortoise have it). Two published special cases: s=0, p=1 is a new network, s=1, p=0 a plain warm start.
    `ShrinkAndPerturb` is the form with noise after every update, `SoftShrinkAndPerturb` that with a little of a new
    network after every update.

    Args:
        shrink: \(s\), in [0, 1]; the default of the authors' code is 0.4 (others use 0.6).
        perturb: \(p\), at least 0; the default of the authors' code is 0.1 (others use 0.01).
        towards: "fresh", a network drawn at each boundary, or "initial", the same one each time. When another method
            resets an element, its new value is its initial one.
        period: also act every `period` updates; 0 for boundaries alone.
        at_boundaries: act at task boundaries.
        clear_optimizer: put the optimizer's state back to its start, as Ash and Adams do. What the baselines with
            `towards="initial"` do with it is not verified.

    Example:
        >>> WarmStartShrinkAndPerturb.towards_initial(0.8).perturb
        0.8
    """

    shrink: float | tuple[float, ...] = 0.4
    perturb: float | tuple[float, ...] = 0.1
    towards: str = "fresh"
    period: int = 0
    at_boundaries: bool = True
    clear_optimizer: bool = True

    redraws_weights: ClassVar[bool] = True

    card: ClassVar[Card] = Card(
        "resets and projections of weights",
        "all parameters",
        "at a task boundary",
        "two numbers per parameter; towards the initial weights, a copy of them",
        "Ash and Adams 2020, On warm-starting neural network training",
    )

    def __post_init__(self) -> None:
        check_number(self, "shrink", 0.0, 1.0)
        check_number(self, "perturb")
        check_choice(self, "towards", ("fresh", "initial"))
        self.check_moments()
        check_flag(self, "clear_optimizer")

    @classmethod
    def towards_initial(cls, share: float) -> WarmStartShrinkAndPerturb:
        r"""Mixes a share of the network that training began with into all parameters at a task boundary.

        \(\theta \leftarrow (1 - c)\,\theta + c\,\theta_0\). The authors of FIRE find 0.8 the best \(c\) of this
        baseline in all their tasks.
        """
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0.0 <= share <= 1.0:
            raise ValueError(f"{cls.__name__}.towards_initial: share must be a number in [0, 1]; got {share!r}.")
        return cls(1.0 - share, share, towards="initial")

    def init(self, view: View) -> State:
        """What is known of the first value of every parameter."""
        state: State = {**super().init(view), "parameters": {}}
        for name, parameter in view.parameters.items():
            self._first(view, state, name, parameter)
        return state

    def step(self, view: View, state: State) -> None:
        """Remember parameters that joined late; act if a period ends."""
        for name, parameter in view.parameters.items():
            self._first(view, state, name, parameter)
        super().step(view, state)

    def act(self, view: View, state: State) -> None:
        """Shrink, add, and let the optimizer start again."""
        parameters = view.parameters
        targets: dict[str, Any] = {
            name: self._first(view, state, name, parameter) for name, parameter in parameters.items()
        }
        if self.towards == "fresh":
            targets = draw_fresh(view, targets, parameters, state["acts"], "shrink_and_perturb")
        for name, parameter in parameters.items():
            axes = view.axes(parameter)
            shrink, perturb = (view.per_run(value, parameter, axes) for value in (self.shrink, self.perturb))
            parameter.mul_(shrink).add_(targets[name] * perturb)
            if self.clear_optimizer:
                view.restart_optimizer(name)

    def on_reset(self, view: View, state: State, region: Region) -> None:
        """The new value of a reset element is its initial value."""
        first = state["parameters"].get(region.name)
        if isinstance(first, Tensor):
            region.copy(view.tensor(region.name), first)

    def _first(self, view: View, state: State, name: str, parameter: Tensor) -> Tensor | dict[str, Tensor]:
        if self.towards == "initial":
            return slot(state, name, lambda: parameter.detach().clone())
        return slot(state, name, lambda: start_of(view, parameter))
