"""Methods and networks as a user may write them by mistake: each does one thing that it must not do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neoteny.methods import Method
from neoteny.methods.method import State, count_update
from neoteny.units.view import View

AT = 2
"""The update (from 0) at which methods misbehave; before, they do nothing."""


@dataclass(frozen=True)
class Harmless(Method):
    """Does nothing, in the hooks in which the others do something."""

    def penalty(self, view: View, state: State) -> Tensor:
        return (
            torch.stack([each.square().flatten(len(view.runs)).sum(-1) for each in view.parameters.values()]).sum(0) * 0
        )

    def transform_gradients(self, view: View, state: State) -> None:
        """Nothing."""

    def step(self, view: View, state: State) -> None:
        """Nothing."""


def due(state: State) -> bool:
    """Whether this is update `AT`, or a later one."""
    count_update(state)
    return state["step"] > AT


@dataclass(frozen=True)
class SpoilsPenalty(Harmless):
    """Its loss term is nan in run 1."""

    def penalty(self, view: View, state: State) -> Tensor:
        term = super().penalty(view, state)
        return term * torch.where(torch.arange(len(term)) == 1, torch.nan, 1.0) if due(state) else term


@dataclass(frozen=True)
class SpoilsGradients(Harmless):
    """Makes a gradient of run 1 infinite."""

    def transform_gradients(self, view: View, state: State) -> None:
        gradient = view.gradient("out.weight")
        if due(state) and gradient is not None:
            gradient[1] = torch.inf


@dataclass(frozen=True)
class SpoilsStep(Harmless):
    """Makes a weight of run 1 nan."""

    def step(self, view: View, state: State) -> None:
        if due(state):
            view.parameters["out.weight"][1, 0, 0] = torch.nan


def make(hook: str, act: Callable[..., Any], name: str = "Wrong") -> Method:
    """A method with one hook, which calls `act`."""
    body = {hook: act, "__module__": __name__}
    return dataclass(frozen=True)(type(name, (Method,), body))()


def _at(act: Callable[[Any, State], Any]) -> Callable[..., Any]:
    return lambda self, view, state: act(view, state) if due(state) else None


def _raise(*_: Any) -> None:
    raise RuntimeError("out of cheese")


def _shrink(view: View, state: State) -> None:
    parameter = view.parameters["out.weight"]
    parameter.data = parameter.data[..., :2]


def _double(view: View, state: State) -> None:
    parameter = view.parameters["out.weight"]
    parameter.data = parameter.data.double()


def _draw(view: View, state: State) -> None:
    view.parameters["out.bias"].add_(torch.rand(()))


METHODS: dict[str, tuple[Method, str, str]] = {
    "init raises": (make("init", _raise), "init", "out of cheese"),
    "init returns nothing": (make("init", lambda self, view: None), "init", "must return the method's state, a dict"),
    "reads a name": (make("reads", lambda self, view: "out"), "reads", "must return a list of names"),
    "reads what is not there": (make("reads", lambda self, view: ["ou"]), "reads", "Did you mean 'out'"),
    **{
        f"{hook} raises": (make(hook, _at(_raise)), hook, "out of cheese")
        for hook in ("observe", "penalty", "add_gradient", "transform_gradients", "step")
    },
    **{
        f"{hook} returns": (make(hook, _at(lambda view, state: {})), hook, "must return None")
        for hook in ("observe", "add_gradient", "transform_gradients", "step")
    },
    "penalty is a number": (make("penalty", _at(lambda view, state: 0.5)), "penalty", "must return a tensor of shape"),
    "penalty has a wrong shape": (
        make("penalty", _at(lambda view, state: view.parameters["out.weight"].square())),
        "penalty",
        "one number per run",
    ),
    "shape changes": (make("step", _at(_shrink)), "step", r"changed out.weight from shape \(.*5\).* to shape \(.*2\)"),
    "type changes": (make("step", _at(_double)), "step", "changed out.weight from .*float32 to .*float64"),
}
"""name -> the method, the hook in which it goes wrong, and what is said."""

IN_STACKS: dict[str, tuple[Method, str, str]] = {
    "gradient of another shape": (
        make("transform_gradients", _at(lambda view, state: view.gradients.update({"out.bias": torch.zeros(())}))),
        "transform_gradients",
        r"left out.bias with a gradient of shape \(\) .*; expected shape",
    ),
    "another tensor": (
        make("step", _at(lambda view, state: view.tensors.update({"out.bias": view.tensors["out.bias"].clone()}))),
        "step",
        "put another tensor in the place of out.bias",
    ),
    "global generator": (
        make("step", _at(_draw)),
        "step",
        "drew from torch's global generator",
    ),
}


class Own(nn.Module):
    """A network with a forward pass of its own."""

    def __init__(self, inputs: int = 22, outputs: int = 1) -> None:
        super().__init__()
        self.fc1 = nn.Linear(inputs, 5)
        self.out = nn.Linear(5, outputs)

    def plain(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.fc1(x)))

    def forward(self, x: Tensor) -> Any:
        return type(self).act(self, x)

    act: Callable[..., Any] = plain


def own(act: Callable[[Any, Tensor], Any]) -> type[Own]:
    """A network whose forward pass is `act`."""
    return type("Broken", (Own,), {"act": act, "__module__": __name__})


def _in_place(net: Own, x: Tensor) -> Tensor:
    with torch.no_grad():
        net.fc1.weight.mul_(0.5)
    return net.plain(x)


def _fill(net: Own, x: Tensor) -> Tensor:
    made = torch.zeros(len(x), 1)
    made[:] = net.plain(x)
    return made


NETWORKS: dict[str, tuple[type[Own], str]] = {
    "raises": (own(_raise), "out of cheese"),
    "a branch on values": (own(lambda net, x: net.plain(x) if x.sum() > -1e9 else -x), "choose with torch.where"),
    "a number": (own(lambda net, x: net.plain(x) * x.sum().item()), "keep it a tensor"),
    "numpy": (own(lambda net, x: net.plain(x) * float(np.asarray(x.detach()).sum())), "into a NumPy array"),
    "a mask": (own(lambda net, x: net.plain(x) + x[x > 0].sum()), "multiply by the mask"),
    "a draw": (own(lambda net, x: net.plain(x) + torch.rand(1)), "neoteny.nets.Dropout"),
    "a tensor of its own": (own(_fill), "made itself; make that tensor from the inputs"),
    "data": (own(lambda net, x: net.plain(x) * net.out.weight.data.sum()), "uses .data"),
    "nothing": (own(lambda net, x: None), "something else than tensors"),
    "in place": (own(_in_place), "changed fc1.weight in place"),
    "no gradient": (own(lambda net, x: net.plain(x).detach()), "has no gradient"),
    "wrong input": (own(lambda net, x: net.plain(x[:, :3])), "cannot be multiplied"),
}
"""name -> a network that cannot be trained in a stack, and what is said."""
