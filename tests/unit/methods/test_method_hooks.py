"""The hooks of a method that the methods of the package use least, tried by small methods written here."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.layers.regions import ChosenUnits
from neoteny.methods import SGD, ContinualBackprop, Method, ReDo
from neoteny.methods.method import BoundaryData, State
from neoteny.units.reset import reset_units
from neoteny.units.view import View
from support.loops import mlp

EXAMPLE = torch.zeros(2, 6)


def pairs(steps: int, runs: int = 0) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    lead = (runs,) if runs else ()
    return [
        (torch.randn(*lead, 4, 6, generator=generator), torch.randn(*lead, 4, 3, generator=generator))
        for _ in range(steps)
    ]


def mean_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean()


def train(model: nn.Module, optimizer: Any, plastic: neoteny.Attachment, data: list[tuple[Tensor, Tensor]]) -> None:
    for x, y in data:
        optimizer.zero_grad()
        loss = mean_square(model(x), y)
        loss.backward()
        plastic.observe(loss)
        optimizer.step()
        plastic.step()


@dataclass(frozen=True)
class Sign(Method):
    """Only the signs of the gradients are used."""

    def transform_gradients(self, view: View, state: State) -> None:
        for name in view.parameters:
            gradient = view.gradient(name)
            if gradient is not None:
                gradient.sign_()


def test_transformed_gradients_are_what_the_optimizer_sees_after_all_loss_terms() -> None:
    model = mlp()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    plastic = neoteny.attach(model, optimizer, Sign(), neoteny.L2(0.1))
    train(model, optimizer, plastic, pairs(1))
    moved = torch.cat([(a - b).flatten() for a, b in zip(before, model.parameters(), strict=True)]).abs()
    assert bool(((moved - 0.01).abs() < 1e-7).logical_or(moved < 1e-7).all())
    assert float((moved > 0.005).float().mean()) > 0.9


@dataclass(frozen=True)
class Watch(Method):
    """Keeps what it was shown."""

    modules: str = "2,4"
    needs_loss: ClassVar[bool] = True

    def reads(self, view: View) -> list[str]:
        return self.modules.split(",")

    def reads_gradients(self, view: View) -> list[str]:
        return self.modules.split(",")

    def observe(self, view: View, state: State) -> None:
        state["loss"] = view.loss
        state["gradients"] = {name: each[0].clone() for name, each in view.input_gradients.items()}
        state["inputs"] = {name: each[0].clone() for name, each in view.activations.items()}


def true_gradients(model: nn.Sequential, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The gradient of the loss with respect to the inputs of layers 2 and 4."""
    first = model[1](model[0](x))
    second = model[3](model[2](first))
    loss = mean_square(model[4](second), y)
    return dict(zip(("2", "4"), torch.autograd.grad(loss, (first, second)), strict=True))


def test_loss_and_gradients_of_units_can_be_read_on_a_module() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    plastic = neoteny.attach(model, optimizer, Watch())
    ((x, y),) = pairs(1)
    expected, loss = true_gradients(model, x, y), mean_square(model(x), y).detach()
    plastic._recorder.clear()
    train(model, optimizer, plastic, [(x, y)])
    seen = plastic._chain.states[0]
    torch.testing.assert_close(seen["loss"], loss)
    for name, gradient in expected.items():
        torch.testing.assert_close(seen["gradients"][name], gradient)


@pytest.mark.parametrize("chain", [True, False])
def test_loss_and_gradients_of_units_can_be_read_in_a_stack(chain: bool) -> None:
    class Wrapped(nn.Module):  # not a plain chain of layers, so it runs under vmap
        def __init__(self, inner: nn.Sequential) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    nets = [mlp(seed=run) for run in range(3)]
    prefix = "" if chain else "inner."
    modules = nets if chain else [Wrapped(net) for net in nets]
    watch = Watch(f"{prefix}2,{prefix}4")
    runs = neoteny.stack(modules, SGD(0.05), watch)
    ((x, y),) = pairs(1, runs=3)
    expected = [true_gradients(net, x[run], y[run]) for run, net in enumerate(nets)]
    losses = runs.step(x, y).losses
    seen = runs.chain.states[1]
    torch.testing.assert_close(seen["loss"], losses)
    for name in ("2", "4"):
        torch.testing.assert_close(seen["gradients"][prefix + name], torch.stack([each[name] for each in expected]))


def test_a_method_that_reads_the_loss_asks_for_it() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    neoteny.attach(model, optimizer, Watch())
    mean_square(model(torch.ones(1, 6)), torch.ones(1, 3)).backward()
    with pytest.raises(ValueError, match=r"Watch reads the training loss: call plastic\.observe"):
        optimizer.step()


@dataclass(frozen=True)
class Downhill(Method):
    """At a boundary, one step along the mean gradient of the new data."""

    step_size: float = 0.1
    needs_boundary_data: ClassVar[bool] = True

    def task_boundary(self, view: View, state: State, data: BoundaryData | None = None) -> None:
        assert data is not None
        gradients = list(data.gradients())
        for name, parameter in view.parameters.items():
            parameter.sub_(torch.stack([each[name] for each in gradients]).mean(0) * self.step_size)


def test_a_method_can_look_at_the_data_of_the_new_task() -> None:
    data = pairs(3)
    model = mlp()
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    plastic = neoteny.attach(model, optimizer, Downhill(), ContinualBackprop(), example=EXAMPLE)
    plastic.task_boundary(data, mean_square)
    assert not any(plastic.view.activations.values())  # these passes leave no trace
    torch.stack([mean_square(twin(x), y) for x, y in data]).mean().backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert theirs.grad is not None
        torch.testing.assert_close(ours, theirs - 0.1 * theirs.grad)

    runs = neoteny.stack([twin], SGD(0.05), Downhill())
    runs.task_boundary([(x[None], y[None]) for x, y in data])
    for ours, theirs in zip(model.parameters(), runs.module(0).parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_data_of_the_new_task_is_asked_for() -> None:
    model = mlp()
    plastic = neoteny.attach(model, torch.optim.SGD(model.parameters(), 0.05), Downhill())
    with pytest.raises(ValueError, match="Downhill needs data of the new task"):
        plastic.task_boundary()
    with pytest.raises(ValueError, match="also needs loss"):
        plastic.task_boundary(data=pairs(1))


@pytest.mark.parametrize("runs", [0, 3])
def test_a_mask_that_only_the_device_knows_resets_the_same_units(runs: int) -> None:
    """Without listing the chosen units (as on a GPU) a reset writes the same numbers as with a list (as on a CPU)."""

    def view_of() -> View:
        if runs:
            nets = [mlp(seed=run) for run in range(runs)]
            return neoteny.stack(nets, neoteny.methods.Adam(0.01), ReDo(), example=EXAMPLE).view
        model = mlp()
        optimizer = neoteny.optim.Adam(model.parameters(), 0.01)
        return neoteny.attach(model, optimizer, ReDo(), example=EXAMPLE, seed=0).view

    lead = (runs,) if runs else ()
    listed, masked = view_of(), view_of()
    generator = torch.Generator().manual_seed(1)
    for number, group in enumerate(listed.groups):
        mask = torch.rand(*lead, group.units, generator=generator) < 0.4
        assert bool(mask.any())
        places = torch.arange(mask.numel())
        everything = ChosenUnits((places // group.units,) if runs else (), places % group.units, mask.flatten())
        reset_units(listed, group, ChosenUnits.of(mask), 5)
        reset_units(masked, masked.groups[number], everything, 5)
    for name in listed.parameters:
        assert torch.equal(listed.tensor(name), masked.tensor(name)), name


@dataclass(frozen=True)
class Grow(Method):
    """At each boundary the output layer gets one more output; old ones are kept."""

    layer: str = "4"

    def init(self, view: View) -> State:
        return {"grown": 0}

    def task_boundary(self, view: View, state: State, data: BoundaryData | None = None) -> None:
        state["grown"] += 1
        view.replace_module(self.layer, _wider)

    def rebuild(self, view: View, saved: State) -> None:
        for _ in range(saved["grown"]):
            view.replace_module(self.layer, _wider)


def _wider(old: nn.Module) -> nn.Module:
    assert isinstance(old, nn.Linear)
    new = nn.Linear(old.in_features, old.out_features + 1)
    with torch.no_grad():
        new.weight.zero_()[: old.out_features].copy_(old.weight)
        new.bias.zero_()[: old.out_features].copy_(old.bias)
    return new


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_rewritten_network_trains_its_new_parameters(momentum: float) -> None:
    data = pairs(20)
    wide = [(x, torch.cat([y, y[:, :1]], 1)) for x, y in data]
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=momentum)
    plastic = neoteny.attach(model, optimizer, Grow(), neoteny.L2Init(0.1))
    runs = neoteny.stack([mlp()], SGD(0.05, momentum), Grow(), neoteny.L2Init(0.1))
    train(model, optimizer, plastic, data)
    for x, y in data:
        runs.step(x[None], y[None])
    plastic.task_boundary()
    runs.task_boundary()
    assert model(EXAMPLE).shape == (2, 4)
    owned = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert {id(each) for each in owned} == {id(each) for each in model.parameters()}
    assert len(owned) == len(list(model.parameters()))
    train(model, optimizer, plastic, wide)
    for x, y in wide:
        runs.step(x[None], y[None])
    assert float(model.get_parameter("4.weight")[3].detach().abs().sum()) > 0.0  # the new row has learned
    for ours, theirs in zip(model.parameters(), runs.module(0).parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)

    resumed = neoteny.stack([mlp(seed=9)], SGD(0.05, momentum), Grow(), neoteny.L2Init(0.1))
    resumed.load_state_dict(runs.state_dict())
    for x, y in wide[:3]:
        assert torch.equal(resumed.step(x[None], y[None]).losses, runs.step(x[None], y[None]).losses)


def test_a_layer_whose_units_another_method_replaces_cannot_be_swapped() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    plastic = neoteny.attach(model, optimizer, Grow(), ContinualBackprop(), example=EXAMPLE)
    before = [id(parameter) for parameter in model.parameters()]
    with pytest.raises(ValueError, match="'4' cannot be replaced by another module"):
        plastic.task_boundary()
    assert [id(parameter) for parameter in model.parameters()] == before


@dataclass(frozen=True)
class Alone(Method):
    """Refuses company."""

    def why_not_with(self, others: Sequence[Method]) -> str:
        return f"it works alone, not with {type(others[0]).__name__}." if others else ""


def test_methods_that_do_not_go_together_are_refused_and_nothing_is_left_behind() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with pytest.raises(ValueError, match=r"Alone cannot be combined .* not with L2"):
        neoteny.attach(model, optimizer, Alone(), neoteny.L2(0.1))
    with pytest.raises(ValueError, match="both say which weights to evaluate with"):
        neoteny.attach(model, optimizer, neoteny.HareAndTortoise(), neoteny.HareAndTortoise(0.9))
    assert not optimizer._optimizer_step_pre_hooks
    assert not any(module._forward_pre_hooks for module in model.modules())
    neoteny.attach(model, optimizer, Alone())


@dataclass(frozen=True)
class Flat(Method):
    """A penalty that is wrong in one way or another."""

    per_run: bool = True

    def penalty(self, view: View, state: State) -> Tensor:
        return torch.zeros(view.runs if self.per_run else (2, 3))


@pytest.mark.parametrize(
    ("per_run", "message"), [(True, "without a gradient"), (False, r"one number per run.*got shape \(2, 3\)")]
)
def test_a_penalty_that_cannot_be_differentiated_is_an_error(per_run: bool, message: str) -> None:
    runs = neoteny.stack([mlp()], SGD(0.1), Flat(per_run))
    ((x, y),) = pairs(1, runs=1)
    with pytest.raises(ValueError, match=message):
        runs.step(x, y)


def test_the_slow_weights_are_those_that_are_evaluated() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    method = neoteny.HareAndTortoise(0.9, period=0)
    plastic = neoteny.attach(model, optimizer, method)
    runs = neoteny.stack([mlp()], SGD(0.05), method)
    for x, y in pairs(30):
        train(model, optimizer, plastic, [(x, y)])
        runs.step(x[None], y[None])
    x = pairs(1)[0][0]
    fast = model(x)
    with plastic.evaluating() as slow:
        evaluated = slow(x)
    assert torch.equal(model(x), fast)
    assert not torch.allclose(evaluated, fast)
    torch.testing.assert_close(runs.predict(x[None])[0], evaluated)
    torch.testing.assert_close(runs.module(0)(x), fast)


def test_online_performance_is_that_of_the_weights_to_evaluate_with() -> None:
    from neoteny.backends.library import LibraryBackend
    from neoteny.nets import MLP
    from neoteny.problems import SlowlyChangingRegression

    problem = SlowlyChangingRegression()
    torch.manual_seed(0)
    nets = [MLP(problem.input_shape[0], [5], 1) for _ in range(2)]
    totals = {}
    for decay in (0.0, 0.9):  # with 0 the slow weights are the fast ones
        runs = neoteny.stack(copy.deepcopy(nets), SGD(0.05), neoteny.HareAndTortoise(decay, period=0))
        backend = LibraryBackend(runs, problem.open(), [0, 1], problem, torch.float32)
        backend.plan(0)
        totals[decay] = backend.advance(0, 50)[0]
    plain = neoteny.stack(copy.deepcopy(nets), SGD(0.05))
    backend = LibraryBackend(plain, problem.open(), [0, 1], problem, torch.float32)
    backend.plan(0)
    torch.testing.assert_close(totals[0.0], backend.advance(0, 50)[0])
    assert not torch.allclose(totals[0.9], totals[0.0])


def test_clearing_the_optimizer_at_a_copy_leaves_the_anchors_of_other_methods_alone() -> None:
    model = mlp()
    initial = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    methods = neoteny.HareAndTortoise(0.9, period=3, clear_optimizer=True), neoteny.L2Init(0.1)
    plastic = neoteny.attach(model, optimizer, *methods)
    train(model, optimizer, plastic, pairs(6))
    for state in optimizer.state.values():
        assert not state["momentum_buffer"].any()
    anchors = plastic._chain.states[1]["parameters"].values()
    assert all(torch.equal(anchor, value) for anchor, value in zip(anchors, initial, strict=True))


def test_a_parameter_frozen_later_is_evaluated_with_its_own_value() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    plastic = neoteny.attach(model, optimizer, neoteny.HareAndTortoise(0.5, period=7))
    train(model, optimizer, plastic, pairs(5))
    frozen = model.get_parameter("0.weight").requires_grad_(False)
    kept = frozen.detach().clone()
    train(model, optimizer, plastic, pairs(60))
    assert torch.equal(frozen, kept)
    with plastic.evaluating():
        torch.testing.assert_close(frozen, kept)


def test_the_initial_distribution_of_every_layer_is_known_the_output_layer_included() -> None:
    model = mlp()
    attached = neoteny.attach(model, torch.optim.SGD(model.parameters(), 0.05), neoteny.L2(0.1)).view
    stacked = neoteny.stack([mlp()], SGD(0.05)).view
    for name, weight in attached.weights().items():
        assert attached.initial(name) == stacked.initial(name)
        bound = weight.shape[1] ** -0.5  # torch's own: uniform, of standard deviation bound / sqrt(3)
        assert attached.initial(name).std == pytest.approx(bound / 3**0.5)
