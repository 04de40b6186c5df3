"""C-CHAIN: keep what the network says about other data from moving while it learns from a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from neoteny.layers.regions import Region
from neoteny.methods.card import Card
from neoteny.methods.method import BoundaryData, Method, State, check_choice, check_flag, check_number, slot
from neoteny.methods.state import INPUTS, move_nested
from neoteny.units.calls import Call
from neoteny.units.view import View

_SMALL = 1e-8  # the authors', beside the mean distance


@dataclass(frozen=True)
class CChain(Method):
    r"""Penalises churn, the change of outputs on data that are not being learned (Tang et al. 2025).

    Adds \(c\, D(f_{\text{old}}, f)\) to the loss, on a reference batch. \(f_{\text{old}}\) is the network as it was
    `lag` updates ago and is held constant. The distance \(D\) is the mean squared difference of outputs
    (`distance="mse"`: values, means of actions), or the cross-entropy of softmax outputs along the last axis
    (`distance="cross_entropy"`: policies, classes). Of a network that returns several tensors the first counts, of a
    mapping its entry "logits".

    With `beta`, after `warmup` updates \(c = \beta\, \overline{|\text{loss}|} / (\overline D + 10^{-8})\), with means
    over the last `window` updates that had the term, the present one not included. A user's loop then calls
    `plastic.observe(loss)` before `optimizer.step()`. Without `beta`, \(c\) is `coefficient`.

    The authors draw the reference batch from a replay buffer or from the data of the iteration. Here it is the batch of
    `reference_age` updates ago: not the present one, and not one of those that moved \(f_{\text{old}}\) to \(f\), whose
    outputs are meant to move. Where neighbouring batches are alike (a stream that is not shuffled), a larger age is
    nearer to the authors' batch.

    The term joins the gradients inside of `optimizer.step()`. Where the loop clips gradients before, the loss's are
    clipped and the term's are not, and with `beta` training may diverge: clip the sum, as "Your own model" shows.

    Both passes are made in evaluation mode. When another method resets an element, the old network gets its new value,
    so the term does not work against resets.

    Args:
        coefficient: \(c\) before `warmup` updates, or without `beta` always; at least 0. The authors use 50
            (Q-learning) and 100 (PPO on DMC) for the warm-up.
        beta: \(\beta\), at least 0, or None. The authors use 0.01 (Q-learning), 0.05 (PPO on DMC), 1e4 (Gym control).
        distance: "mse" or "cross_entropy".
        lag: how many updates ago the old network was, at least 1; the authors use 1 to 2. It is the number of copies
            of the weights that are kept.
        reference_age: how many updates ago the reference batch was learned from, above `lag`. The inputs of so many
            updates are kept.
        window: updates that the means are over, at least 1; the authors use 5e4 (Q-learning). Two numbers are kept for
            each.
        warmup: updates with the fixed coefficient; the authors use 1e4 (Q-learning).
        minimum: of \(c\) with `beta`; the authors use 1 in Gym control.
        reset_at_boundary: forget the means at a task boundary, as the authors do in Gym control.

    Example:
        >>> CChain(0.5, beta=None, distance="cross_entropy").lag
        1
    """

    coefficient: float | tuple[float, ...] = 50.0
    beta: float | tuple[float, ...] | None = 0.01
    distance: str = "mse"
    lag: int = 1
    reference_age: int = 2
    window: int = 50_000
    warmup: int = 10_000
    minimum: float | tuple[float, ...] = 0.0
    reset_at_boundary: bool = False

    needs_inputs: ClassVar[bool] = True

    card: ClassVar[Card] = Card(
        "regularisers",
        "all weights and biases",
        "at every update",
        "one or two copies of the weights, and the inputs of two or more updates",
        "Tang et al. 2025, Mitigating plasticity loss in continual reinforcement learning by reducing churn",
    )

    def __post_init__(self) -> None:
        check_number(self, "coefficient")
        if self.beta is not None:
            check_number(self, "beta")
        check_choice(self, "distance", ("mse", "cross_entropy"))
        check_number(self, "lag", 1, whole=True, single=True)
        check_number(self, "reference_age", 1, whole=True, single=True)
        check_number(self, "window", 1, whole=True, single=True)
        check_number(self, "warmup", 0, whole=True, single=True)
        check_number(self, "minimum")
        check_flag(self, "reset_at_boundary")
        if self.reference_age <= self.lag:
            raise ValueError(
                f"CChain: reference_age must be above lag, so that the reference batch is none that moved the old "
                f"network to the present one; got {self.reference_age} and {self.lag}."
            )

    @property
    def needs_loss(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the coefficient follows the loss."""
        return self.beta is not None

    def init(self, view: View) -> State:
        """The old networks, the inputs to come, and the running means."""
        state: State = {"step": 0, "parameters": {}, INPUTS: {}}
        for name, parameter in view.parameters.items():
            self._old(state, name, parameter)
        if self.beta is not None:
            device = view.seeds.device
            state["count"] = 0
            for key in ("losses", "distances"):
                values = torch.zeros((*view.runs, self.window), dtype=torch.float64, device=device)
                state[key] = {"values": values, "sum": torch.zeros(view.runs, dtype=torch.float64, device=device)}
        return state

    def penalty(self, view: View, state: State) -> Tensor | None:
        """The term; None while there is no reference batch."""
        kept = state[INPUTS].get(str(state["step"] % self.reference_age))
        if not kept:
            return None
        age = str(state["step"] % self.lag)
        old = {name: self._old(state, name, value)[age] for name, value in view.parameters.items()}
        total, examples = None, 0
        for call in map(Call.made_from, kept.values()):
            with torch.no_grad():
                before = _first(view.forward(call, old).outputs)
            now = _first(view.forward(call).outputs)
            size = now.shape[len(view.runs)]
            share = self._distance(before, now, len(view.runs)) * size
            total, examples = share if total is None else total + share, examples + size
        if total is None or not total.requires_grad:
            return None
        distance = total / examples
        state["distance"] = distance.detach()
        return distance * self._coefficient(view, state, distance)

    def transform_gradients(self, view: View, state: State) -> None:
        """Keep the network as it is before this update."""
        age = str(state["step"] % self.lag)
        for name, parameter in view.parameters.items():
            self._old(state, name, parameter)[age].copy_(parameter.detach())

    def step(self, view: View, state: State) -> None:
        """Keep this update's inputs, distance and loss."""
        name = type(self).__name__
        calls = {str(number): call.kept(name) for number, call in enumerate(view.calls)}
        state[INPUTS][str(state["step"] % self.reference_age)] = calls
        state["step"] += 1
        distance = state.pop("distance", None)
        if self.beta is not None and distance is not None and view.loss is not None:
            place = state["count"] % self.window
            _push(state["losses"], place, view.loss.abs())
            _push(state["distances"], place, distance)
            state["count"] += 1

    def task_boundary(self, view: View, state: State, data: BoundaryData | None = None) -> None:
        """Forget the means, where that is asked for."""
        if self.reset_at_boundary and self.beta is not None:
            state["count"] = 0
            for key in ("losses", "distances"):
                state[key]["values"].zero_()
                state[key]["sum"].zero_()

    def on_reset(self, view: View, state: State, region: Region) -> None:
        """The old networks have the new value of a reset element, too."""
        for copy in state["parameters"].get(region.name, {}).values():
            region.copy(view.tensor(region.name), copy)

    def export(self, state: State) -> State:
        """All but the distance of an update that has begun."""
        return {key: value for key, value in state.items() if key != "distance"}

    def restore(self, view: View, state: State, saved: State) -> None:
        """Load what was saved, to where the network is."""
        super().restore(view, state, saved)
        move_nested(state[INPUTS], view.seeds.device)

    def _old(self, state: State, name: str, parameter: Tensor) -> dict[str, Tensor]:
        """The copies of a parameter from before each of the last `lag` updates."""
        return slot(state, name, lambda: {str(age): parameter.detach().clone() for age in range(self.lag)})

    def _coefficient(self, view: View, state: State, like: Tensor) -> float | Tensor:
        if self.beta is None or state["step"] < self.warmup or state["count"] == 0:
            return view.per_run(self.coefficient, like, axes=0)
        number = min(state["count"], self.window)
        loss, distance = (state[key]["sum"] / number for key in ("losses", "distances"))
        found = view.per_run(self.beta, loss, axes=0) * loss / (distance + _SMALL)
        minimum: Any = view.per_run(self.minimum, loss, axes=0)
        return found.clamp_min(minimum).to(like)

    def _distance(self, before: Tensor, now: Tensor, run_axes: int) -> Tensor:
        """D of one pass, (*R,)."""
        if self.distance == "mse":
            each = (now - before).square()
        else:
            if now.dim() < run_axes + 2:
                raise ValueError(
                    f"CChain: cross_entropy needs outputs (batch, ..., classes); got shape {tuple(now.shape)}."
                )
            each = -(before.softmax(-1) * now.log_softmax(-1)).sum(-1)
        return each.flatten(run_axes).mean(-1)


def _first(outputs: Any) -> Tensor:
    """The tensor that counts, in at least single precision."""
    found = outputs
    if isinstance(found, Mapping):
        found = found.get("logits")
    elif isinstance(found, (tuple, list)) and found:
        found = found[0]
    if not isinstance(found, Tensor) or not found.is_floating_point() or found.dim() == 0:
        raise TypeError(
            "CChain needs a network that returns a tensor (batch, ...), a tuple of tensors, or a mapping with the "
            f"entry 'logits'; got {type(outputs).__name__}."
        )
    return found.to(torch.promote_types(found.dtype, torch.float32))


def _push(mean: dict[str, Tensor], place: int, value: Tensor) -> None:
    """Put a number per run into a window that keeps its sum."""
    values, total = mean["values"], mean["sum"]
    total.add_(value - values[..., place])
    values[..., place] = value
    if place == values.shape[-1] - 1:  # once per window, so that rounding does not add up
        total.copy_(values.sum(-1))
