"""Adam over a View, with a step count for every weight that a reset clears (the paper's last appendix)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from neoteny.layers.regions import Region
from neoteny.methods.adam_update import ElementSteps, adam_update
from neoteny.methods.card import Card
from neoteny.methods.declaration import KernelState, KernelTerms
from neoteny.methods.method import Method, State, check_betas, check_number
from neoteny.units.view import View


@dataclass(frozen=True)
class Adam(Method):
    r"""Adam with a step count per weight (Kingma and Ba 2015).

    \(m \leftarrow \beta_1 m + (1 - \beta_1) g\), \(v \leftarrow \beta_2 v + (1 - \beta_2) g^2\), and with
    \(\hat m = m / (1 - \beta_1^t)\), \(\hat v = v / (1 - \beta_2^t)\) the update is
    \(w \leftarrow w - \alpha\,\hat m / (\sqrt{\hat v} + \epsilon)\). A reset weight starts again with moments and step
    count zero. With one count per tensor its first update would be \((1 - \beta_1) / \sqrt{1 - \beta_2}\) step sizes
    long, 3.2 with the usual betas.

    Args:
        step_size: \(\alpha\), at least 0.
        betas: decay rates of both moments, each in [0, 1).
        eps: added to the root of the second moment.

    Example:
        >>> Adam(1e-3).betas
        (0.9, 0.999)
    """

    step_size: float | tuple[float, ...]
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    is_optimizer: ClassVar[bool] = True
    follows_schedule: ClassVar[bool] = True
    counts_steps: ClassVar[bool] = True
    shared_by_runs: ClassVar[tuple[str, ...]] = ("betas",)

    card: ClassVar[Card] = Card(
        "optimizers",
        "all weights and biases",
        "at every update",
        "two numbers per weight",
        "Kingma and Ba 2015, Adam: a method for stochastic optimization",
    )

    def __post_init__(self) -> None:
        check_number(self, "step_size")
        check_number(self, "eps", single=True)
        check_betas(self)

    def init(self, view: View) -> State:
        """Both moments of each parameter, and the number of updates."""
        state: State = {"step": 0, "moments": {}, "resets": {}}
        for name, parameter in view.parameters.items():
            state["moments"][name] = _moments(parameter)
        return state

    def step(self, view: View, state: State) -> None:
        """The update."""
        state["step"] += 1
        run_axes = len(view.runs)
        updated: list[str] = []
        with torch.no_grad():
            for name, parameter in view.parameters.items():
                gradient = view.gradient(name)
                if gradient is None:
                    continue
                updated.append(name)
                if name not in state["moments"]:  # unfrozen or added later: its first update is now
                    state["moments"][name] = _moments(parameter)
                    self.on_reset(view, {**state, "step": state["step"] - 1}, Region.whole(name, parameter, run_axes))
                moments = state["moments"][name]
                self._decay(view, parameter)
                adam_update(
                    parameter,
                    gradient,
                    moments["first"],
                    moments["second"],
                    ElementSteps(state["step"], state["resets"].get(name), run_axes),
                    view.scheduled(view.per_run(self.step_size, parameter, view.axes(parameter))),
                    self.betas,
                    self.eps,
                )
        if len(updated) < len(state["moments"]):
            ElementSteps.miss(state["resets"], state["moments"], updated)

    def _decay(self, view: View, parameter: Tensor) -> None:
        """What a kind of Adam does to the weights beside Adam's own update, which does not depend on them."""

    def restart_count(self, view: View, state: State) -> None:
        """Step counts to zero, moments kept."""
        state["step"] = 0
        ElementSteps.restart(state["resets"])

    def on_reset(self, view: View, state: State, region: Region) -> None:
        """Moments and step count of the region to zero."""
        if region.name not in state["moments"]:
            return
        moments = state["moments"][region.name]
        for moment in moments.values():
            region.write(moment, 0.0)
        resets = state["resets"].setdefault(region.name, {})
        ElementSteps.record(resets, moments["first"], region, state["step"])

    def kernel_terms(self) -> KernelTerms:
        """Adam with a step count for every weight."""
        return KernelTerms(optimizer="adam", step_size=self.step_size, betas=self.betas, eps=self.eps)

    def kernel_state(self, state: State) -> KernelState:
        """Both moments, the number of updates, and the reset steps."""
        moments = (
            {name: each["first"] for name, each in state["moments"].items()},
            {name: each["second"] for name, each in state["moments"].items()},
        )
        return KernelState(moments=moments, clock=state, resets=state["resets"])

    def recorded_step(self) -> str:
        """It cannot be recorded: the corrections follow from a number on the host."""
        return "Adam counts its updates on the host"


def _moments(parameter: Tensor) -> State:
    return {"first": torch.zeros_like(parameter).detach(), "second": torch.zeros_like(parameter).detach()}
