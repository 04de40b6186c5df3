"""Hard resets: some layers, or the whole network, are drawn new on a clock or when a task begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from neoteny.layers.kinds import kind_of, norm_fresh
from neoteny.layers.regions import ChosenUnits, Region
from neoteny.methods.card import Card
from neoteny.methods.chosen_layers import belongs, check_layers, chosen_modules
from neoteny.methods.method import State, check_number, slot
from neoteny.methods.occasional import OccasionalMethod
from neoteny.units.fresh import draw_fresh, start_of
from neoteny.units.view import View


@dataclass(frozen=True)
class HardReset(OccasionalMethod):
    r"""Draws layers new, with their optimizer state, on a clock or when a task begins (Nikishin et al. 2022).

    Weights come from their layer's initial law, biases from their module's; norms go back to 1 and 0, and so do their
    running statistics. With `rest` above 0 all other parameters become
    \((1 - r)\,\theta + r\,\theta_\text{fresh}\), with new optimizer state too: BBF's reset (Schwarzer et al. 2023).
    Replay buffers are the caller's, and so is a target network: copy or reset it as well. A layer that shares its
    weight with another (a head with an embedding) is refused.

    Args:
        layers: "last" (the output layer), "all", or a tuple of names of modules.
        period: updates between two resets, or 0 for no clock. Published: the final layer every 2e4 steps (SPR; from
            memory), everything every 2e5 (SAC), the head every 1e5 (DrQ), every 2e4 until 1e5 (BBF).
        at_boundaries: reset when a task begins.
        rest: \(r\), in [0, 1], for all parameters outside `layers`; BBF has 0.5.

    Example:
        >>> HardReset.from_scratch().layers
        'all'
        >>> HardReset.head(period=20_000, rest=0.5).rest
        0.5
    """

    layers: str | tuple[str, ...] = "last"
    period: int = 0
    at_boundaries: bool = True
    rest: float | tuple[float, ...] = 0.0

    redraws_weights: ClassVar[bool] = True

    shared_by_runs: ClassVar[tuple[str, ...]] = ("layers",)
    card: ClassVar[Card] = Card(
        "resets and projections of weights",
        "chosen layers, or all",
        "every `period` updates or at a task boundary",
        "two numbers per parameter",
        "Nikishin et al. 2022, The primacy bias in deep reinforcement learning; Schwarzer et al. 2023, Bigger, better, "
        "faster",
    )

    def __post_init__(self) -> None:
        check_layers(self, "layers")
        self.check_moments()
        check_number(self, "rest", 0.0, 1.0)

    @classmethod
    def from_scratch(cls) -> HardReset:
        """A new network at every task: the baseline that loses no plasticity and keeps no knowledge."""
        return cls("all")

    @classmethod
    def head(cls, period: int = 0, rest: float = 0.0) -> HardReset:
        """A new output layer at every task, or every `period` updates."""
        return cls("last", period, at_boundaries=period == 0, rest=rest)

    def init(self, view: View) -> State:
        """The counters, and what is known of the first value of every parameter."""
        chosen_modules(view, self, self.layers)
        starts = {name: start_of(view, parameter) for name, parameter in view.parameters.items()}
        return {**super().init(view), "parameters": starts}

    def step(self, view: View, state: State) -> None:
        """Remember parameters that joined late; act if a period ends."""
        for name, parameter in view.parameters.items():
            slot(state, name, lambda parameter=parameter: start_of(view, parameter))
        super().step(view, state)

    def act(self, view: View, state: State) -> None:
        """Draw the layers, mix the rest, and tell everyone what is new."""
        modules = chosen_modules(view, self, self.layers)
        parameters = view.parameters
        for name, parameter in parameters.items():
            slot(state, name, lambda parameter=parameter: start_of(view, parameter))
        new = [name for name in parameters if belongs(name, modules)]
        mixed = [name for name in parameters if name not in new and self.rest != 0.0]
        fresh = draw_fresh(view, state["parameters"], [*new, *mixed], state["acts"], "hard_reset")
        for name in mixed:
            rate = view.per_run(self.rest, parameters[name], view.axes(parameters[name]))
            parameters[name].lerp_(fresh[name], rate)
            self._restart_mixed(view, name)
        for name in new:
            parameters[name].copy_(fresh[name])
            view.was_reset(Region.whole(name, parameters[name], len(view.runs)))
            view.restart_optimizer(name)
        _reset_statistics(view, modules)
        for group in view.groups:
            if all(port.weight in new for port in group.producers):
                mask = torch.ones(*view.runs, group.units, dtype=torch.bool, device=view.seeds.device)
                view.units_were_reset(group, ChosenUnits.of(mask), self)

    def _restart_mixed(self, view: View, name: str) -> None:
        """The optimizer starts again in every run whose share is not 0."""
        if not isinstance(self.rest, tuple) or all(self.rest):
            view.restart_optimizer(name)
            return
        whole = Region.whole(name, view.tensor(name), len(view.runs))
        runs = torch.tensor([run for run, share in enumerate(self.rest) if share], device=view.seeds.device)
        if len(runs):
            view.clear_optimizer(Region(name, (runs.unsqueeze(1), *whole.index[1:])))


def _reset_statistics(view: View, modules: tuple[str, ...]) -> None:
    """Running statistics of the norms in these modules back to their start; not of norms that are frozen."""
    buffers, parameters = view.buffers, view.parameters
    for module, each in view.structure.named_modules():
        if kind_of(each) != "norm" or not belongs(module, modules):
            continue
        own = [name for name, _ in each.named_parameters(module, recurse=False)]
        if own and not any(name in parameters for name in own):
            continue
        for key, value in norm_fresh(each).items():
            name = f"{module}.{key}" if module else key
            if name in buffers:
                buffers[name].fill_(value)
                view.was_reset(Region.whole(name, buffers[name], len(view.runs)))
        counter = f"{module}.num_batches_tracked" if module else "num_batches_tracked"
        if counter in buffers:
            buffers[counter].zero_()
