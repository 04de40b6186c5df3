"""AdaUPGD: UPGD with Adam's direction in the place of the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from neoteny.layers.regions import Region
from neoteny.methods.adam_update import ElementSteps
from neoteny.methods.card import Card
from neoteny.methods.method import State, check_betas, check_number, slot
from neoteny.methods.upgd import UPGD
from neoteny.units.view import View


@dataclass(frozen=True)
class AdaUPGD(UPGD):
    r"""UPGD with Adam's moments in the place of the gradient (Elsayed and Mahmood 2024).

    The scaled utility \(\bar u\) of a weight is that of `UPGD`. With Adam's corrected moments \(\hat m, \hat v\),
    \(w \leftarrow (1 - \alpha\lambda) w - c\,\alpha\,(\frac{\hat m}{\sqrt{\hat v} + \epsilon} + \xi)(1 - \bar u)\).
    A reset weight's average, moments and step counts start again. It costs what UPGD and Adam cost together.

    Args:
        step_size: \(\alpha\), at least 0. For PPO the authors use 3e-4.
        decay_rate: of the utility's average, in [0, 1). For PPO 0.999.
        noise_std: \(\sigma\) of \(\xi\), at least 0. For PPO 0.001.
        weight_decay: \(\lambda\), at least 0.
        factor: \(c\); the authors use 2, so that an unused weight (\(\bar u = 1/2\)) moves as under Adam.
        scale: what utilities are divided by, as for `UPGD`.
        protect: False perturbs useless weights without protecting useful ones.
        betas: decay rates of both moments, each in [0, 1); Adam's usual ones (the authors' choice is not verified).
        eps: added to the root of the second moment; the authors use 1e-5.

    Example:
        >>> AdaUPGD(3e-4).factor
        2.0
    """

    factor: float = 2.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-5

    shared_by_runs: ClassVar[tuple[str, ...]] = ("betas",)

    card: ClassVar[Card] = Card(
        "optimizers",
        "all weights and biases",
        "at every update",
        "three numbers per weight",
        "Elsayed and Mahmood 2024, Addressing loss of plasticity and catastrophic forgetting in continual learning",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "eps", single=True)
        check_betas(self)

    def on_reset(self, view: View, state: State, region: Region) -> None:
        """Average, moments and step count of the region to zero."""
        if region.name in state["parameters"]:
            for key in ("first", "second"):
                region.write(state["parameters"][region.name][key], 0.0)
        super().on_reset(view, state, region)

    def _average(self, state: State, name: str, parameter: Tensor) -> Tensor:
        def make() -> dict[str, Any]:
            return {key: torch.zeros_like(parameter).detach() for key in ("utility", "first", "second")}

        return slot(state, name, make)["utility"]

    def _update(self, view: View, state: State, name: str, changeable: Tensor) -> None:
        gradient, parameter, kept = view.gradient(name), view.parameters[name], state["parameters"][name]
        assert gradient is not None
        beta1, beta2 = self.betas
        kept["first"].lerp_(gradient, 1.0 - beta1)
        kept["second"].mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        steps = ElementSteps(state["step"], state["resets"].get(name), len(view.runs))
        mean = kept["first"] / steps.correction(beta1, parameter)
        deviation = (kept["second"] / steps.correction(beta2, parameter)).sqrt_().add_(self.eps)
        direction = mean.div_(deviation)
        if self.protect:
            direction.mul_(changeable)
        self._move(view, parameter, direction.add_(self._noise(view, name, state["step"]).mul_(changeable)))
