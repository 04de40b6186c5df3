"""Feature-wise UPGD: gradients of weights that feed useful units shrink, those that feed useless ones are perturbed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from neoteny.layers.regions import ChosenUnits
from neoteny.methods.card import Card
from neoteny.methods.method import Method, State, check_choice, check_flag, check_number, count_update
from neoteny.methods.upgd import SCALES, changeable_share
from neoteny.methods.weight_noise import add_noise
from neoteny.units.view import LiveGroup, View


@dataclass(frozen=True)
class FeatureUPGD(Method):
    r"""UPGD by units: changes what feeds useful units less and perturbs the rest (Elsayed and Mahmood 2024).

    The utility of a unit is the running average of \(-\partial L / \partial\gamma\) of a gate \(\gamma = 1\) behind its
    activation \(h\): of \(-\sum h\,\partial L / \partial h\) over the batch. This equals \(-\sum w\,\partial L /
    \partial w\) over its outgoing weights, which is how it is found. \(\bar u = \sigma(\hat U / \eta)\) with
    \(\eta\) the largest corrected utility of all units. The gradients of incoming weights, bias and norm of a unit
    become \(c\,(g + \xi)(1 - \bar u) + \lambda w\); all other gradients, those of the output layer for example, stay.

    With plain SGD this is the authors' optimizer. It can be attached to, or stacked with, any other optimizer. A unit
    that another method resets starts again. An outgoing weight that is frozen does not count.

    Args:
        decay_rate: of the average, in [0, 1). For the weight-wise form the authors tuned 0.9999 (input-permuted MNIST),
            0.9 (EMNIST) and 0.999 (CIFAR-10).
        noise_std: \(\sigma\) of \(\xi\), at least 0. Tuned: 0.1, 0.001 and 0 on the same.
        weight_decay: \(\lambda\), at least 0. Tuned: 0.01, 0 and 1e-4 on the same.
        factor: \(c\); 1 in the authors' experiments.
        scale: \(\eta\). "corrected": the largest \(\hat U\); "raw": the largest average before correction; "local": in
            each group of units the length of the vector of its \(\hat U\).
        protect: False perturbs useless units without protecting useful ones: \(g + \xi (1 - \bar u)\).

    Example:
        >>> FeatureUPGD(noise_std=0.01).decay_rate
        0.999
    """

    decay_rate: float = 0.999
    noise_std: float | tuple[float, ...] = 0.001
    weight_decay: float | tuple[float, ...] = 0.0
    factor: float = 1.0
    scale: str = "corrected"
    protect: bool = True

    needs_units: ClassVar[bool] = True

    card: ClassVar[Card] = Card(
        "optimizers",
        "gradients of weights that feed hidden units",
        "at every update",
        "two numbers per unit",
        "Elsayed and Mahmood 2024, Addressing loss of plasticity and catastrophic forgetting in continual learning",
    )

    def __post_init__(self) -> None:
        check_number(self, "decay_rate", 0.0, 1.0, below_high=True, single=True)
        for name in ("noise_std", "weight_decay", "factor"):
            check_number(self, name, single=name == "factor")
        check_choice(self, "scale", SCALES)
        check_flag(self, "protect")

    def init(self, view: View) -> State:
        """For each group the average of every unit, and its decay rate to the power of its age."""
        state: State = {"step": 0, "groups": {}}
        for group in view.groups:
            _refuse_computed(view, group)
            weight = view.tensor(group.producers[0].weight)
            kind = torch.float64 if weight.dtype == torch.float64 else torch.float32
            average = torch.zeros(*view.runs, group.units, dtype=kind, device=weight.device)
            state["groups"][group.name] = {"utility": average, "decay_power": torch.ones_like(average)}
        return state

    def observe(self, view: View, state: State) -> None:
        """One update of the averages, from the gradients of the loss alone."""
        parameters = view.parameters
        for group in view.groups:
            kept = state["groups"][group.name]
            seen: Tensor | None = None
            for port in group.consumers:
                gradient = view.gradient(port.weight) if port.weight in parameters else None
                if gradient is not None:
                    share = port.column_sums(gradient * parameters[port.weight].detach(), len(view.runs))
                    seen = share if seen is None else seen + share
            if seen is None:  # nothing that it feeds was trained: this update does not count for it
                continue
            use = (-seen / view.gradient_scale()).to(kept["utility"].dtype)
            finite = torch.isfinite(use)  # a gradient that a scaler is about to throw away
            kept["utility"].copy_(
                torch.where(finite, torch.lerp(use, kept["utility"], self.decay_rate), kept["utility"])
            )
            kept["decay_power"].copy_(torch.where(finite, kept["decay_power"] * self.decay_rate, kept["decay_power"]))

    def transform_gradients(self, view: View, state: State) -> None:
        """Scale and perturb the gradients of what feeds each unit."""
        count_update(state)
        shares: dict[str, _Share] = {}
        for group, changeable in self._changeable(view, state):
            _spread(view, group, changeable, shares)
        scale = view.gradient_scale()
        for name, share in shares.items():
            gradient, parameter = view.gradient(name), view.parameters[name]
            if gradient is None:
                continue
            inside, gate = share.inside, share.gate
            if self.protect or self.factor != 1.0:
                gradient.mul_(torch.where(inside, self.factor * gate if self.protect else self.factor, 1.0))
            if self.noise_std != 0.0:
                noise = torch.zeros_like(parameter).detach()
                add_noise(view, noise, state["step"], f"{name}/upgd", self.noise_std)
                gradient.add_(noise * torch.where(inside, self.factor * gate, 0.0) * scale)
            if self.weight_decay != 0.0:
                decay = view.per_run(self.weight_decay, parameter, view.axes(parameter))
                gradient.add_(torch.where(inside, parameter.detach() * decay, 0.0) * scale)

    def on_units_reset(self, view: View, state: State, group: LiveGroup, chosen: ChosenUnits) -> None:
        """New units have no average and no age."""
        kept = state["groups"][group.name]
        chosen.put(kept["utility"], 0.0)
        chosen.put(kept["decay_power"], 1.0)

    def _changeable(self, view: View, state: State) -> list[tuple[LiveGroup, Tensor]]:
        """1 minus the scaled utility of every unit, (*R, U), group by group."""
        corrected: list[Tensor] = []
        for group in view.groups:
            kept = state["groups"][group.name]
            age = 1.0 - kept["decay_power"]
            corrected.append(torch.where(age > 0.0, kept["utility"] / age, 0.0))
        if not corrected:
            return []
        raw = [state["groups"][group.name]["utility"] for group in view.groups]
        largest = torch.stack([each.amax(-1) for each in (raw if self.scale == "raw" else corrected)]).amax(0)
        found: list[tuple[LiveGroup, Tensor]] = []
        for group, utility in zip(view.groups, corrected, strict=True):
            scale = utility.norm(dim=-1) if self.scale == "local" else largest
            found.append((group, changeable_share(utility, scale.unsqueeze(-1))))
        return found


def _refuse_computed(view: View, group: LiveGroup) -> None:
    """Refuse a group with a weight that is no parameter itself, so that it has no gradient of its own."""
    for port in (*group.producers, *group.consumers):
        if not view.runs and not isinstance(view.tensor(port.weight), nn.Parameter):
            raise ValueError(
                f"FeatureUPGD: {port.weight} is computed from other parameters (weight norm, say), so it has no "
                f"gradient that could be scaled by unit. Leave its group out: leave_out=[{group.name!r}]."
            )


@dataclass
class _Share:
    """For each element of a parameter, broadcast: whether it feeds a unit, and 1 - u of that unit."""

    inside: Tensor
    gate: Tensor = field(repr=False)


def _spread(view: View, group: LiveGroup, changeable: Tensor, shares: dict[str, _Share]) -> None:
    """Enter what feeds the units of a group into `shares`, by parameter."""
    parameters = view.parameters

    def enter(name: str | None, inside: Tensor, gate: Tensor) -> None:
        if name is None or name not in parameters:
            return
        gate = gate.to(parameters[name].dtype)
        if name in shares:  # rows of another group
            inside, gate = shares[name].inside | inside, torch.where(inside, gate, shares[name].gate)
        shares[name] = _Share(inside, gate)

    for port in group.producers:
        inside, gate = _by_feature(changeable, port.features_on(changeable.device), port.width)
        if port.weight in parameters:
            weight = parameters[port.weight]
            enter(port.weight, port.over_rows(inside, weight), port.over_rows(gate, weight))
        enter(port.bias, inside, gate)
    for port in group.norms:
        inside, gate = _by_feature(changeable, port.features_on(changeable.device), port.width)
        for name in port.fresh:
            enter(name, inside, gate)


def _by_feature(changeable: Tensor, features: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """(*R, U) -> which of the features belong to a unit, and the value of that unit, each (*R, width)."""
    runs = changeable.shape[:-1]
    gate = changeable.new_ones(*runs, width)
    inside = torch.zeros(*runs, width, dtype=torch.bool, device=changeable.device)
    gate[..., features.flatten()] = changeable.repeat_interleave(features.shape[1], dim=-1)
    inside[..., features.flatten()] = True
    return inside, gate
