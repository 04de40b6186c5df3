"""L2-init: regularisation towards the initial weights instead of towards zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from neoteny.layers.regions import Region
from neoteny.methods.card import Card
from neoteny.methods.declaration import KernelState, KernelTerms
from neoteny.methods.method import Method, State, check_number, slot
from neoteny.units.view import View


@dataclass(frozen=True)
class L2Init(Method):
    r"""Regenerative regularisation (Kumar, Marklund and Van Roy 2023).

    Adds the loss term \(\frac{\lambda}{2} \sum \lVert \theta - \theta_0 \rVert^2\) over all weights and biases except
    those of norms: \(\lambda (\theta - \theta_0)\) joins the gradient. \(\theta_0\) is the value before a parameter's
    first update. When another method resets an element, its new value becomes its \(\theta_0\).

    Under Adam the term is rescaled by \(1 / \sqrt{\hat v}\) as every gradient is, so it is not a decay.

    Args:
        strength: \(\lambda\), at least 0. The authors' best with Adam is 1e-2 on four of five problems (permuted and
            random-label MNIST, random-label CIFAR) and 1e-3 on Continual ImageNet.

    Example:
        >>> L2Init(1e-2).strength
        0.01
    """

    strength: float | tuple[float, ...]

    card: ClassVar[Card] = Card(
        "regularisers",
        "all weights and biases but those of norms",
        "at every update",
        "a copy of the weights",
        "Kumar et al. 2023, Maintaining plasticity in continual learning via regenerative regularization",
    )

    def __post_init__(self) -> None:
        check_number(self, "strength")

    def init(self, view: View) -> State:
        """The initial value of every parameter that the term acts on."""
        state: State = {"parameters": {}}
        for name, parameter in _regularised(view).items():
            _anchor(state, name, parameter)
        return state

    def add_gradient(self, view: View, state: State) -> None:
        """Add the term's gradient to every gradient there is."""
        for name, parameter in _regularised(view).items():
            anchor = _anchor(state, name, parameter)
            gradient = view.gradient(name)
            if gradient is not None:
                strength = view.per_run(self.strength, parameter, view.axes(parameter))
                gradient.add_((parameter.detach() - anchor) * (strength * view.gradient_scale()))

    def on_reset(self, view: View, state: State, region: Region) -> None:
        """The new value of a reset element is its initial value."""
        if region.name in state["parameters"]:
            region.copy(view.tensor(region.name), state["parameters"][region.name])

    def kernel_terms(self) -> KernelTerms:
        """The pull to the initial weights."""
        return KernelTerms(anchor=self.strength)

    def kernel_state(self, state: State) -> KernelState:
        """The initial weights."""
        return KernelState(copies=state["parameters"])


def _anchor(state: State, name: str, parameter: Tensor) -> Tensor:
    return slot(state, name, lambda: parameter.detach().clone())


def _regularised(view: View) -> dict[str, Tensor]:
    """Every trainable parameter that is not a norm's scale or shift."""
    norms = {name for layer in view.layers if layer.scale is not None for name in (layer.scale, layer.bias)}
    return {name: parameter for name, parameter in view.parameters.items() if name not in norms}
