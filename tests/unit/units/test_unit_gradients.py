"""Gradients at the outputs of units: in the order of the inputs, of all consumers together, refused where unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import SGD, ContinualBackprop, Method, ReGraMa
from neoteny.methods.method import State
from neoteny.units.device_tick import Settings, _make
from neoteny.units.gradients import gradient_modules, output_gradients, replacement_cost
from neoteny.units.view import View

pytestmark = pytest.mark.usefixtures("double_precision")


@dataclass(frozen=True)
class Look(Method):
    """Keeps activations and gradients of the units of every group as a method sees them."""

    needs_units: ClassVar[bool] = True

    def reads(self, view: View) -> list[str]:
        return gradient_modules(view, "Look")

    def reads_gradients(self, view: View) -> list[str]:
        return gradient_modules(view, "Look")

    def step(self, view: View, state: State) -> None:
        state["seen"] = {
            group.name: [each.clone() for each in output_gradients(view, group, group.reader, torch.float64)]
            for group in view.groups
        }
        state["inputs"] = {name: [each.clone() for each in kept] for name, kept in view.activations.items()}


class Twice(nn.Module):
    """A body that is run on two inputs; in evaluation of the loss the second counts ten times as much."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 5)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        first, second = (self.head(torch.tanh(self.body(each))) for each in (x, x.flip(-1)))
        return first + 10.0 * second


class Branches(nn.Module):
    """Two layers read one hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 5)
        self.left = nn.Linear(5, 2)
        self.right = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x))
        return self.left(h) + 3.0 * self.right(h).square()


def attached(model: nn.Module) -> tuple[torch.optim.Optimizer, neoteny.Attachment]:
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    return optimizer, neoteny.attach(model, optimizer, Look(), example=torch.zeros(2, 3), seed=1)


def test_gradients_of_several_calls_are_in_the_order_of_the_calls() -> None:
    torch.manual_seed(0)
    model = Twice()
    optimizer, plastic = attached(model)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    plastic.step()
    first, second = (each.squeeze(-1) for each in plastic._chain.states[0]["seen"]["body"])
    expected = model.head.weight.detach().sum(0).expand(4, 5)
    torch.testing.assert_close(first, expected)
    torch.testing.assert_close(second, 10.0 * expected)


def test_a_pass_that_is_differentiated_twice_adds_up_and_one_that_never_is_has_zeros() -> None:
    torch.manual_seed(0)
    model = Branches()
    optimizer, plastic = attached(model)
    model(torch.randn(3, 3))  # never differentiated
    outputs = model(torch.randn(4, 3))
    outputs.sum().backward(retain_graph=True)
    outputs.sum().backward()
    optimizer.step()
    plastic.step()
    none, both = (each.squeeze(-1) for each in plastic._chain.states[0]["seen"]["body"])
    assert none.shape == (3, 5)
    assert not bool(none.any())
    h = plastic._chain.states[0]["inputs"]["left"][1]
    right = h @ model.right.weight.detach().T + model.right.bias.detach()
    once = model.left.weight.detach().sum(0) + 6.0 * right @ model.right.weight.detach()
    torch.testing.assert_close(both, 2.0 * once)


def test_a_stack_has_the_gradient_of_all_consumers_as_a_module_alone_has() -> None:
    nets: list[nn.Module] = []
    for seed in range(2):
        torch.manual_seed(seed)
        nets.append(Branches())
    runs = neoteny.stack(nets, SGD(0.0), Look(), example=torch.zeros(2, 3), loss=lambda outputs, _: outputs.sum())
    x = torch.randn(2, 4, 3)
    runs.step(x, torch.zeros(2, 4, 2))
    (together,) = runs.chain.states[1]["seen"]["body"]
    for run, net in enumerate(nets):
        optimizer, plastic = attached(net)
        net(x[run]).sum().backward()
        optimizer.step()
        plastic.step()
        (alone,) = plastic._chain.states[0]["seen"]["body"]
        torch.testing.assert_close(together[run], alone)
    for method in (ReGraMa(1, 0.7, "activations"), ContinualBackprop(0.2, 1, utility="gxd")):
        whole = neoteny.stack(nets, SGD(0.05), method, example=torch.zeros(2, 3), seeds=[3, 4])
        single = neoteny.stack(nets[1:], SGD(0.05), method, example=torch.zeros(2, 3), seeds=[4])
        generator = torch.Generator().manual_seed(1)
        for _ in range(15):
            inputs, targets = (torch.randn(2, 4, size, generator=generator) for size in (3, 2))
            losses = whole.step(inputs, targets).losses
            assert float(single.step(inputs[1:], targets[1:]).losses) == pytest.approx(float(losses[1]), rel=1e-12)
        assert int(whole.replaced["body"].sum()) > 0


def test_the_cost_of_a_channel_is_summed_over_positions_before_its_absolute_value() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    method = ContinualBackprop(0.0, decay_rate=0.0, utility="gxd", compensate=False)
    plastic = neoteny.attach(model, optimizer, method, example=torch.zeros(2, 1, 3, 3))
    x = torch.randn(5, 1, 3, 3)
    outputs = model(x)
    outputs.square().sum().backward()
    optimizer.step()
    plastic.step()
    h = model[1](model[0](x)).detach()
    gradient = (2.0 * outputs.detach() @ model.get_parameter("3.weight").detach()).reshape(5, 3, 2, 2)
    expected = torch.zeros(3)
    for channel in range(3):
        for example in range(5):
            cost = sum(
                float(gradient[example, channel, row, column] * h[example, channel, row, column])
                for row in range(2)
                for column in range(2)
            )
            expected[channel] += abs(cost) / 5
    torch.testing.assert_close(plastic._chain.states[0]["0"]["utility"], expected)


def test_the_cost_is_what_a_reset_really_costs_to_first_order() -> None:
    """For a loss that is linear in a unit's output it is exact."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    _, plastic = attached(model)
    x = torch.randn(1, 3)
    loss = model(x).sum()
    loss.backward()
    view, group = plastic.view, plastic.view.groups[0]
    cost = replacement_cost(view, group, group.reader, torch.float64, None)
    h = model[1](model[0](x)).detach()
    for unit in range(4):
        without = h.clone()
        without[0, unit] = 0.0
        assert float(cost[unit]) == pytest.approx(abs(float(loss.detach() - model[2](without).detach())), rel=1e-12)


@pytest.mark.parametrize(
    "method", [ReGraMa(1, 0.1, "activations"), ContinualBackprop(utility="gxd")], ids=["regrama", "gxd"]
)
class TestWhereGradientsAreNotRecorded:
    def test_recurrent_units_are_refused_by_name(self, method: Method) -> None:
        class Sequence(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.cell = nn.LSTM(3, 4, batch_first=True)
                self.head = nn.Linear(4, 1)

            def forward(self, x: Tensor) -> Tensor:
                return self.head(self.cell(x)[0][:, -1])

        model = Sequence()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with pytest.raises(ValueError, match=r"gradient at the output.*recurrent"):
            neoteny.attach(model, optimizer, method, example=torch.zeros(2, 5, 3))

    def test_a_stack_that_is_given_gradients_from_elsewhere_says_so(self, method: Method) -> None:
        nets = [nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)) for _ in range(2)]
        runs = neoteny.stack(nets, SGD(0.1), method, example=torch.zeros(2, 3))
        gradients = {name: torch.ones_like(value) for name, value in runs.view.parameters.items()}
        with pytest.raises(ValueError, match=r"No gradients were recorded at 2"):
            runs.apply(gradients, {"2": torch.ones(2, 5, 4)})


def test_fused_ticks_on_a_device_refuse_a_utility_from_gradients() -> None:
    _, plastic = attached(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)))
    settings = Settings(0.99, "gxd", 100, True)
    assert _make(plastic.view, {}, settings) == "the utility 'gxd' is computed from gradients"
