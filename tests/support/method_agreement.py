"""A method and its naive reference side by side, update by update in float64, attached to a module and in a stack.

A test lists its `Case`s and calls `agree_attached` and `agree_in_a_stack` under the `double_precision` fixture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import Method
from reference import cbp, mlp, philox

INPUTS, HIDDEN, OUTPUTS, BATCH = 3, (6, 4), 2, 3
NAMES = ("0", "2", "4")
ACTIVATIONS = ["relu", "tanh"]
SEEDS = (-77, 12)
STEPS = 500  # the inputs' scale goes twice up and down
STEPS_IN_A_STACK = 150  # that a stack is the same as its runs alone is tested for every method
STEP_SIZE = {"sgd": 0.01, "adam": 0.003}


def make_network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    first, second = HIDDEN
    return nn.Sequential(
        nn.Linear(INPUTS, first), nn.ReLU(), nn.Linear(first, second), nn.Tanh(), nn.Linear(second, OUTPUTS)
    )


def arrays(tensors: Mapping[str, Tensor]) -> mlp.Layers:
    """Weights and biases by name as the references take them."""
    return [(tensors[f"{name}.weight"].numpy(), tensors[f"{name}.bias"].numpy()) for name in NAMES]


def live(net: nn.Module) -> mlp.Layers:
    """A network's weights and biases as they are now."""
    return arrays({name: value.detach() for name, value in net.named_parameters()})


def live_run(runs: neoteny.Stack, run: int) -> mlp.Layers:
    """The weights and biases of one run of a stack as they are now."""
    return arrays({name: value[run].detach() for name, value in runs.view.tensors.items()})


def batches(steps: int) -> list[tuple[Tensor, Tensor]]:
    """Inputs (runs, B, in) whose scale changes, and targets (runs, B, out)."""
    generator = torch.Generator().manual_seed(3)
    found: list[tuple[Tensor, Tensor]] = []
    for step in range(steps):
        x = torch.randn(len(SEEDS), BATCH, INPUTS, generator=generator) + math.sin(step / 40)
        found.append((x, torch.randn(len(SEEDS), BATCH, OUTPUTS, generator=generator)))
    return found


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().sum(-1).mean()


def fresh_rows(seed: int) -> Callable[[int, int, int], np.ndarray]:
    """torch's default law for a Linear's weights, drawn as the library draws it."""

    def draw(update: int, layer: int, unit: int) -> np.ndarray:
        fan_in = (INPUTS, *HIDDEN)[layer]
        return cbp.draw_incoming(seed, update, NAMES[layer], unit, fan_in, 1 / math.sqrt(fan_in), "uniform")

    return draw


def normal_draws(seed: int, purpose: str, shape: tuple[int, ...], update: int, layer: int, part: int) -> np.ndarray:
    """Standard normal draws for a weight (part 0) or bias (part 1) as the library draws them, one stream per row."""
    name = f"{NAMES[layer]}.{('weight', 'bias')[part]}/{purpose}"
    rows = [philox.normal(seed, update, name, row, shape[-1]) for row in range(shape[0] if part == 0 else 1)]
    return np.stack(rows).reshape(shape)


def reference_optimizer(name: str) -> cbp.Optimizer:
    return cbp.Adam(STEP_SIZE[name]) if name == "adam" else cbp.SGD(STEP_SIZE[name])


@dataclass(frozen=True)
class Case:
    """A method beside its reference.

    Attributes:
        label: the name of the test.
        method: with settings under which it acts often.
        reference: makes the reference from (layers, seed, optimizer's name). It has `layers`, and `step(x, y)` that
            makes one update and returns the loss from before it.
        boundary: updates between two task boundaries, 0 for none; the reference then has `task_boundary()`.
        finish: gets the reference and the number of replaced units by group at the end, to check that the case tested
            something.
    """

    label: str
    method: Method
    reference: Callable[[mlp.Layers, int, str], Any]
    boundary: int = 0
    finish: Callable[[Any, dict[str, int]], None] = lambda reference, replaced: None

    def begins_task(self, step: int) -> bool:
        return self.boundary > 0 and step > 0 and step % self.boundary == 0


def flat(layers: mlp.Layers) -> np.ndarray:
    return np.concatenate([part.ravel() for pair in layers for part in pair])


def assert_same(ours: mlp.Layers, theirs: mlp.Layers, place: Any) -> None:
    """Equal to 1e-10 of each weight."""
    mine, other = flat(ours), flat(theirs)
    worst = np.max(np.abs(mine - other) - 1e-10 * np.abs(other))
    assert worst <= 1e-13, (place, worst)


def agree_attached(
    case: Case, optimizer_name: str, each: Callable[[nn.Module, Any, list[Tensor]], None] | None = None
) -> None:
    """The method attached to a module agrees with its reference at every update.

    `each` gets the network, the reference, and the weights from before the method acted.
    """
    net = make_network(0)
    reference = case.reference(live(net), SEEDS[0], optimizer_name)
    make_optimizer = neoteny.optim.Adam if optimizer_name == "adam" else torch.optim.SGD
    optimizer = make_optimizer(net.parameters(), lr=STEP_SIZE[optimizer_name])
    plastic = neoteny.attach(net, optimizer, case.method, example=torch.zeros(1, INPUTS), seed=SEEDS[0])
    for step, (x, y) in enumerate(batches(STEPS)):
        if case.begins_task(step):
            plastic.task_boundary()
            reference.task_boundary()
            assert_same(live(net), reference.layers, (step, "at the boundary"))
        optimizer.zero_grad()
        loss = squared_error(net(x[0]), y[0])
        loss.backward()
        if case.method.needs_loss:
            plastic.observe(loss)
        optimizer.step()
        trained = [parameter.detach().clone() for parameter in net.parameters()] if each else []
        plastic.step()
        expected = reference.step(x[0].numpy(), y[0].numpy())
        assert loss.item() == pytest.approx(expected, rel=1e-10), step
        assert_same(live(net), reference.layers, step)
        if each:
            each(net, reference, trained)
    case.finish(reference, plastic.replaced)


def agree_in_a_stack(case: Case, optimizer_name: str) -> None:
    """The method in a stack agrees with one reference per run at every update."""
    nets = [make_network(run) for run in range(len(SEEDS))]
    references = [case.reference(live(net), seed, optimizer_name) for net, seed in zip(nets, SEEDS, strict=True)]
    make_optimizer = neoteny.methods.Adam if optimizer_name == "adam" else neoteny.methods.SGD
    runs = neoteny.stack(
        nets,
        make_optimizer(STEP_SIZE[optimizer_name]),
        case.method,
        loss=squared_error,
        example=torch.zeros(1, INPUTS),
        seeds=SEEDS,
    )
    for step, (x, y) in enumerate(batches(STEPS_IN_A_STACK)):
        if case.begins_task(step):
            runs.task_boundary()
            for reference in references:
                reference.task_boundary()
        losses = runs.step(x, y).losses
        for run, reference in enumerate(references):
            expected = reference.step(x[run].numpy(), y[run].numpy())
            assert float(losses[run]) == pytest.approx(expected, rel=1e-10), (run, step)
            assert_same(live_run(runs, run), reference.layers, (run, step))
    for run, reference in enumerate(references):
        case.finish(reference, {name: int(count[run]) for name, count in runs.replaced.items()})


def optimizer_agrees_as_torch_optimizer(method: Method, reference: Callable[[mlp.Layers, int], Any]) -> None:
    """A method that is an optimizer agrees with its reference at every update, made by `from_method`."""
    net = make_network(0)
    naive = reference(live(net), SEEDS[0])
    optimizer = neoteny.optim.from_method(method, net.named_parameters(), seed=SEEDS[0])
    for step, (x, y) in enumerate(batches(STEPS)):
        optimizer.zero_grad()
        loss = squared_error(net(x[0]), y[0])
        loss.backward()
        optimizer.step()
        assert loss.item() == pytest.approx(naive.step(x[0].numpy(), y[0].numpy()), rel=1e-10), step
        assert_same(live(net), naive.layers, step)


def optimizer_agrees_in_a_stack(method: Method, reference: Callable[[mlp.Layers, int], Any]) -> None:
    """A method that is an optimizer agrees in a stack with one reference per run at every update."""
    nets = [make_network(run) for run in range(len(SEEDS))]
    references = [reference(live(net), seed) for net, seed in zip(nets, SEEDS, strict=True)]
    runs = neoteny.stack(nets, method, loss=squared_error, seeds=SEEDS)
    for step, (x, y) in enumerate(batches(STEPS_IN_A_STACK)):
        losses = runs.step(x, y).losses
        for run, naive in enumerate(references):
            expected = naive.step(x[run].numpy(), y[run].numpy())
            assert float(losses[run]) == pytest.approx(expected, rel=1e-10), (run, step)
            assert_same(live_run(runs, run), naive.layers, (run, step))


def both_optimizers(cases: list[Case]) -> list[Any]:
    """Each case with both optimizers; the second of them, in turn, is left to `-m slow`."""
    names = ("sgd", "adam")
    return [
        pytest.param(case, name, id=f"{case.label}-{name}", marks=[pytest.mark.slow] if number % 2 != place else [])
        for number, case in enumerate(cases)
        for place, name in enumerate(names)
    ]


def alternate(cases: list[Case]) -> list[tuple[Case, str]]:
    """Each case with one of the two optimizers, in turn; for stacks, where both would test the same twice."""
    return [(case, ("adam", "sgd")[number % 2]) for number, case in enumerate(cases)]
