"""L2 regularisation as a loss term: its gradient joins the gradients before the update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from neoteny.methods.card import Card
from neoteny.methods.declaration import KernelTerms, RecordedStep
from neoteny.methods.method import Method, State, check_number
from neoteny.units.view import View


def add_shrinkage(view: View, strength: float | tuple[float, ...]) -> None:
    """Add strength * w to the gradient of every weight and bias."""
    for name, parameter in view.parameters.items():
        gradient = view.gradient(name)
        if gradient is not None:
            if gradient.is_sparse:
                raise TypeError(f"{name} has sparse gradients, but a loss term on all weights needs dense ones.")
            factor = view.per_run(strength, parameter, view.axes(parameter)) * view.gradient_scale()
            gradient.add_(parameter.detach() * factor)


@dataclass(frozen=True)
class L2(Method):
    r"""L2 regularisation: pulls every weight towards zero.

    Adds \(\lambda w\) to every gradient: the loss term \(\frac{\lambda}{2} \lVert w \rVert^2\).
    With plain SGD this is torch's `weight_decay`; with Adam it is L2 proper, not decoupled decay.

    Args:
        strength: \(\lambda\), at least 0. Published: 1e-4 (online permuted MNIST, of 1e-3 to 1e-5), 3e-6 (Continual
            ImageNet), with Adam 1e-2 and 1e-3 on L2-init's versions of the two.

    Example:
        >>> L2(1e-4).strength
        0.0001
    """

    strength: float | tuple[float, ...]

    card: ClassVar[Card] = Card("regularisers", "all weights and biases", "at every update", "nothing", "")

    def __post_init__(self) -> None:
        check_number(self, "strength")

    def add_gradient(self, view: View, state: State) -> None:
        """Add the term's gradient."""
        add_shrinkage(view, self.strength)

    def kernel_terms(self) -> KernelTerms:
        """The L2 term."""
        return KernelTerms(l2=self.strength)

    def recorded_step(self) -> RecordedStep:
        """There is nothing after the update."""
        return RecordedStep()
