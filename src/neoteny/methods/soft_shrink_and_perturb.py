"""Soft shrink and perturb: a little of a newly drawn network after every update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from neoteny.methods.card import Card
from neoteny.methods.method import Method, State, check_number, count_update, slot
from neoteny.units.fresh import draw_fresh, start_of
from neoteny.units.view import View


@dataclass(frozen=True)
class SoftShrinkAndPerturb(Method):
    r"""Mixes a little of a newly drawn network into all parameters after every update (Juliani and Ash 2024).

    \(\theta \leftarrow (1 - a)\,\theta + a\,\theta'\), with another \(\theta'\) at every update: a pull towards the
    initial law, and noise. (With the same \(\theta'\) each time it would be a pull without noise.) The optimizer's
    state is kept. Each update draws a whole network, by counters, so that runs repeat; on a GPU these are many small
    launches per parameter, and an update takes 7 to 15 plain ones of a small network.

    Args:
        rate: \(a\), in [0, 1]; the authors use 1e-6 per mini-batch of PPO.

    Example:
        >>> SoftShrinkAndPerturb().rate
        1e-06
    """

    rate: float | tuple[float, ...] = 1e-6

    redraws_weights: ClassVar[bool] = True

    card: ClassVar[Card] = Card(
        "resets and projections of weights",
        "all parameters",
        "at every update",
        "two numbers per parameter",
        "Juliani and Ash 2024, A study of plasticity loss in on-policy deep reinforcement learning",
    )

    def __post_init__(self) -> None:
        check_number(self, "rate", 0.0, 1.0)

    def init(self, view: View) -> State:
        """The number of updates, and what is known of the first value of every parameter."""
        starts = {name: start_of(view, parameter) for name, parameter in view.parameters.items()}
        return {"step": 0, "parameters": starts}

    def step(self, view: View, state: State) -> None:
        """Draw a network, and move a little towards it."""
        count_update(state)
        if self.rate == 0.0:
            return
        parameters = view.parameters
        for name, parameter in parameters.items():
            slot(state, name, lambda parameter=parameter: start_of(view, parameter))
        fresh = draw_fresh(view, state["parameters"], parameters, state["step"], "soft_shrink_and_perturb")
        for name, parameter in parameters.items():
            parameter.lerp_(fresh[name], view.per_run(self.rate, parameter, view.axes(parameter)))
