"""L2-init: regularisation towards the initial weights instead of towards zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from neoteny.layers.regions import Region
from neoteny.methods.card import Card
from neoteny.methods.declaration import KernelState, KernelTerms
from neoteny.methods.method import Method, State, check_choice, check_flag, check_number, slot
from neoteny.units.view import View


@dataclass(frozen=True)
class L2Init(Method):
    r"""Regenerative regularisation: pulls every weight towards its initial value (Kumar et al. 2023).

    Adds the loss term \(\frac{\lambda}{2} \sum \lVert \theta - \theta_0 \rVert^2\) over all weights and biases except
    those of norms: \(\lambda (\theta - \theta_0)\) joins the gradient. \(\theta_0\) is the value before a parameter's
    first update. When another method resets an element, its new value becomes its \(\theta_0\).

    The authors also try \(\lambda \sum |\theta - \theta_0|\) (`norm="l1"`: the gradient is the sign) and the Huber loss
    (`norm="huber"`: the gradient is \(\theta - \theta_0\), clipped to \([-1, 1]\)).

    Under Adam the term is rescaled by \(1 / \sqrt{\hat v}\) as every gradient is, so it is not a decay. With
    `decoupled=True` it does not pass through the optimizer: beside the update, \(\alpha \lambda (\theta - \theta_0)\)
    is subtracted, with \(\theta\) from before the update and \(\alpha\) the optimizer's step size. This is AdamW's
    decay with \(\alpha \lambda \theta_0\) added, as the authors have it.

    Args:
        strength: \(\lambda\), at least 0. The authors' best with Adam is 1e-2 on four of five problems (permuted and
            random-label MNIST, random-label CIFAR) and 1e-3 on Continual ImageNet; with SGD 1e-5 on 5+1 CIFAR and 1e-3
            on Continual ImageNet.
        norm: "l2", "l1" or "huber".
        decoupled: whether the term acts beside the optimizer instead of through it.

    Example:
        >>> L2Init(1e-2).strength
        0.01
    """

    strength: float | tuple[float, ...]
    norm: str = "l2"
    decoupled: bool = False

    card: ClassVar[Card] = Card(
        "regularisers",
        "all weights and biases but those of norms",
        "at every update",
        "a copy of the weights",
        "Kumar et al. 2023, Maintaining plasticity in continual learning via regenerative regularization",
    )

    def __post_init__(self) -> None:
        check_number(self, "strength")
        check_choice(self, "norm", ("l2", "l1", "huber"))
        check_flag(self, "decoupled")

    def init(self, view: View) -> State:
        """The initial value of every parameter that the term acts on."""
        state: State = {"parameters": {}}
        for name, parameter in _regularised(view).items():
            _anchor(state, name, parameter)
        return state

    def add_gradient(self, view: View, state: State) -> None:
        """Add the term's gradient to every gradient there is; decoupled, keep what is to be subtracted."""
        moves: dict[str, Tensor] = {}
        for name, parameter in _regularised(view).items():
            anchor = _anchor(state, name, parameter)
            gradient = view.gradient(name)
            if gradient is None:
                continue
            pull = self._pull(view, parameter, anchor)
            if self.decoupled:
                moves[name] = pull * view.step_size(name)
            else:
                gradient.add_(pull * view.gradient_scale())
        if self.decoupled:
            state["moves"] = moves

    def step(self, view: View, state: State) -> None:
        """Decoupled, pull every parameter that was updated."""
        for name, move in state.pop("moves", {}).items():
            view.tensor(name).sub_(move)

    def export(self, state: State) -> State:
        """The anchors; the rest belongs to an update that has begun."""
        return {"parameters": state["parameters"]}

    def on_reset(self, view: View, state: State, region: Region) -> None:
        """The new value of a reset element is its initial value, from which nothing pulls it away."""
        if region.name in state["parameters"]:
            region.copy(view.tensor(region.name), state["parameters"][region.name])
        if region.name in state.get("moves", {}):
            region.write(state["moves"][region.name], 0.0)

    def kernel_terms(self) -> KernelTerms | str:
        """The pull to the initial weights."""
        if self.norm != "l2" or self.decoupled:
            return "L2Init with another norm, or decoupled, is not covered"
        return KernelTerms(anchor=self.strength)

    def kernel_state(self, state: State) -> KernelState:
        """The initial weights."""
        return KernelState(copies=state["parameters"])

    def _pull(self, view: View, parameter: Tensor, anchor: Tensor) -> Tensor:
        """The term's gradient."""
        distance = parameter.detach() - anchor
        if self.norm == "l1":
            distance = torch.sign(distance)
        elif self.norm == "huber":
            distance = distance.clamp(-1.0, 1.0)
        return distance * view.per_run(self.strength, parameter, view.axes(parameter))


def _anchor(state: State, name: str, parameter: Tensor) -> Tensor:
    return slot(state, name, lambda: parameter.detach().clone())


def _regularised(view: View) -> dict[str, Tensor]:
    """Every trainable parameter that is not a norm's scale or shift."""
    norms = {name for layer in view.layers if layer.scale is not None for name in (layer.scale, layer.bias)}
    return {name: parameter for name, parameter in view.parameters.items() if name not in norms}
