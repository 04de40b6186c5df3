"""What methods see of an update beside gradients: forward passes that can be made again, and step sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neoteny
from neoteny.methods import SGD, Adam, ContinualBackprop, Method
from neoteny.methods.method import State, check_number
from neoteny.units.calls import Call
from neoteny.units.view import View

pytestmark = pytest.mark.usefixtures("double_precision")


class Noisy(nn.Module):
    """Everything that a pass may leave a trace in: batch norm, dropouts, noise, a counter, a layer in eval mode."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.norm = nn.BatchNorm1d(5)
        self.drop = nn.Dropout(0.5)
        self.own_drop = neoteny.nets.Dropout(0.5)
        self.second = nn.Linear(5, 2)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, shift: float = 0.0) -> Tensor:
        self.count += 1.0
        hidden = self.own_drop(self.drop(torch.relu(self.norm(self.first(x)))))
        return self.second(F.dropout(hidden, 0.1, training=True)) + shift  # draws in evaluation mode, too


class Quiet(nn.Module):
    """The same layers without what a stack cannot take."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.norm = nn.BatchNorm1d(5)
        self.second = nn.Linear(5, 2)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1.0
        return self.second(torch.relu(self.norm(self.first(x))))


@dataclass(frozen=True)
class Look(Method):
    """Keeps the calls of every update."""

    seen: list[Any] = field(default_factory=list)
    needs_inputs: ClassVar[bool] = True

    def observe(self, view: View, state: State) -> None:
        self.seen.append(list(view.calls))


def attached(model: nn.Module, *more: Method) -> tuple[torch.optim.SGD, neoteny.Attachment, list[list[Call]]]:
    look = Look()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return optimizer, neoteny.attach(model, optimizer, look, *more, seed=1), look.seen


def states_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


class TestAPassOfAModule:
    def test_is_that_of_evaluation_mode_and_leaves_no_trace(self) -> None:
        model = Noisy()
        model.norm.eval()  # kept so by the user
        _, plastic, _ = attached(model)
        x = torch.randn(4, 3)
        model(x).sum().backward()
        plastic.view.calls.clear()
        before, random = states_of(model), torch.get_rng_state()
        gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        found = plastic.view.forward(Call((x,), {"shift": 2.0}), reads=["second"])
        assert torch.equal(torch.get_rng_state(), random)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert [module.training for module in (model, model.first, model.norm, model.drop)] == [True, True, False, True]
        assert plastic.view.calls == []
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            assert parameter.grad is not None
            assert torch.equal(parameter.grad, gradient)
        model.eval()
        torch.testing.assert_close(found.outputs, model(x, 2.0))  # from the same random state
        assert found.inputs["second"][0].shape == (4, 5)

    def test_is_not_read_by_methods_that_read_units(self) -> None:
        model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plastic = neoteny.attach(model, optimizer, ContinualBackprop(), Look(), example=torch.zeros(1, 3))
        plastic.view.forward(Call((torch.randn(4, 3),)))
        assert not any(plastic.view.activations.values())
        assert not plastic.view.calls

    def test_is_differentiated_where_gradients_are_on_and_takes_other_weights(self) -> None:
        model = Quiet()
        _, plastic, _ = attached(model)
        call = Call((torch.randn(4, 3),))
        outputs = plastic.view.forward(call).outputs
        (gradient,) = torch.autograd.grad(outputs.sum(), [model.second.bias])
        assert gradient.tolist() == [4.0, 4.0]
        with torch.no_grad():
            assert not plastic.view.forward(call).outputs.requires_grad
        moved = plastic.view.forward(call, {"second.bias": model.second.bias.detach() + 3.0}).outputs
        torch.testing.assert_close(moved, outputs + 3.0)
        assert not torch.equal(model.second.bias, model.second.bias.detach() + 3.0)

    def test_runs_under_the_autocast_it_was_made_under(self) -> None:
        model = Quiet().float()
        _, plastic, seen = attached(model)
        x = torch.randn(4, 3, dtype=torch.bfloat16)  # without autocast this would not run
        with torch.autocast("cpu", torch.bfloat16):
            model(x).float().sum().backward()
        (call,) = plastic.view.calls
        assert call.autocast == "bfloat16"
        assert plastic.view.forward(call).outputs.dtype == torch.bfloat16
        with torch.autocast("cpu", torch.bfloat16):  # and one made without runs without
            assert plastic.view.forward(Call((x.float(),))).outputs.dtype == torch.float32
        assert seen == []


@pytest.mark.parametrize("chain", [True, False])
class TestAPassOfAStack:
    def nets(self, chain: bool) -> list[nn.Module]:
        if chain:
            return [nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)) for _ in range(3)]
        return [Quiet() for _ in range(3)]

    def test_is_each_runs_own_in_evaluation_mode(self, chain: bool) -> None:
        runs = neoteny.stack(self.nets(chain), SGD(0.1), Look())
        for _ in range(3):
            runs.step(torch.randn(3, 4, 3), torch.randn(3, 4, 2))
        x, name = torch.randn(3, 4, 3), "2" if chain else "second"
        before = {key: value.clone() for key, value in runs.view.tensors.items()}
        found = runs.view.forward(Call((x,)), reads=[name])
        assert all(torch.equal(value, before[key]) for key, value in runs.view.tensors.items())
        for run in range(3):
            module = runs.module(run).eval()
            torch.testing.assert_close(found.outputs[run], module(x[run]))
        assert found.inputs[name][0].shape == (3, 4, 5)
        first = runs.view.parameters["0.weight" if chain else "first.weight"]
        (gradient,) = torch.autograd.grad(found.inputs[name][0].sum(), [first])
        assert bool(gradient.flatten(1).any(-1).all())
        losses = runs.step(x, torch.zeros(3, 4, 2)).losses  # training goes on in training mode
        assert bool(losses.isfinite().all())
        assert all(module.training for module in runs.template.modules())

    def test_joined_calls_give_the_same(self, chain: bool) -> None:
        runs = neoteny.stack(self.nets(chain), SGD(0.1), Look())
        calls = [Call((torch.randn(3, size, 3),)) for size in (2, 1, 4)]
        joined = runs.view.joined(calls)
        assert len(joined) == (1 if chain else 3)
        each = torch.cat([runs.view.forward(call).outputs for call in calls], 1)
        torch.testing.assert_close(torch.cat([runs.view.forward(call).outputs for call in joined], 1), each)


class TestCalls:
    def test_of_training_passes_are_seen_and_those_of_others_not(self) -> None:
        model = Noisy()
        optimizer, plastic, seen = attached(model)
        first, second = torch.randn(4, 3), torch.randn(2, 3)
        model(first).sum().backward()
        model(second, shift=1.5).sum().backward()
        with torch.no_grad():
            model(torch.randn(1 + 1, 3))
        model.eval()(first)
        model.train()
        optimizer.step()
        plastic.step()
        assert [(call.arguments[0].shape[0], dict(call.keywords)) for call in seen[0]] == [(4, {}), (2, {"shift": 1.5})]
        assert plastic.view.calls == []

    def test_of_a_compiled_model_are_seen(self) -> None:
        model = Quiet()
        compiled: Any = torch.compile(model, backend="eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        look = Look()
        plastic = neoteny.attach(compiled, optimizer, look, seed=1)
        x = torch.randn(4, 3)
        for _ in range(2):
            optimizer.zero_grad()
            compiled(x).sum().backward()
            optimizer.step()
            plastic.step()
        assert [len(calls) for calls in look.seen] == [1, 1]
        found = plastic.view.forward(look.seen[0][0]).outputs
        torch.testing.assert_close(found, model.eval()(x))

    def test_that_were_not_made_are_asked_for(self) -> None:
        model = nn.Sequential(nn.Linear(3, 2))
        optimizer, _, _ = attached(model)
        model[0](torch.ones(1, 3)).sum().backward()  # the layer alone, not the model
        with pytest.raises(ValueError, match=r"Look reads the inputs of the network.*call model\(inputs\)"):
            optimizer.step()
        runs = neoteny.stack([nn.Linear(3, 2)], SGD(0.1), Look())
        with pytest.raises(ValueError, match="Look reads the inputs"):
            runs.apply({name: torch.zeros_like(value) for name, value in runs.view.parameters.items()}, {})

    def test_are_kept_as_copies_of_plain_values_or_refused(self) -> None:
        x = torch.ones(2, 3)
        kept = Call((x, None), {"shift": 1.5}, "bfloat16").kept("Look")
        x.zero_()  # a loader that uses its memory again
        call = Call.made_from(kept)
        assert call.arguments[0].sum() == 6.0
        assert (call.arguments[1], call.keywords, call.autocast) == (None, {"shift": 1.5}, "bfloat16")
        with pytest.raises(TypeError, match=r"Look keeps the inputs.*argument 0 is a list"):
            Call(([x, x],)).kept("Look")


@dataclass(frozen=True)
class StepSizes(Method):
    """Keeps the step size of every parameter before each update."""

    seen: list[dict[str, Any]] = field(default_factory=list)

    def observe(self, view: View, state: State) -> None:
        self.seen.append({name: view.step_size(name) for name in view.parameters})


@dataclass(frozen=True)
class Nameless(Method):
    """An optimizer without a `step_size`."""

    rate: float | Sequence[float] = 0.1
    is_optimizer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number(self, "rate")

    def step(self, view: View, state: State) -> None:
        for name, parameter in view.parameters.items():
            gradient = view.gradient(name)
            if gradient is not None:
                parameter.sub_(gradient * self.rate)  # pyright: ignore[reportOperatorIssue]


class TestStepSizes:
    def test_are_those_of_the_parameters_groups_as_they_are_now(self) -> None:
        model = nn.Linear(3, 2)
        sizes = StepSizes()
        groups = [{"params": [model.weight], "lr": 0.5}, {"params": [model.bias], "lr": 0.25}]
        optimizer = torch.optim.SGD(groups)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        plastic = neoteny.attach(model, optimizer, sizes)
        for _ in range(2):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            schedule.step()
            plastic.step()
        assert sizes.seen == [{"weight": 0.5, "bias": 0.25}, {"weight": 0.25, "bias": 0.125}]

    def test_that_are_tensors_are_read_by_value(self) -> None:
        model = nn.Linear(3, 2)
        sizes = StepSizes()
        rate = torch.tensor(0.5)
        optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=False)
        neoteny.attach(model, optimizer, sizes)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        rate.fill_(9.0)
        assert float(sizes.seen[0]["weight"]) == 0.5

    @pytest.mark.parametrize("make", [SGD, Adam])
    def test_of_a_stack_are_each_runs_own(self, make: Any) -> None:
        sizes = StepSizes()
        runs = neoteny.stack([nn.Linear(3, 2) for _ in range(2)], make((0.5, 0.25)), sizes)
        runs.step(torch.ones(2, 1, 3), torch.ones(2, 1, 2))
        assert sizes.seen[0]["weight"].flatten().tolist() == [0.5, 0.25]
        assert sizes.seen[0]["weight"].shape == (2, 1, 1)
        assert sizes.seen[0]["bias"].shape == (2, 1)

    def test_that_are_not_known_are_refused(self) -> None:
        runs = neoteny.stack([nn.Linear(3, 2)], Nameless(), StepSizes())
        with pytest.raises(ValueError, match="Nameless has no setting `step_size`"):
            runs.step(torch.ones(1, 1, 3), torch.ones(1, 1, 2))
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        neoteny.attach(model, optimizer, StepSizes())
        del optimizer.param_groups[0]["lr"]
        model(torch.ones(1, 3)).sum().backward()
        with pytest.raises(ValueError, match=r"step size of 'weight' is not known.*'lr'"):
            optimizer.step()
