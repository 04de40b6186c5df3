"""Plasticity injection: a fresh head is added to the old one and to its own negative, and only it learns on."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from neoteny.layers.recurrent import RECURRENT
from neoteny.methods.card import Card
from neoteny.methods.chosen_layers import check_layers, chosen_modules
from neoteny.methods.method import BoundaryData, Method, State, check_flag, check_number, count_update
from neoteny.units.bind import refuse_port
from neoteny.units.fresh import draw_fresh, start_of
from neoteny.units.view import View

_ONE_TENSOR = "name a module that returns one tensor, such as head=('fc',)."


class InjectedHead(nn.Module):
    """h(x) + h1(x) - h2(x): what was there, frozen; a fresh copy that learns; the same copy, frozen.

    Attributes:
        frozen: the old head.
        trained: the new one.
        anchor: what the new one was at the injection.
    """

    def __init__(self, frozen: nn.Module, trained: nn.Module, anchor: nn.Module) -> None:
        super().__init__()
        self.frozen, self.trained, self.anchor = frozen, trained, anchor

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The sum; gradients reach the input through all three."""
        old, new, start = (head(*args, **kwargs) for head in (self.frozen, self.trained, self.anchor))
        if not isinstance(old, Tensor):
            kind = type(old).__name__
            raise TypeError(f"PlasticityInjection adds what heads return, and this one returns a {kind}: {_ONE_TENSOR}")
        return old + (new - start)  # exactly the old output as long as nothing was learned


@dataclass(frozen=True)
class PlasticityInjection(Method):
    r"""Gives the head of a network fresh weights without changing what it computes (Nikishin et al. 2023).

    At an injection the head becomes \(h_\theta(x) + h_{\theta_1}(x) - h_{\theta_2}(x)\) with \(\theta_1 = \theta_2\)
    drawn from the head's initial law. \(\theta\) and \(\theta_2\) are frozen; \(\theta_1\), with new optimizer state,
    and the layers before the head are trained, with gradients through all three. The output does not change, nor does
    the number of trained parameters. Each injection adds two heads to compute.

    It is a diagnosis as well: if it helps, plasticity was what was missing. A target network is the caller's: give it
    the same structure. A saved attachment is loaded first, then the model and the optimizer, since loading it rebuilds
    the head. Units that feed the head cannot be reset at the same time.

    Args:
        head: "last" (the output layer), or a tuple with the name of one module.
        at: inject at this update, counted from 1, or as soon afterwards as the head is trainable; 0 for no clock. The
            authors inject once, for example after 50 of 200 million frames.
        at_boundaries: inject whenever a task begins; None for yes if `at` is 0, else no.

    Example:
        >>> PlasticityInjection(at=50_000).head
        'last'
    """

    head: str | tuple[str, ...] = "last"
    at: int = 0
    at_boundaries: bool | None = None

    redraws_weights: ClassVar[bool] = True

    shared_by_runs: ClassVar[tuple[str, ...]] = ("head",)
    card: ClassVar[Card] = Card(
        "resets and projections of weights",
        "the head",
        "at one update, or at task boundaries",
        "two more heads per injection",
        "Nikishin et al. 2023, Deep reinforcement learning with plasticity injection",
    )

    def __post_init__(self) -> None:
        check_layers(self, "head", ("last",))
        if isinstance(self.head, tuple) and len(self.head) != 1:
            raise ValueError(f"PlasticityInjection: head must name one module; got {self.head!r}.")
        check_number(self, "at", 0, whole=True, single=True)
        if self.at_boundaries is not None:
            check_flag(self, "at_boundaries")

    def why_not_with(self, others: Sequence[Method]) -> str:
        """Units that feed the output layer would be reset in one of its three copies alone."""
        units = [type(other).__name__ for other in others if other.needs_units]
        if units and self.head == "last":
            return f"{units[0]} resets units that the head reads, and an injected head has three copies of them."
        return ""

    def init(self, view: View) -> State:
        """The number of updates and of injections."""
        name = self._name(view)
        if not name:
            raise ValueError(
                "PlasticityInjection: the network is a single layer, so there is no module around its head in which "
                "another could take its place. Wrap it, for example in nn.Sequential."
            )
        if isinstance(view.structure.get_submodule(name), (*RECURRENT, nn.MultiheadAttention)):
            raise ValueError(f"PlasticityInjection adds what heads return, and {name!r} returns a tuple: {_ONE_TENSOR}")
        refuse_port(view.groups, name)
        return {"step": 0, "injections": 0, "clocked": 0}

    def step(self, view: View, state: State) -> None:
        """Inject once, when it is time."""
        count_update(state)
        if 0 < self.at <= state["step"] and not state["clocked"] and self._inject(view, state):
            state["clocked"] = 1

    def task_boundary(self, view: View, state: State, data: BoundaryData | None = None) -> None:
        """Inject, if it is to act at boundaries."""
        if self.at == 0 if self.at_boundaries is None else self.at_boundaries:
            self._inject(view, state)

    def rebuild(self, view: View, saved: State) -> None:
        """Give the head the structure it had; its numbers are loaded afterwards."""
        name = self._name(view)
        for _ in range(saved["injections"] - _depth(view.structure.get_submodule(name))):
            view.replace_module(name, lambda old: _injected(old, {}))

    def describe(self, view: View, state: State) -> str:
        """How often it has acted."""
        return f"injected {state['injections']} times"

    def _name(self, view: View) -> str:
        return chosen_modules(view, self, self.head)[0]

    def _inject(self, view: View, state: State) -> bool:
        """Rewrite the head; not while it is frozen."""
        name = self._name(view)
        prefix = f"{name}.trained." if _depth(view.structure.get_submodule(name)) else f"{name}."
        trained = {each: value for each, value in view.parameters.items() if each.startswith(prefix)}
        if not trained:
            return False
        state["injections"] += 1
        starts = {each: start_of(view, value) for each, value in trained.items()}
        fresh = draw_fresh(view, starts, trained, state["injections"], "plasticity_injection")
        values = [
            {each.removeprefix(prefix): value[run] if view.runs else value for each, value in fresh.items()}
            for run in range(view.runs[0] if view.runs else 1)
        ]
        runs = iter(values)
        view.replace_module(name, lambda old: _injected(old, next(runs)))
        return True


def injected_head(model: nn.Module, name: str) -> str:
    """The name of the whole head that a module is a part of, where one was injected; else the module's own."""
    parents = name.split(".")
    for depth in range(len(parents)):
        head = ".".join(parents[:depth])
        if isinstance(model.get_submodule(head), InjectedHead):
            return head
    return name


def _injected(old: nn.Module, fresh: dict[str, Tensor]) -> InjectedHead:
    """A head around an old one, with fresh values for the parameters that learn on."""
    template = old.trained if isinstance(old, InjectedHead) else old
    assert isinstance(template, nn.Module)
    trained = copy.deepcopy(template)
    with torch.no_grad():
        for name, value in fresh.items():
            trained.get_parameter(name).copy_(value)
    anchor = copy.deepcopy(trained).requires_grad_(False)
    for parameter in trained.parameters():
        parameter.grad = None
    frozen = copy.deepcopy(old).requires_grad_(False)
    for parameter in frozen.parameters():
        parameter.grad = None
    made = InjectedHead(frozen, trained, anchor)
    return made.train(old.training)


def _depth(module: nn.Module) -> int:
    """How often a head was injected."""
    return 1 + _depth(module.frozen) if isinstance(module, InjectedHead) else 0
