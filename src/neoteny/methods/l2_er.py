"""L2-ER: L2 regularisation, and at times one gradient step that raises the effective rank of the features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    to `period` updates are kept until then: with large batches of images they take more memory than the network. Their
    features are not: where the inputs are several passes, each is made twice, and one is in memory at a time.

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
        joined = view.joined(calls)
        with torch.enable_grad():
            at_once = len(joined) == 1
            found = self.slopes_at_once(view, joined) if at_once else self.slopes_by_pass(view, joined)
        for name, gradient in found.items():
            parameter = view.parameters[name]
            parameter.add_(gradient * view.per_run(self.rank_step_size, parameter, view.axes(parameter)))

    def slopes_at_once(self, view: View, calls: Sequence[Call]) -> dict[str, Tensor]:
        """The gradient of the mean rank by parameter, from all features together."""
        parts: dict[str, list[Tensor]] = {}
        for call in calls:
            for name, rows in self._features(view, call):
                parts.setdefault(name, []).append(rows)
        ranks = [effective_rank(torch.cat(parts[name], dim=-2)) for name in self._counted(view, parts)]
        return _differentiate(view, torch.stack(ranks).mean(0).sum()) if ranks else {}

    def slopes_by_pass(self, view: View, calls: Sequence[Call]) -> dict[str, Tensor]:
        """The same with the features of one pass in memory at a time, for which every pass is made twice.

        The triangular factor of all rows has their singular values and right vectors. With these, the gradient with
        respect to the rows of a pass is a product of these rows with a small matrix.
        """
        spectra: dict[str, Spectrum] = {}
        for call in calls:
            for name, rows in self._features(view, call):
                spectra.setdefault(name, Spectrum()).add(rows.detach())
        names = self._counted(view, spectra)
        slopes = {name: spectra[name].slope() / len(names) for name in names}
        total: dict[str, Tensor] = {}
        for call in calls if slopes else ():
            read = ((name, spectra[name].clean(rows)) for name, rows in self._features(view, call) if name in slopes)
            terms = [(rows * (rows.detach() @ slopes[name])).sum() for name, rows in read]
            for name, gradient in _differentiate(view, torch.stack(terms).sum()).items() if terms else ():
                total[name] = total[name] + gradient if name in total else gradient
        return total

    def _counted(self, view: View, found: Mapping[str, object]) -> list[str]:
        """The layers that count, in the order of modules."""
        names = [layer.module for layer in view.layers if layer.module in found]
        return names[-self.last_layers :] if self.last_layers else names

    def _features(self, view: View, call: Call) -> Iterator[tuple[str, Tensor]]:
        """What layers read from trained layers in a pass, (*R, examples, units) each, with the name of the layer."""
        axes = {layer.module: view.axes(view.tensor(layer.weight)) for layer in view.layers if layer.weight is not None}
        for name, values in view.forward(call, reads=list(axes)).inputs.items():
            for value in values:
                if value.requires_grad:
                    yield name, _rows(view, value, axes[name])


class Spectrum:
    """Singular values and right vectors of matrices (*R, n, m) whose rows come in parts."""

    def __init__(self) -> None:
        self._rows = 0
        self._factor: Tensor | None = None  # (*R, at most m, m)
        self._finite: Tensor | None = None  # (*R, 1, 1)

    def add(self, rows: Tensor) -> None:
        """Take further rows in."""
        rows = _at_least_float32(rows)
        finite = _is_finite(rows)
        rows = torch.where(finite, rows, 0.0)
        if self._factor is not None and self._finite is not None:
            rows, finite = torch.cat([self._factor, rows], dim=-2), finite & self._finite
        self._rows += rows.shape[-2] - (0 if self._factor is None else self._factor.shape[-2])
        self._factor, self._finite = torch.linalg.qr(rows, mode="r").R, finite

    def clean(self, rows: Tensor) -> Tensor:
        """Some of the rows; zeros for a matrix with a number that is not finite."""
        assert self._finite is not None  # rows were added
        return torch.where(self._finite, _at_least_float32(rows), 0.0)

    def slope(self) -> Tensor:
        """(*R, m, m): the gradient of the effective rank with respect to rows is these rows times it."""
        assert self._factor is not None  # rows were added
        assert self._finite is not None
        _, values, right = torch.linalg.svd(self._factor, full_matrices=False)
        values = _without_noise(values, max(self._rows, right.shape[-1]))
        total = values.sum(-1, keepdim=True)
        share = values / torch.where(total > 0.0, total, 1.0)
        logarithm = torch.where(share > 0.0, share, 1.0).log()
        entropy = -(share * logarithm).sum(-1, keepdim=True)
        slope = entropy.exp() * (-logarithm - entropy) / torch.where(total > 0.0, total, 1.0)
        per_row = torch.where(values > 0.0, slope / torch.where(values > 0.0, values, 1.0), 0.0)
        return torch.where(self._finite, right.mT @ (per_row.unsqueeze(-1) * right), 0.0)


def effective_rank(matrix: Tensor) -> Tensor:
    """Effective rank (*R,) of matrices (*R, n, m), with a gradient that is finite everywhere.

    A matrix of zeros, or one with a number that is not finite, gives 1 and no gradient.
    """
    matrix = _at_least_float32(matrix)
    values = torch.linalg.svdvals(torch.where(_is_finite(matrix), matrix, 0.0))
    values = _without_noise(values, max(matrix.shape[-2:]))
    total = values.sum(-1, keepdim=True)
    share = values / torch.where(total > 0.0, total, 1.0)
    logarithm = torch.where(share > 0.0, share, 1.0).log()
    return torch.exp(-(share * logarithm).sum(-1))


def _at_least_float32(matrix: Tensor) -> Tensor:
    return matrix.to(torch.promote_types(matrix.dtype, torch.float32))


def _is_finite(matrix: Tensor) -> Tensor:
    """(*R, 1, 1)."""
    return matrix.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)


def _without_noise(values: Tensor, largest_side: int) -> Tensor:
    """Singular values with those that are zero to rounding as 0."""
    noise = torch.finfo(values.dtype).eps * largest_side * values.detach().amax(-1, keepdim=True)
    return torch.where(values > noise, values, 0.0)


def _differentiate(view: View, value: Tensor) -> dict[str, Tensor]:
    """Gradients by parameter, of those that the value depends on."""
    parameters = view.parameters
    found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(parameters, found, strict=True) if gradient is not None}


def _rows(view: View, value: Tensor, weight_axes: int) -> Tensor:
    """(*R, ..., units, *positions) -> (*R, examples * positions, units)."""
    positions = weight_axes - 2
    return value.movedim(-1 - positions, -1).flatten(len(view.runs), -2)
