"""L2-ER: L2 regularisation, and at times one gradient step that raises the effective rank of the features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from neoteny.methods.card import Card
from neoteny.methods.l2 import add_shrinkage
from neoteny.methods.method import Method, State, check_number, count_update
from neoteny.methods.state import INPUTS, move_nested
from neoteny.units.calls import Call
from neoteny.units.view import View


@dataclass(frozen=True)
class L2ER(Method):
    r"""L2 regularisation together with ascent on the effective rank of features (He et al. 2026).

    Adds \(\lambda w\) to every gradient. Every `period` updates, after the update, it makes one plain gradient step

    .. math::
        \theta \leftarrow \theta + \eta \nabla_\theta \frac{1}{L} \sum_l \operatorname{erank}(H_l), \qquad
        \operatorname{erank}(H) = \exp\Bigl(-\sum_k p_k \log p_k\Bigr), \quad
        p_k = \sigma_k(H) / \sum_j \sigma_j(H)

    on the inputs of all these updates. The optimizer's state takes no part. \(H_l\) (examples, units), not centred, is
    what a linear layer or convolution reads from the layers before it; of a convolution every position is an example
    (our choice). Singular values that are zero to rounding count for nothing and have no gradient. The authors report
    that the rank step without L2 does nothing.

    The pass is made in evaluation mode: dropout is off, and batch norms use their running statistics. The inputs of up
    to `period` updates are kept until then: with large batches of images they take more memory than the network.

    Args:
        strength: \(\lambda\) of L2, at least 0; the authors use 1e-3.
        period: updates between two rank steps, at least 1. The authors use 100 on permuted MNIST with one example per
            update, 12 on Continual ImageNet, and 5 on CIFAR.
        rank_step_size: \(\eta\), at least 0, or 0 for no rank steps. The authors use 1e-3 (MNIST, CIFAR), 1e-4
            (ImageNet) and 1e-6 (ant).
        last_layers: how many layers count, from the last; 0 for all. The authors use the last two of convolutional
            networks.

    Example:
        >>> L2ER(period=12, rank_step_size=1e-4, last_layers=2).strength
        0.001
    """

    strength: float | tuple[float, ...] = 1e-3
    period: int = 100
    rank_step_size: float | tuple[float, ...] = 1e-3
    last_layers: int = 0

    needs_inputs: ClassVar[bool] = True

    card: ClassVar[Card] = Card(
        "regularisers",
        "all weights and biases",
        "L2 at every update, a rank step every `period` updates",
        "the inputs of up to `period` updates",
        "He et al. 2026, Spectral collapse drives loss of plasticity in deep continual learning",
    )

    def __post_init__(self) -> None:
        check_number(self, "strength")
        check_number(self, "period", 1, whole=True, single=True)
        check_number(self, "rank_step_size")
        check_number(self, "last_layers", 0, whole=True, single=True)

    def init(self, view: View) -> State:
        """The number of updates, and the inputs since the last rank step."""
        return {"step": 0, INPUTS: {}}

    def add_gradient(self, view: View, state: State) -> None:
        """Add the gradient of L2."""
        add_shrinkage(view, self.strength)

    def step(self, view: View, state: State) -> None:
        """Keep the inputs; at the end of a period raise the ranks."""
        due = count_update(state, self.period)
        if self.rank_step_size == 0.0:
            return
        kept = state[INPUTS]
        for call in view.calls:
            kept[str(len(kept))] = call.kept(type(self).__name__)
        if due:
            self._raise_ranks(view, [Call.made_from(each) for each in kept.values()])
            kept.clear()

    def restore(self, view: View, state: State, saved: State) -> None:
        """Load what was saved, to where the network is."""
        super().restore(view, state, saved)
        move_nested(state[INPUTS], view.seeds.device)

    def _raise_ranks(self, view: View, calls: Sequence[Call]) -> None:
        with torch.enable_grad():
            ranks = [effective_rank(features) for features in self._features(view, calls)]
            if not ranks:  # no trained layer is read by another
                return
            parameters = view.parameters
            mean = torch.stack(ranks).mean(0)  # (*R,)
            found = torch.autograd.grad(mean.sum(), list(parameters.values()), allow_unused=True)
        for parameter, gradient in zip(parameters.values(), found, strict=True):
            if gradient is not None:
                size = view.per_run(self.rank_step_size, parameter, view.axes(parameter))
                parameter.add_(gradient * size)

    def _features(self, view: View, calls: Sequence[Call]) -> list[Tensor]:
        """What layers read from trained layers, (*R, examples, units) each, in the order of modules."""
        layers = [layer for layer in view.layers if layer.weight is not None]
        parts: dict[str, list[Tensor]] = {layer.module: [] for layer in layers}
        axes = {layer.module: view.axes(view.tensor(str(layer.weight))) for layer in layers}
        for call in view.joined(calls):
            for name, values in view.forward(call, reads=list(parts)).inputs.items():
                parts[name] += [_rows(view, value, axes[name]) for value in values if value.requires_grad]
        features = [torch.cat(rows, dim=-2) for rows in parts.values() if rows]
        return features[-self.last_layers :] if self.last_layers else features


def effective_rank(matrix: Tensor) -> Tensor:
    """Effective rank (*R,) of matrices (*R, n, m), with a gradient that is finite everywhere.

    A matrix of zeros, or one with a number that is not finite, gives 1 and no gradient.
    """
    matrix = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    finite = matrix.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    values = torch.linalg.svdvals(torch.where(finite, matrix, 0.0))
    noise = torch.finfo(values.dtype).eps * max(matrix.shape[-2:]) * values.detach().amax(-1, keepdim=True)
    values = torch.where(values > noise, values, 0.0)
    total = values.sum(-1, keepdim=True)
    share = values / torch.where(total > 0.0, total, 1.0)
    logarithm = torch.where(share > 0.0, share, 1.0).log()
    return torch.exp(-(share * logarithm).sum(-1))


def _rows(view: View, value: Tensor, weight_axes: int) -> Tensor:
    """(*R, ..., units, *positions) -> (*R, examples * positions, units)."""
    positions = weight_axes - 2
    return value.movedim(-1 - positions, -1).flatten(len(view.runs), -2)
