"""Stochastic gradient descent with momentum over a View: `torch.optim.SGD`'s rule, for stacks of runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from neoteny.layers.regions import Region
from neoteny.methods.card import Card
from neoteny.methods.declaration import KernelState, KernelTerms, RecordedStep
from neoteny.methods.method import Method, State, check_number
from neoteny.units.view import View


@dataclass(frozen=True)
class SGD(Method):
    r"""Stochastic gradient descent, with or without momentum.

    \(v \leftarrow \mu v + g\), \(w \leftarrow w - \alpha v\).

    Args:
        step_size: \(\alpha\), at least 0.
        momentum: \(\mu\), in [0, 1); 0 keeps no state.

    Example:
        >>> SGD(0.01, momentum=0.9).momentum
        0.9
    """

    step_size: float | tuple[float, ...]
    momentum: float | tuple[float, ...] = 0.0

    is_optimizer: ClassVar[bool] = True
    follows_schedule: ClassVar[bool] = True

    card: ClassVar[Card] = Card(
        "optimizers", "all weights and biases", "at every update", "with momentum, one number per weight", ""
    )

    def __post_init__(self) -> None:
        check_number(self, "step_size")
        check_number(self, "momentum", 0.0, 1.0, below_high=True)

    def init(self, view: View) -> State:
        """A velocity for each parameter, if there is momentum."""
        if self.momentum == 0.0:
            return {}
        return {name: torch.zeros_like(parameter).detach() for name, parameter in view.parameters.items()}

    def step(self, view: View, state: State) -> None:
        """The update."""
        with torch.no_grad():
            for name, parameter in view.parameters.items():
                gradient = view.gradient(name)
                if gradient is None:
                    continue
                axes = view.axes(parameter)
                if self.momentum != 0.0:
                    if name not in state:  # unfrozen or added later
                        state[name] = torch.zeros_like(parameter).detach()
                    velocity = state[name]
                    gradient = velocity.mul_(view.per_run(self.momentum, parameter, axes)).add_(gradient)
                size = view.scheduled(view.per_run(self.step_size, parameter, axes))
                if isinstance(size, float):
                    parameter.add_(gradient, alpha=-size)
                else:
                    parameter.sub_(gradient * size)

    def on_reset(self, view: View, state: State, region: Region) -> None:
        """Velocity of the region to zero."""
        if region.name in state:
            region.write(state[region.name], 0.0)

    def kernel_terms(self) -> KernelTerms:
        """Plain SGD, or SGD with momentum."""
        rule = "sgd" if self.momentum == 0.0 else "momentum"
        return KernelTerms(optimizer=rule, step_size=self.step_size, momentum=self.momentum)

    def kernel_state(self, state: State) -> KernelState:
        """The velocity."""
        return KernelState(moments=(state,) if state else ())

    def recorded_step(self) -> RecordedStep:
        """The whole step."""
        return RecordedStep()
