"""Wasserstein regularisation: keep the distribution of every tensor's weights near its initial one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from neoteny.methods.card import Card
from neoteny.methods.method import Method, State, check_flag, check_number, slot
from neoteny.units.view import View


@dataclass(frozen=True)
class Wasserstein(Method):
    r"""Pulls the sorted weights of each tensor to its sorted initial weights (Lewandowski et al. 2023).

    Adds the loss term \(\lambda \sum_l \lVert \operatorname{sort}(\theta_l) - \operatorname{sort}(\theta_{l,0})
    \rVert^2\) over all parameters: every weight is pulled by \(2 \lambda\) times its distance to the initial value that
    has its rank. The order of the weights does not matter, so the term is weaker than L2-init: a weight may take
    another's place. \(\theta_0\) is the value before a parameter's first update. It describes the tensor as a whole, so
    resets of single elements leave it as it is.

    Every update sorts every tensor. On a small network that takes many times as long as the update itself.

    Args:
        strength: \(\lambda\), at least 0. Others who ran it as a baseline use 1e-3, divided by the number of weights
            (reinforcement learning), and 1e-2.
        mean: divide each tensor's term by its number of weights.

    Example:
        >>> Wasserstein(1e-3, mean=True).strength
        0.001
    """

    strength: float | tuple[float, ...]
    mean: bool = False

    card: ClassVar[Card] = Card(
        "regularisers",
        "all weights and biases",
        "at every update",
        "a sorted copy of the weights",
        "Lewandowski et al. 2023, Directions of curvature as an explanation for loss of plasticity",
    )

    def __post_init__(self) -> None:
        check_number(self, "strength")
        check_flag(self, "mean")

    def init(self, view: View) -> State:
        """The sorted initial values of every parameter."""
        state: State = {"parameters": {}}
        for name, parameter in view.parameters.items():
            _sorted(view, state, name, parameter)
        return state

    def add_gradient(self, view: View, state: State) -> None:
        """Add the term's gradient to every gradient there is."""
        for name, parameter in view.parameters.items():
            initial = _sorted(view, state, name, parameter)
            gradient = view.gradient(name)
            if gradient is None:
                continue
            if gradient.is_sparse:
                raise TypeError(f"{name} has sparse gradients, but a loss term on all weights needs dense ones.")
            values, order = _flat(view, parameter).sort(dim=-1, stable=True)
            pull = torch.empty_like(values).scatter_(-1, order, values - initial).reshape(parameter.shape)
            strength = view.per_run(self.strength, parameter, view.axes(parameter))
            share = 2.0 / (values.shape[-1] if self.mean else 1)
            gradient.add_(pull * (strength * share * view.gradient_scale()))


def _flat(view: View, parameter: Tensor) -> Tensor:
    """(*R, numbers); a scalar has one."""
    return parameter.detach().reshape(*view.runs, -1)


def _sorted(view: View, state: State, name: str, parameter: Tensor) -> Tensor:
    return slot(state, name, lambda: _flat(view, parameter).sort(dim=-1).values)
