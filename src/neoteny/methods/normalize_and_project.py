"""Normalize-and-project: every weight keeps its initial norm, so that the step size alone sets the effective one."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from neoteny.layers.kinds import watched_modules
from neoteny.layers.parameters import LayerParameters
from neoteny.layers.regions import Region
from neoteny.methods.card import Card
from neoteny.methods.chosen_layers import belongs, refuse_without
from neoteny.methods.method import Method, State, check_choice, check_flag, check_number, count_update, slot
from neoteny.units.view import View


@dataclass(frozen=True)
class NormalizeAndProject(Method):
    r"""Scales every weight back to its initial Frobenius norm after each update (Lyle et al. 2024).

    \(W \leftarrow W\,\lVert W_0 \rVert_F / \lVert W \rVert_F\) for each linear layer and convolution. The method
    presumes a norm (LayerNorm, RMSNorm) between every hidden layer and its nonlinearity: then the projection of a layer
    without bias does not change the function. A layer behind which no norm is defined brings a warning, since the
    order of definition is a hint and no proof. Biases of layers are left as they are. The optimizer's state is kept.
    When another method draws a whole weight, its new norm is the one to keep.

    How the paper treats scales and shifts of norms and the output layer is from memory and not verified.

    Args:
        norms: what becomes of the scales and shifts of norms. "rescale": both together keep their initial norm.
            "decay": they move to 1 and 0 by `decay_rate`. "leave": nothing.
        decay_rate: of "decay", in [0, 1].
        project_output: project the output layer too, or all of them, where the network has several heads.
        period: updates between two projections, at least 1; the authors project at every update.
        presume_norms: say nothing about layers without a norm behind them.

    Example:
        >>> NormalizeAndProject().norms
        'rescale'
    """

    norms: str = "rescale"
    decay_rate: float | tuple[float, ...] = 0.01
    project_output: bool = False
    period: int = 1
    presume_norms: bool = False

    card: ClassVar[Card] = Card(
        "resets and projections of weights",
        "weights of linear layers and convolutions, scales and shifts of norms",
        "at every update",
        "one number per weight matrix",
        "Lyle et al. 2024, Normalization and effective learning rates in reinforcement learning",
    )

    def __post_init__(self) -> None:
        check_choice(self, "norms", ("rescale", "decay", "leave"))
        check_number(self, "decay_rate", 0.0, 1.0)
        check_flag(self, "project_output")
        check_number(self, "period", 1, whole=True, single=True)
        check_flag(self, "presume_norms")

    def init(self, view: View) -> State:
        """The norm of every weight, and of the scale and shift of every norm together."""
        output = () if self.project_output else view.output_layers()
        acts = [
            not belongs(layer.module, output) if layer.scale is None else self.norms != "leave" for layer in view.layers
        ]
        refuse_without(self, acts, "hidden linear layers and convolutions, and on norms")
        state: State = {"step": 0, "parameters": {}}
        for name, tensors in self._projected(view).items():
            slot(state, name, lambda tensors=tensors: _norm(view, tensors))
        if not self.presume_norms:
            self._warn_without_norms(view)
        return state

    def step(self, view: View, state: State) -> None:
        """Project, if it is time."""
        due = count_update(state, self.period)
        for name, tensors in self._projected(view).items():
            kept = slot(state, name, lambda tensors=tensors: _norm(view, tensors))
            if due:
                now = _norm(view, tensors)
                # Weights that are all zero have no direction: they stay.
                factor = torch.where(now > 0.0, kept / now, torch.ones_like(now))
                for tensor in tensors:
                    tensor.mul_(factor.reshape((*view.runs, *(1,) * view.axes(tensor))).to(tensor.dtype))
        if due and self.norms == "decay":
            self._decay(view)

    def on_reset(self, view: View, state: State, region: Region) -> None:
        """A weight that is new as a whole keeps its new norm."""
        if region.is_whole and region.name in state["parameters"]:
            tensors = self._projected(view).get(region.name)
            if tensors is not None:
                state["parameters"][region.name].copy_(_norm(view, tensors))

    def _projected(self, view: View) -> dict[str, list[Tensor]]:
        """What is scaled together, under the name of its first parameter."""
        parameters = view.parameters
        output = () if self.project_output else view.output_layers()
        found: dict[str, list[Tensor]] = {}
        for layer in view.layers:
            if layer.weight in parameters and not belongs(layer.module, output):
                found[str(layer.weight)] = [parameters[str(layer.weight)]]
            elif self.norms == "rescale" and layer.scale in parameters:
                parts = [name for name in (layer.scale, layer.bias) if name in parameters]
                found[str(layer.scale)] = [parameters[str(name)] for name in parts]
        return found

    def _decay(self, view: View) -> None:
        parameters = view.parameters
        for layer in view.layers:
            for name, value in ((layer.scale, 1.0), (layer.bias, 0.0)) if layer.scale is not None else ():
                parameter = parameters.get(str(name))
                if parameter is not None:
                    rate = view.per_run(self.decay_rate, parameter, view.axes(parameter))
                    parameter.lerp_(torch.full_like(parameter, value), rate)

    def _warn_without_norms(self, view: View) -> None:
        projected, output = self._projected(view), view.output_layers()
        hidden = [layer for layer in view.layers if layer.weight in projected and not belongs(layer.module, output)]
        bare = _without_norm(view, hidden)
        if bare:
            warnings.warn(
                f"NormalizeAndProject presumes a norm before every nonlinearity, but none is defined behind "
                f"{', '.join(bare)}: their projection changes what the network computes. Put LayerNorm or RMSNorm "
                "there, or, if the norms are there and only defined elsewhere, pass presume_norms=True.",
                stacklevel=2,
            )


def _norm(view: View, tensors: list[Tensor]) -> Tensor:
    """The norm (*R,) of some tensors (*R, ...) together."""
    flat = torch.cat([tensor.detach().flatten(len(view.runs)) for tensor in tensors], -1)
    wide = torch.promote_types(flat.dtype, torch.float32)
    return torch.linalg.vector_norm(flat, dim=-1, dtype=wide)


def _without_norm(view: View, layers: list[LayerParameters]) -> list[str]:
    """Those of the layers that are not followed by a norm, in the order in which modules are defined."""
    watched = [(name, kind) for name, (_, kind) in watched_modules(view.structure).items()]
    behind = {name: kind for (name, _), (_, kind) in itertools.pairwise(watched)}
    return [layer.module for layer in layers if behind.get(layer.module) != "norm"]
