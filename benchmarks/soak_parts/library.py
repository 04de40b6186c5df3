"""What a program that uses the library does for a long time: ticks, attachments, diagnoses, stacks."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import neoteny
from neoteny.methods import SGD
from neoteny.nets import MLP
from soak_parts.growth import Growth

SIZES = (8, (16, 16), 1)


def network() -> nn.Module:
    """8-16-16-1, as small as a network with two layers of units is of interest."""
    torch.manual_seed(0)
    return MLP(SIZES[0], list(SIZES[1]), SIZES[2])


def continual() -> neoteny.ContinualBackprop:
    """Replacement is live: about one unit of each layer every 60 ticks."""
    return neoteny.ContinualBackprop(replacement_rate=1e-3, maturity_threshold=100)


def update(model: nn.Module, optimizer: Optimizer, inputs: Tensor) -> None:
    """One update on a batch of one, with the first input as the target."""
    loss = (model(inputs) - inputs[:, :1]).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def ticks(name: str, make_optimizer: Callable[[nn.Module], Optimizer], iterations: int) -> Growth:
    """Updates with continual backpropagation, one tick each."""
    model = network()
    optimizer = make_optimizer(model)
    plastic = neoteny.attach(model, optimizer, continual(), example=torch.zeros(1, SIZES[0]))
    examples = list(torch.randn(1000, 1, SIZES[0]).unbind())
    count = 0

    def act() -> None:
        nonlocal count
        update(model, optimizer, examples[count % 1000])
        plastic.step()
        count += 1

    growth = Growth(name)
    growth.repeat(iterations, act)
    growth.note = f"{sum(plastic.replaced.values()):,} units were replaced"
    if not sum(plastic.replaced.values()):
        growth.faults.append("no unit was replaced")
    return growth


def ticks_sgd(iterations: int) -> Growth:
    """Ticks after updates of SGD."""
    return ticks("ticks, SGD", lambda model: torch.optim.SGD(model.parameters(), lr=0.01), iterations)


def ticks_adam(iterations: int) -> Growth:
    """Ticks after updates of torch's Adam, whose state is reset with every unit."""
    return ticks("ticks, Adam", lambda model: torch.optim.Adam(model.parameters(), lr=1e-3), iterations)


def count_hooks(model: nn.Module, optimizer: Optimizer) -> int:
    """Every hook on the modules, their parameters and the optimizer."""
    of_modules = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")
    of_parameters = ("_backward_hooks", "_post_accumulate_grad_hooks")
    of_optimizers = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    places = [
        *(getattr(module, name) for module in model.modules() for name in of_modules),
        *(getattr(parameter, name) for parameter in model.parameters() for name in of_parameters),
        *(getattr(optimizer, name) for name in of_optimizers),
    ]
    return sum(len(place or ()) for place in places)


class Cycle:
    """Attaches to one model and optimizer, trains a little, and detaches.

    Args:
        updates: per attachment; each is followed by a tick, except the last, whose activations are pending.
    """

    def __init__(self, updates: int = 2) -> None:
        self.model = network()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.hooks_before = count_hooks(self.model, self.optimizer)
        self._inputs = torch.randn(1, SIZES[0])
        self._updates = updates

    def once(self) -> list[weakref.ref[object]]:
        """One attachment; returns what must be gone after a garbage collection."""
        plastic = neoteny.attach(self.model, self.optimizer, continual(), example=self._inputs, trained=True)
        for number in range(self._updates):
            update(self.model, self.optimizer, self._inputs)
            if number < self._updates - 1:
                plastic.step()
        kept = [tensor for tensors in plastic.view.activations.values() for tensor in tensors]
        assert kept, "the last update's activations are pending"
        plastic.detach()
        return [weakref.ref(each) for each in (plastic, plastic.view, *kept)]


def attachments(iterations: int) -> Growth:
    """One model and optimizer, attached and detached again and again."""
    cycle = Cycle()
    growth = Growth("attach and detach")

    def act() -> None:
        references = cycle.once()
        if (left := count_hooks(cycle.model, cycle.optimizer) - cycle.hooks_before) and not growth.faults:
            growth.faults.append(f"{left} hooks are left after detach()")
        gc.collect()
        if (alive := sum(each() is not None for each in references)) and not growth.faults:
            growth.faults.append(f"{alive} objects of a detached attachment are alive")

    growth.repeat(iterations, act)
    growth.note = "hooks, attachment, view and activations are gone after each"
    return growth


def models(iterations: int) -> Growth:
    """New models, attached, trained for one tick and dropped without a detach."""
    growth = Growth("models, never detached")
    inputs = torch.randn(1, SIZES[0])

    def act() -> None:
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        plastic = neoteny.attach(model, optimizer, continual(), example=inputs)
        update(model, optimizer, inputs)
        plastic.step()
        references = [weakref.ref(each) for each in (model, optimizer, plastic)]
        del model, optimizer, plastic
        gc.collect()
        if (alive := sum(each() is not None for each in references)) and not growth.faults:
            growth.faults.append(f"{alive} of model, optimizer and attachment are alive")

    growth.repeat(iterations, act)
    growth.note = "model, optimizer and attachment are gone after each"
    return growth


def diagnoses(iterations: int) -> Growth:
    """One model, diagnosed again and again."""
    model, inputs = network(), torch.randn(100, SIZES[0])
    growth = Growth("diagnose")
    growth.repeat(iterations, lambda: str(neoteny.diagnose(model, inputs)))
    return growth


def stacks(iterations: int) -> Growth:
    """Stacks of four networks, built, stepped once and dropped."""
    inputs = torch.randn(4, 1, SIZES[0])

    def act() -> None:
        networks = [network() for _ in range(4)]
        runs = neoteny.stack(networks, SGD(0.01), continual(), example=inputs[0], seeds=range(4))
        runs.step(inputs, inputs[..., :1])

    growth = Growth("stack")
    growth.repeat(iterations, act)
    return growth
