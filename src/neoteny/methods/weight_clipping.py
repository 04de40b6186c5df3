"""Weight clipping: every weight and bias stays within a bound that follows from its layer's fan-in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from neoteny.layers.parameters import LayerParameters
from neoteny.methods.card import Card
from neoteny.methods.chosen_layers import belongs, refuse_without
from neoteny.methods.declaration import Clip, KernelTerms
from neoteny.methods.method import Method, State, check_flag, check_number
from neoteny.units.view import View


@dataclass(frozen=True)
class WeightClipping(Method):
    r"""Clips weights and biases of linear layers and convolutions after every update (Elsayed et al. 2024).

    \(|w|, |b| \le \kappa / \sqrt{\text{fan-in}}\), where a bias has the bound of the weight it belongs to. With
    \(\kappa = 1\) the bound is that of torch's own initial weights. Parameters of norms, embeddings and recurrent
    layers are left alone, and so is the optimizer's state.

    Args:
        bound: \(\kappa\), at least 0. The authors' best is 1 to 2 on permuted MNIST, 2 with SGD and 4 with Adam on
            EMNIST, 10 to 20 for ResNets (5 and less underfit).
        spare_output: leave the output layer alone, or all of them, where the network has several heads.

    Example:
        >>> WeightClipping(2.0).spare_output
        False
    """

    bound: float | tuple[float, ...]
    spare_output: bool = False

    card: ClassVar[Card] = Card(
        "resets and projections of weights",
        "weights and biases of linear layers and convolutions",
        "at every update",
        "nothing",
        "Elsayed et al. 2024, Weight clipping for deep continual and reinforcement learning",
    )

    def __post_init__(self) -> None:
        check_number(self, "bound")
        check_flag(self, "spare_output")

    def init(self, view: View) -> State:
        """Nothing; an unknown output layer, and a network without a layer to clip, are told at once."""
        refuse_without(self, map(bool, self._clipped(view)), "linear layers and convolutions")
        return {}

    def step(self, view: View, state: State) -> None:
        """Clip."""
        parameters = view.parameters
        for layer in self._clipped(view):
            for name in (layer.weight, layer.bias):
                parameter = parameters.get(name) if name is not None else None
                if parameter is not None:
                    bound = view.per_run(self.bound, parameter, view.axes(parameter)) / math.sqrt(layer.inputs)
                    parameter.clamp_(-bound, bound)  # pyright: ignore[reportArgumentType, reportCallIssue]

    def _clipped(self, view: View) -> list[LayerParameters]:
        """The layers that have bounds."""
        spared = view.output_layers() if self.spare_output else ()
        layers = [layer for layer in view.layers if layer.scale is None and layer.inputs]
        return [layer for layer in layers if not belongs(layer.module, spared)]

    def kernel_terms(self) -> KernelTerms:
        """Bounds for the weights."""
        return KernelTerms(clip=Clip(self.bound, self.spare_output))
