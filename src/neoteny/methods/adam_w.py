"""AdamW over a View: Adam with weight decay outside the moments, for stacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from neoteny.methods.adam import Adam
from neoteny.methods.card import Card
from neoteny.methods.declaration import KernelTerms
from neoteny.methods.method import check_number
from neoteny.units.view import View


@dataclass(frozen=True)
class AdamW(Adam):
    r"""Adam with decoupled weight decay, as `torch.optim.AdamW` (Loshchilov and Hutter 2019).

    \(w \leftarrow (1 - \alpha\lambda) w\), then Adam's update, for every weight and bias that has a gradient. The
    moments do not see the decay. A reset weight starts again with moments and step count zero.

    Args:
        step_size: \(\alpha\), at least 0.
        betas: decay rates of both moments, each in [0, 1).
        eps: added to the root of the second moment.
        weight_decay: \(\lambda\), at least 0.

    Example:
        >>> AdamW(1e-3).weight_decay
        0.01
    """

    weight_decay: float | tuple[float, ...] = 0.01

    follows_schedule: ClassVar[bool] = True

    card: ClassVar[Card] = Card(
        "optimizers",
        "all weights and biases",
        "at every update",
        "two numbers per weight",
        "Loshchilov and Hutter 2019, Decoupled weight decay regularization",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "weight_decay")

    def kernel_terms(self) -> KernelTerms:
        """Adam, and decoupled weight decay."""
        terms = {"step_size": self.step_size, "betas": self.betas, "eps": self.eps}
        return KernelTerms(optimizer="adam", weight_decay=self.weight_decay, **terms)

    def _decay(self, view: View, parameter: Tensor) -> None:
        size = view.scheduled(view.per_run(self.step_size, parameter, view.axes(parameter)))
        parameter.mul_(1.0 - size * view.per_run(self.weight_decay, parameter, view.axes(parameter)))
