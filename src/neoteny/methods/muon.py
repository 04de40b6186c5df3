"""Muon: updates of hidden matrices are their momentum made nearly orthogonal; Adam trains the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from neoteny.layers.regions import Region
from neoteny.methods.adam_update import ElementSteps, adam_update
from neoteny.methods.card import Card
from neoteny.methods.method import Method, State, check_betas, check_choice, check_number, slot
from neoteny.units.view import View

ON_ADAM = ("output", "vectors", "all")
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_SMALLEST_NORM = 1e-7


@dataclass(frozen=True)
class Muon(Method):
    r"""Momentum orthogonalised by Newton-Schulz steps, for hidden weight matrices (Jordan et al. 2024).

    With momentum \(M \leftarrow \mu M + (1 - \mu) G\) and \(U = \mu M + (1 - \mu) G\) (Nesterov), five times
    \(X \leftarrow a X + (b A + c A^2) X\), \(A = X X^\top\), from \(X = U / \lVert U \rVert_F\), with
    (a, b, c) = (3.4445, -4.7750, 2.0315); then \(W \leftarrow (1 - \alpha\lambda) W - \alpha \sqrt{\max(1,
    \text{rows} / \text{columns})}\, X\). A convolution is the matrix (out, in * taps). All else is trained by Adam with
    a share of the step size: biases, gains, embeddings and the output layer, which is the last layer that the network
    lists. `torch.optim.Muon` is the same rule, with X in bfloat16; here X has the precision of the weights.

    An optimizer made by `from_method` sees no layers: it takes the last matrix for the output layer, and every other
    one for a hidden matrix. Name them by parameter groups where that is wrong:
    `[{"params": hidden, "adam": "vectors"}, {"params": rest, "adam": "all"}]`.

    A weight whose first axis counts inputs (a transposed convolution) is taken as it lies.

    Each Newton-Schulz step takes three products of matrices. With small batches that is most of the update's time.

    Args:
        step_size: \(\alpha\) of hidden matrices, at least 0; 0.02 in the authors' code (from memory, not verified).
        momentum: \(\mu\), in [0, 1); the authors use 0.95.
        weight_decay: \(\lambda\), at least 0, for all parameters, each with its own step size.
        adam: what Adam trains. "output": all but hidden matrices; "vectors": what is no matrix; "all": everything.
        adam_share: Adam's step size as a share of `step_size`; a tenth, as the authors advise.
        betas: Adam's decay rates, each in [0, 1) (from memory of the authors' code, not verified).
        eps: added to the root of Adam's second moment.

    Example:
        >>> Muon(0.02).momentum
        0.95
    """

    step_size: float | tuple[float, ...]
    momentum: float = 0.95
    weight_decay: float | tuple[float, ...] = 0.0
    adam: str = "output"
    adam_share: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8

    is_optimizer: ClassVar[bool] = True
    shared_by_runs: ClassVar[tuple[str, ...]] = ("betas",)

    card: ClassVar[Card] = Card(
        "optimizers",
        "hidden matrices; Adam acts on the rest",
        "at every update",
        "one number per weight, two where Adam acts",
        "Jordan et al. 2024, Muon: an optimizer for hidden layers in neural networks",
    )

    def __post_init__(self) -> None:
        check_number(self, "step_size")
        check_number(self, "momentum", 0.0, 1.0, below_high=True, single=True)
        check_number(self, "weight_decay")
        check_choice(self, "adam", ON_ADAM)
        check_number(self, "adam_share", single=True)
        check_number(self, "eps", single=True)
        check_betas(self)

    def init(self, view: View) -> State:
        """The number of updates; momenta and moments are made when a parameter is first updated."""
        return {"step": 0, "resets": {}, "parameters": {}}

    def step(self, view: View, state: State) -> None:
        """The update."""
        state["step"] += 1
        hidden, updated = self._hidden(view), list[str]()
        for name, parameter in view.parameters.items():
            gradient = view.gradient(name)
            if gradient is None:
                continue
            updated.append(name)
            axes = view.axes(parameter)
            size = view.per_run(self.step_size, parameter, axes)
            size = size if name in hidden else size * self.adam_share
            parameter.mul_(1.0 - size * view.per_run(self.weight_decay, parameter, axes))
            kept: dict[str, Any] = slot(state, name, dict)
            if name in hidden:
                velocity = _tensor(kept, "momentum", parameter).lerp_(gradient, 1.0 - self.momentum)
                matrix = gradient.lerp(velocity, self.momentum).flatten(len(view.runs) + 1)
                rows, columns = matrix.shape[-2:]
                direction = orthogonalise(matrix).reshape(parameter.shape)
                parameter.sub_(direction * (size * math.sqrt(max(1.0, rows / columns))))
            else:
                self._update_by_adam(view, state, name, gradient, size)
        if len(updated) < len(state["parameters"]):
            ElementSteps.miss(state["resets"], state["parameters"], updated)

    def on_reset(self, view: View, state: State, region: Region) -> None:
        """Momentum or moments, and the step count, of the region to zero."""
        if region.name in state["parameters"]:
            for kept in state["parameters"][region.name].values():
                region.write(kept, 0.0)
            resets = state["resets"].setdefault(region.name, {})
            ElementSteps.record(resets, view.tensor(region.name), region, state["step"])

    def _hidden(self, view: View) -> set[str]:
        """The matrices that are orthogonalised."""
        if self.adam == "all":
            return set()
        if view.layers:
            found = set(view.weights())
        else:
            found = {name for name, parameter in view.parameters.items() if view.axes(parameter) > 1}
        return found - {view.output_weight()} if self.adam == "output" else found

    def _update_by_adam(self, view: View, state: State, name: str, gradient: Tensor, size: Any) -> None:
        parameter, kept, run_axes = view.parameters[name], state["parameters"][name], len(view.runs)
        if state["step"] > 1 and "first" not in kept:  # unfrozen or added later: its first update is now
            resets = state["resets"].setdefault(name, {})
            ElementSteps.record(resets, parameter, Region.whole(name, parameter, run_axes), state["step"] - 1)
        first, second = (_tensor(kept, key, parameter) for key in ("first", "second"))
        steps = ElementSteps(state["step"], state["resets"].get(name), run_axes)
        adam_update(parameter, gradient, first, second, steps, size, self.betas, self.eps)


def orthogonalise(matrix: Tensor) -> Tensor:
    """Five Newton-Schulz steps: singular values of (*R, rows, columns) go near 1, singular vectors stay."""
    a, b, c = COEFFICIENTS
    x = matrix.float() if matrix.dtype in (torch.float16, torch.bfloat16) else matrix
    tall = matrix.shape[-2] > matrix.shape[-1]
    if tall:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(_SMALLEST_NORM)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(matrix.dtype)


def _tensor(kept: dict[str, Any], key: str, parameter: Tensor) -> Tensor:
    if key not in kept:
        kept[key] = torch.zeros_like(parameter).detach()
    return kept[key]
