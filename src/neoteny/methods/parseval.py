"""Parseval regularisation: keep the rows of every hidden layer's weight matrix near an orthogonal set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from neoteny.layers.parameters import LayerParameters
from neoteny.methods.card import Card
from neoteny.methods.chosen_layers import belongs, refuse_without
from neoteny.methods.method import Method, State, check_number
from neoteny.methods.plasticity_injection import injected_head
from neoteny.text import nearest
from neoteny.units.view import View


@dataclass(frozen=True)
class Parseval(Method):
    r"""Pulls the rows of hidden weights to be orthogonal and of one length (Chung et al. 2024).

    Adds \(\lambda \sum_l (64 / d_l)^2 \lVert W_l W_l^\top - s I \rVert_F^2\) to the loss, over the weights of all
    linear layers and convolutions but the output layers; \(d_l\) is the number of rows (output features) of \(W_l\).
    A convolution is the matrix (out, in * taps), one per group. With more rows than columns the term cannot reach 0.

    Not built in: the authors' learnable diagonal behind each layer, and groups of rows. `Parseval(1e-4, scale=1.0,
    reference_width=None, outputs=())` is the form that FIRE is compared with, without its term on the scales of norms.

    Every update multiplies each matrix with itself; with a batch smaller than the layer this is dearer than the update.

    Args:
        strength: \(\lambda\), at least 0. The authors use 1e-3 (MetaWorld, gridworld) and 1e-4 (LunarLander,
            quadruped); with `scale=1.0`, others use 1e-3 to 1e-5.
        scale: \(s\), the squared length of the rows. The authors start networks with gain \(\sqrt 2\) and use 2.
        reference_width: the 64 in \((64 / d_l)^2\), or None for no such factor.
        outputs: names of the output layers, which are left alone; () for none. By default it is the last linear layer
            or convolution of the model, in the order of its modules: name them if there are several heads.

    Example:
        >>> Parseval(1e-3).scale
        2.0
    """

    strength: float | tuple[float, ...]
    scale: float | tuple[float, ...] = 2.0
    reference_width: int | None = 64
    outputs: tuple[str, ...] | None = None

    card: ClassVar[Card] = Card(
        "regularisers",
        "weights of all layers but the output",
        "at every update",
        "nothing",
        "Chung et al. 2024, Parseval regularization for continual reinforcement learning",
    )

    def __post_init__(self) -> None:
        check_number(self, "strength")
        check_number(self, "scale")
        if self.reference_width is not None:
            check_number(self, "reference_width", 1, whole=True, single=True)
        if self.outputs is not None:
            listed = isinstance(self.outputs, (list, tuple))
            if not listed or not all(isinstance(name, str) for name in self.outputs):
                raise TypeError(
                    f"Parseval: outputs must be a sequence of names of modules, or None; got {self.outputs!r}."
                )
            object.__setattr__(self, "outputs", tuple(self.outputs))

    def runs(self) -> int | None:
        """As for every method; the names of output layers are not a sequence over runs."""
        lengths = {len(value) for value in (self.strength, self.scale) if isinstance(value, tuple)}
        if len(lengths) > 1:
            raise ValueError(f"Parseval: sequences of hyperparameters must be of one length; got {sorted(lengths)}.")
        return next(iter(lengths), None)

    def init(self, view: View) -> State:
        """Nothing; the names of output layers are checked, and a network without a hidden layer is refused."""
        known = [layer.module for layer in view.layers if layer.weight is not None]
        for name in self.outputs or ():
            if name not in known:
                raise ValueError(
                    f"Parseval: outputs names {name!r}, which is no linear layer or convolution of the network."
                    f"{nearest(name, known)} It has {', '.join(known)}."
                )
        refuse_without(self, map(bool, self._hidden(view)), "linear layers and convolutions before the output")
        return {}

    def add_gradient(self, view: View, state: State) -> None:
        """Add the term's gradient to the gradient of every hidden weight."""
        parameters = view.parameters
        for layer in self._hidden(view):
            name = layer.weight
            if name is None or name not in parameters:
                continue
            weight, gradient = parameters[name], view.gradient(name)
            if gradient is not None:
                gradient.add_(self._pull(view, layer, weight) * view.gradient_scale())

    def _hidden(self, view: View) -> list[LayerParameters]:
        """The layers with a weight that are not outputs."""
        weighted = [layer for layer in view.layers if layer.weight is not None]
        last = [injected_head(view.structure, layer.module) for layer in weighted[-1:]]
        outputs = last if self.outputs is None else self.outputs
        return [layer for layer in weighted if not belongs(layer.module, outputs)]

    def _pull(self, view: View, layer: LayerParameters, weight: Tensor) -> Tensor:
        """The term's gradient, 4 (W W' - s I) W."""
        run_axes = len(view.runs)
        rows = layer.matrix(weight.detach(), run_axes)  # (*R, groups, out / groups, in * taps)
        height, width = rows.shape[-2:]
        product = (rows @ rows.mT) @ rows if height <= width else rows @ (rows.mT @ rows)
        factor = 1.0 if self.reference_width is None else (self.reference_width / (height * layer.groups)) ** 2
        pull = product - rows * view.per_run(self.scale, weight, axes=3)
        pull = pull * view.per_run(self.strength, weight, axes=3) * (4.0 * factor)
        return layer.from_matrix(pull, weight, run_axes)
