"""DASH: at a task boundary, weights shrink where they disagree with the gradient of the new data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from neoteny.methods.card import Card
from neoteny.methods.chosen_layers import refuse_without
from neoteny.methods.method import BoundaryData, Method, State, check_flag, check_number
from neoteny.units.view import View


@dataclass(frozen=True)
class DASH(Method):
    r"""Direction-aware shrinking of weights at a task boundary (Shin et al. 2024).

    One pass over the new task's data averages the negative gradient, \(M \leftarrow (1 - a) M - a g\), from zero. Then
    each vector of weights is multiplied by \(\cos(M, w)\), clamped to \([\lambda, 1]\). Vectors are the rows of a
    linear layer, the kernels of each pair of channels of a convolution, and each bias as a whole. Parameters of norms
    and all others are kept. The optimizer starts again.

    The pass changes nothing else: buffers, such as the statistics of batch norms, are put back. Weights are not
    changed before it ends. From code of third parties; the authors' own was not read.

    It needs the data: `plastic.task_boundary(data, loss)`, or `stack.task_boundary(data)`.

    Args:
        rate: \(a\), in [0, 1]; 0.1 to 0.3 in published settings.
        floor: \(\lambda\), in [0, 1]; 0.05 to 0.3 in published settings.
        clear_optimizer: put the optimizer's state back to its start.

    Example:
        >>> DASH(floor=0.05).rate
        0.3
    """

    rate: float | tuple[float, ...] = 0.3
    floor: float | tuple[float, ...] = 0.3
    clear_optimizer: bool = True

    needs_boundary_data: ClassVar[bool] = True

    card: ClassVar[Card] = Card(
        "resets and projections of weights",
        "weights and biases of linear layers and convolutions",
        "at a task boundary, after a pass over its data",
        "nothing",
        "Shin et al. 2024, DASH: warm-starting neural network training in stationary settings without loss of "
        "plasticity",
    )

    def __post_init__(self) -> None:
        check_number(self, "rate", 0.0, 1.0)
        check_number(self, "floor", 0.0, 1.0)
        check_flag(self, "clear_optimizer")

    def init(self, view: View) -> State:
        """Nothing; a network without a layer to shrink is told at once."""
        refuse_without(self, (layer.scale is None for layer in view.layers), "linear layers and convolutions")
        return {}

    def task_boundary(self, view: View, state: State, data: BoundaryData | None = None) -> None:
        """Average the negative gradient over the new data, then shrink."""
        assert data is not None  # of a method that needs it
        averages = self._average(view, data)
        parameters = view.parameters
        for layer in view.layers:
            for name in (layer.weight, layer.bias) if layer.scale is None else ():
                if name in parameters and name in averages:
                    parameter = parameters[name]
                    parameter.mul_(self._factors(view, averages[name], parameter))
        for name in parameters if self.clear_optimizer else ():
            view.restart_optimizer(name)

    def _average(self, view: View, data: BoundaryData) -> dict[str, Tensor]:
        """M by parameter; buffers end as they were."""
        kept = {name: buffer.detach().clone() for name, buffer in view.buffers.items()}
        averages: dict[str, Tensor] = {}
        batches = 0
        for gradients in data.gradients():
            batches += 1
            for name, gradient in gradients.items():
                average = averages.setdefault(name, torch.zeros_like(gradient))
                average.lerp_(-gradient, view.per_run(self.rate, gradient, view.axes(gradient)))
        for name, buffer in view.buffers.items():
            buffer.copy_(kept[name])
        if not batches:
            raise ValueError(
                "DASH needs at least one batch of the new task; task_boundary(data=...) got an empty iterable (an "
                "iterator that was used up, perhaps)."
            )
        return averages

    def _factors(self, view: View, average: Tensor, parameter: Tensor) -> Tensor:
        """What each vector of a parameter is multiplied by, with axes of size 1 for its elements."""
        first = len(view.runs)  # of a bias all elements; of a matrix the inputs; of a convolution the taps
        axes = tuple(range(first + min(view.axes(parameter) - 1, 2), parameter.dim()))
        product = (average * parameter).sum(axes, keepdim=True)
        sizes = average.square().sum(axes, keepdim=True) * parameter.square().sum(axes, keepdim=True)
        cosine = torch.where(sizes > 0.0, product / sizes.sqrt(), torch.zeros_like(product))
        floor = view.per_run(self.floor, parameter, view.axes(parameter))
        lifted = cosine.clamp_min(floor) if isinstance(floor, (int, float)) else torch.maximum(cosine, floor)
        return lifted.clamp_max(1.0)
