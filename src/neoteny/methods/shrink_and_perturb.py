"""Shrink and perturb, the incremental form of Ash and Adams (2020): L2, and a little noise after every update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from neoteny.methods.card import Card
from neoteny.methods.declaration import KernelState, KernelTerms, RecordedStep
from neoteny.methods.l2 import add_shrinkage
from neoteny.methods.method import Method, State, check_number
from neoteny.methods.weight_noise import add_noise
from neoteny.units.view import View


@dataclass(frozen=True)
class ShrinkAndPerturb(Method):
    r"""Shrinks through the L2 term and adds Gaussian noise to all weights and biases after every update.

    \(\lambda\theta\) joins the gradient; after the update \(\theta \leftarrow \theta + \xi\) with
    \(\xi \sim N(0, \sigma^2)\). This is the incremental form (Dohare, Sutton and Mahmood 2023) of what Ash and Adams
    2020 do at a boundary. The former call the second parameter a variance; what is passed here (and in the published
    settings) is a standard deviation, hence the name. The code of UPGD and of weight clipping has another form of it,
    whose noise is also multiplied by the step size.

    Args:
        strength: \(\lambda\), at least 0. Published: 1e-4 (online permuted MNIST), 1e-5 (Continual ImageNet).
        noise_std: \(\sigma\), at least 0. Published: 1e-6 to 1e-4 (online permuted MNIST), 1e-5 (Continual ImageNet),
            1e-2 with Adam on L2-init's permuted MNIST.

    Example:
        >>> ShrinkAndPerturb(1e-4, noise_std=1e-5).noise_std
        1e-05
    """

    strength: float | tuple[float, ...]
    noise_std: float | tuple[float, ...]

    card: ClassVar[Card] = Card(
        "resets and projections of weights",
        "all weights and biases",
        "at every update",
        "nothing",
        "Ash and Adams 2020, On warm-starting neural network training",
    )

    def __post_init__(self) -> None:
        check_number(self, "strength")
        check_number(self, "noise_std")

    def init(self, view: View) -> State:
        """The number of updates so far, which keys the noise (a tensor while a recorded graph counts)."""
        return {"step": 0}

    def add_gradient(self, view: View, state: State) -> None:
        """Shrink: the gradient of the L2 term."""
        add_shrinkage(view, self.strength)

    def step(self, view: View, state: State) -> None:
        """Perturb: noise drawn for (run seed, step, parameter), one row of draws per row of a weight."""
        state["step"] += 1
        for name, parameter in view.parameters.items():
            add_noise(view, parameter, state["step"], f"{name}/perturb", self.noise_std)

    def kernel_terms(self) -> KernelTerms:
        """The L2 term, and noise after the update."""
        return KernelTerms(l2=self.strength, noise_std=self.noise_std)

    def kernel_state(self, state: State) -> KernelState:
        """The number of updates."""
        return KernelState(clock=state)

    def recorded_step(self) -> RecordedStep:
        """The whole step; the number of updates keys the noise."""
        return RecordedStep(counts=True)
