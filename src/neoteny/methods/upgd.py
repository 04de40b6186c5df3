"""UPGD: gradient descent that changes useful weights less and perturbs useless ones more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from neoteny.layers.regions import Region
from neoteny.methods.adam_update import ElementSteps
from neoteny.methods.card import Card
from neoteny.methods.declaration import KernelState, KernelTerms, UtilityStep
from neoteny.methods.method import Method, State, check_choice, check_flag, check_number, slot
from neoteny.methods.weight_noise import add_noise
from neoteny.units.view import View

SCALES = ("corrected", "raw", "local")


@dataclass(frozen=True)
class UPGD(Method):
    r"""Gradient descent that changes useful weights less and perturbs useless ones more (UPGD).

    Utility-based perturbed gradient descent, weight-wise and first-order (Elsayed and Mahmood 2024).

    The utility of a weight is the running average of \(-g w\); \(\hat U\) is bias-corrected, and
    \(\bar u = \sigma(\hat U / \eta)\) with \(\eta\) the largest utility in the network. Then
    \(w \leftarrow (1 - \alpha\lambda) w - c\,\alpha\,(g + \xi)(1 - \bar u)\) with noise \(\xi \sim N(0, \sigma^2)\).
    Where no weight has a positive utility none is protected. A reset weight's average starts again. Each update draws a
    number per weight and goes through all weights some ten times, which shows where batches are small.

    Args:
        step_size: \(\alpha\), at least 0. Tuned by the authors: 0.01 on all their MNIST, EMNIST and CIFAR streams.
        decay_rate: of the average, in [0, 1). Tuned: 0.9999 (input-permuted MNIST), 0.9 (EMNIST), 0.999 (CIFAR-10).
        noise_std: \(\sigma\), at least 0. Tuned: 0.1, 0.001 and 0 on the same.
        weight_decay: \(\lambda\), at least 0. Tuned: 0.01, 0 and 1e-4 on the same.
        factor: \(c\); 1 in the authors' experiments, 2 in their README (an unused weight has \(1 - \bar u = 1/2\)).
        scale: \(\eta\). "corrected": the largest \(\hat U\) (the paper); "raw": the largest average before correction
            (the authors' code, where \(\bar u\) saturates early on); "local": rows of \(\hat U\) divided by their
            length.
        protect: False perturbs useless weights without protecting useful ones: \(g + \xi (1 - \bar u)\).

    Example:
        >>> UPGD(0.01, noise_std=0.001).scale
        'corrected'
    """

    step_size: float | tuple[float, ...]
    decay_rate: float = 0.999
    noise_std: float | tuple[float, ...] = 0.001
    weight_decay: float | tuple[float, ...] = 0.0
    factor: float = 1.0
    scale: str = "corrected"
    protect: bool = True

    is_optimizer: ClassVar[bool] = True

    card: ClassVar[Card] = Card(
        "optimizers",
        "all weights and biases",
        "at every update",
        "one number per weight",
        "Elsayed and Mahmood 2024, Addressing loss of plasticity and catastrophic forgetting in continual learning",
    )

    def __post_init__(self) -> None:
        check_number(self, "step_size")
        check_number(self, "decay_rate", 0.0, 1.0, below_high=True, single=True)
        for name in ("noise_std", "weight_decay", "factor"):
            check_number(self, name, single=name == "factor")
        check_choice(self, "scale", SCALES)
        check_flag(self, "protect")

    def init(self, view: View) -> State:
        """The average of every parameter, and the number of updates."""
        return {"step": 0, "resets": {}, "parameters": {}}

    def step(self, view: View, state: State) -> None:
        """The update."""
        state["step"] += 1
        for name, changeable in self._changeable(view, state).items():
            self._update(view, state, name, changeable)

    def on_reset(self, view: View, state: State, region: Region) -> None:
        """Average and step count of the region to zero."""
        if region.name in state["parameters"]:
            average = self._average(state, region.name, view.tensor(region.name))
            region.write(average, 0.0)
            ElementSteps.record(state["resets"].setdefault(region.name, {}), average, region, state["step"])

    def _average(self, state: State, name: str, parameter: Tensor) -> Tensor:
        """The running utility of a parameter before correction."""
        return slot(state, name, lambda: torch.zeros_like(parameter).detach())

    def _changeable(self, view: View, state: State) -> dict[str, Tensor]:
        """1 minus the scaled utility, of every parameter that has a gradient; the averages move by one update."""
        step, run_axes = state["step"], len(view.runs)
        averages: dict[str, Tensor] = {}
        utilities: dict[str, Tensor] = {}
        for name, parameter in view.parameters.items():
            gradient = view.gradient(name)
            if gradient is None:
                continue
            if step > 1 and name not in state["parameters"]:  # unfrozen or added later: its first update is now
                resets = state["resets"].setdefault(name, {})
                ElementSteps.record(resets, parameter, Region.whole(name, parameter, run_axes), step - 1)
            average = averages[name] = self._average(state, name, parameter)
            average.lerp_(torch.mul(gradient, parameter.detach()).neg_(), 1.0 - self.decay_rate)
            steps = ElementSteps(step, state["resets"].get(name), run_axes)
            utilities[name] = average / steps.correction(self.decay_rate, average)
        if len(averages) < len(state["parameters"]):
            ElementSteps.miss(state["resets"], state["parameters"], list(averages))
        largest = _largest(averages if self.scale == "raw" else utilities, run_axes)
        found: dict[str, Tensor] = {}
        for name, utility in utilities.items():
            if self.scale == "local":
                length = utility.flatten(run_axes + 1).norm(dim=-1) if view.axes(utility) > 1 else utility.norm(dim=-1)
                scale = length.reshape(length.shape + (1,) * (utility.dim() - length.dim()))
            else:
                scale = largest.reshape(largest.shape + (1,) * view.axes(utility))
            found[name] = changeable_share(utility, scale)
        return found

    def kernel_terms(self) -> KernelTerms:
        """An update that spares useful weights."""
        how = UtilityStep(self.decay_rate, self.noise_std, self.weight_decay, self.factor, self.scale, self.protect)
        return KernelTerms(optimizer="upgd", step_size=self.step_size, utility_step=how)

    def kernel_state(self, state: State) -> KernelState:
        """The averages, the number of updates, and the reset steps."""
        return KernelState(moments=(state["parameters"],), clock=state, resets=state["resets"])

    def _update(self, view: View, state: State, name: str, changeable: Tensor) -> None:
        gradient, parameter = view.gradient(name), view.parameters[name]
        assert gradient is not None
        direction = self._noise(view, name, state["step"])
        if self.protect:
            direction.add_(gradient).mul_(changeable)
        else:
            direction.mul_(changeable).add_(gradient)
        self._move(view, parameter, direction)

    def _noise(self, view: View, name: str, step: int) -> Tensor:
        noise = torch.zeros_like(view.parameters[name]).detach()
        if self.noise_std != 0.0:
            add_noise(view, noise, step, f"{name}/upgd", self.noise_std)
        return noise

    def _move(self, view: View, parameter: Tensor, direction: Tensor) -> None:
        """Decay the weights and move them against a direction, which is used up."""
        size = view.per_run(self.step_size, parameter, view.axes(parameter))
        decay = view.per_run(self.weight_decay, parameter, view.axes(parameter))
        parameter.mul_(1.0 - size * decay).sub_(direction.mul_(size * self.factor))


def changeable_share(utility: Tensor, scale: Tensor) -> Tensor:
    """1 - sigmoid(utility / scale), in the place of the utility.

    A scale that is not positive counts as a very small one, so that no sign flips.
    """
    return utility.div_(scale.clamp_min(torch.finfo(utility.dtype).tiny)).sigmoid_().neg_().add_(1.0)


def _largest(utilities: dict[str, Tensor], run_axes: int) -> Tensor:
    """The largest utility of each run, (*R,)."""
    return torch.stack([each.flatten(run_axes).amax(-1) for each in utilities.values()]).amax(0)
