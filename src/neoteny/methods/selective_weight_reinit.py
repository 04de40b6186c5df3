"""Selective weight reinitialisation: every n updates, redraw the least useful weights of every layer, one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from neoteny.draws import rng
from neoteny.layers.regions import Region
from neoteny.methods.card import Card
from neoteny.methods.chosen_layers import refuse_without
from neoteny.methods.declaration import KernelState, KernelTerms, Reinit
from neoteny.methods.method import Method, State, check_choice, check_number, count_update
from neoteny.units.view import View

UTILITIES = ("gradient", "magnitude")
RULES = ("proportional", "threshold")


@dataclass(frozen=True)
class SelectiveWeightReinit(Method):
    r"""SWR: reinitialisation of single weights, without regard to units (Hernandez-Garcia et al. 2025).

    The utility of a weight is \(|g w|\) or \(|w|\), with the gradient of the training loss alone and the weight from
    before the update. Every `period` updates some weights of each linear layer and convolution are redrawn from that
    weight's initial distribution. Which ones, of \(N\) weights with utilities \(u\):

    - "proportional": the \(\lfloor k N \rfloor\) smallest, and one more with the probability of the fraction;
    - "threshold": all with \(u \le k \bar u\), \(\bar u\) the mean over the tensor.

    Redrawn weights have fresh optimizer state and are new to every other method (the authors' code leaves the
    optimizer alone). Biases and norms stay. A weight tensor without a gradient at the update stays, too. The authors
    find it better than continual backpropagation in small networks and those with layer norm, and equal otherwise.

    "proportional" sorts the weights of every layer at the end of a period, which on a small network takes as long as
    tens of updates.

    Args:
        period: updates between two reinitialisations, at least 1. No published default was found: sweep it with
            `amount`.
        amount: \(k\), at least 0: the share of weights ("proportional", at most 1), or the multiple of the mean
            utility ("threshold").
        utility: "gradient" for \(|g w|\), "magnitude" for \(|w|\).
        rule: "proportional" or "threshold".
        decay_rate: of a running average of the utility, in [0, 1), which starts again after each reinitialisation; 0
            for the utility at the update itself.

    Example:
        >>> SelectiveWeightReinit(period=100, amount=0.001).rule
        'proportional'
    """

    period: int
    amount: float | tuple[float, ...]
    utility: str = "gradient"
    rule: str = "proportional"
    decay_rate: float | tuple[float, ...] = 0.0

    redraws_weights: ClassVar[bool] = True

    card: ClassVar[Card] = Card(
        "resets and projections of weights",
        "single weights of linear layers and convolutions",
        "every `period` updates",
        "nothing; with an average, one number per weight",
        "Hernandez-Garcia et al. 2025, Reinitializing weights vs units for maintaining plasticity in neural networks",
    )

    def __post_init__(self) -> None:
        check_number(self, "period", 1, whole=True, single=True)
        check_choice(self, "rule", RULES)
        if self.rule == "proportional":
            check_number(self, "amount", 0.0, 1.0)
        else:
            check_number(self, "amount")
        check_choice(self, "utility", UTILITIES)
        check_number(self, "decay_rate", 0.0, 1.0, below_high=True)

    def init(self, view: View) -> State:
        """The number of updates, how many weights were redrawn, and the utilities that were measured since."""
        refuse_without(self, (layer.weight is not None for layer in view.layers), "linear layers and convolutions")
        count = torch.zeros(view.runs, dtype=torch.int64, device=view.seeds.device)
        return {"step": 0, "redrawn": count, "parameters": {}}

    def observe(self, view: View, state: State) -> None:
        """Measure the weights that have a gradient: at every update with an average, else where it is needed."""
        averages = isinstance(self.decay_rate, tuple) or self.decay_rate > 0.0
        if not averages and (state["step"] + 1) % self.period:
            return
        for name, weight in view.weights().items():
            gradient = view.gradient(name)
            if gradient is None:
                continue
            now = weight.detach().abs()
            if self.utility == "gradient":
                now = now * (gradient / view.gradient_scale()).abs()
            if name not in state["parameters"]:
                state["parameters"][name] = torch.zeros_like(now)
            average = state["parameters"][name]
            now = torch.where(now.isfinite(), now, average)
            average.lerp_(now, 1.0 - view.per_run(self.decay_rate, average, view.axes(average)))

    def step(self, view: View, state: State) -> None:
        """Redraw what is due at the end of a period; utilities start again."""
        if not count_update(state, self.period):
            return
        weights = view.weights()
        for name, average in state["parameters"].items():
            if name not in weights:  # frozen since it was measured
                continue
            due = self._due(view, name, average, state["step"])
            shape = weights[name].shape[len(view.runs) :]
            fresh = view.initial(name).draw_weight(view.seeds, state["step"], f"{name}/reinit", shape)
            region = Region.where(name, due)
            view.write(region, fresh)
            view.was_reset(region)
            state["redrawn"] += due.flatten(len(view.runs)).sum(-1)
        state["parameters"].clear()

    def on_reset(self, view: View, state: State, region: Region) -> None:
        """The average utility of a new weight starts at zero."""
        if region.name in state["parameters"]:
            region.write(state["parameters"][region.name], 0.0)

    def describe(self, view: View, state: State) -> str:
        """How many weights were redrawn."""
        return f"{int(state['redrawn'].sum()):,} weights redrawn"

    def kernel_terms(self) -> KernelTerms:
        """Redrawn weights."""
        how = Reinit(self.period, self.amount, self.utility, self.rule, self.decay_rate)
        return KernelTerms(reinit=how)

    def kernel_state(self, state: State) -> KernelState:
        """The number of updates, that of redrawn weights, and utilities."""
        return KernelState(clock=state, worth=state["parameters"], redrawn=state["redrawn"])

    def _due(self, view: View, name: str, utility: Tensor, step: int) -> Tensor:
        """Which weights to redraw, a mask of the weight's shape."""
        flat = utility.flatten(len(view.runs))  # (*R, N)
        if self.rule == "threshold":
            limit = flat.mean(-1, keepdim=True) * view.per_run(self.amount, flat, axes=1)
            return (flat <= limit).reshape(utility.shape)
        row = torch.zeros(view.runs, dtype=torch.int64, device=flat.device)
        chance = rng.uniform(view.seeds, step, f"{name}/reinit_count", row, 1).reshape(*view.runs, 1)
        expected = torch.as_tensor(view.per_run(self.amount, chance, axes=1), device=flat.device) * flat.shape[-1]
        number = expected.floor() + (chance < expected - expected.floor())  # (*R, 1)
        order = torch.argsort(flat, dim=-1, stable=True)
        ranks = torch.arange(flat.shape[-1], device=flat.device).expand_as(order)
        return torch.zeros_like(order).scatter_(-1, order, ranks).lt(number).reshape(utility.shape)
