"""Feature-wise UPGD on convolutions, flattens, norms and groups: whose gradients it scales, and by what."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import SGD, FeatureUPGD
from neoteny.methods.method import Method
from support.method_cases import Attached, make, network, stream

pytestmark = pytest.mark.usefixtures("double_precision")


class Gated(nn.Module):
    """Three layers of units with a gate behind each activation, whose gradient autograd finds.

    A grouped convolution, a transposed one, and a flatten: each channel of the last has four columns.
    """

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 2)
        self.norm = nn.BatchNorm2d(4) if norm else nn.Identity()
        self.grouped = nn.Conv2d(4, 6, 2, groups=2)
        self.wide = nn.ConvTranspose2d(6, 3, 2, groups=3)
        self.out = nn.Linear(12, 2)
        self.gates = {
            name: torch.ones(count, 1, 1, requires_grad=True)
            for name, count in (("first", 4), ("grouped", 6), ("wide", 3))
        }

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.first(x))) * self.gates["first"]
        h = torch.tanh(self.grouped(h)) * self.gates["grouped"]
        h = torch.tanh(self.wide(h)) * self.gates["wide"]
        return self.out(h.flatten(1))


# How many entries of the weight's first axis lead to a unit. That of the transposed convolution counts inputs: two of
# each of its three groups lead to the one unit of that group.
PRODUCERS = {"first": 1, "grouped": 1, "wide": 2}


def run(model: Gated, method: Method, x: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Gradients of the loss before and after the method changed them, and its state, at one update."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    plastic = neoteny.attach(model, optimizer, method, example=torch.zeros(2, 1, 3, 3), seed=1)
    optimizer.zero_grad()
    model(x).square().sum().backward()
    before = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    optimizer.step()
    plastic.step()
    after = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    return before, after, plastic.state_dict()["states"][0]["groups"]


@pytest.mark.parametrize("norm", [False, True])
def test_utilities_are_the_gradients_of_gates_and_scale_what_feeds_each_unit(norm: bool) -> None:
    model = Gated(norm)
    x = torch.randn(5, 1, 3, 3)
    before, after, state = run(model, FeatureUPGD(decay_rate=0.0, noise_std=0.0), x)
    expected = {name: -gate.grad.flatten() for name, gate in model.gates.items() if gate.grad is not None}
    assert set(state) == set(expected) == set(PRODUCERS)
    largest = max(float(utility.max()) for utility in expected.values())
    assert largest > 0.0
    for name, utility in expected.items():
        torch.testing.assert_close(state[name]["utility"], utility, rtol=1e-9, atol=1e-12)
        free = 1.0 - torch.sigmoid(utility / largest)
        assert float(free.max() - free.min()) > 0.02
        torch.testing.assert_close(after[f"{name}.bias"], before[f"{name}.bias"] * free)
        weight = before[f"{name}.weight"]
        share = free.repeat_interleave(PRODUCERS[name]).reshape(-1, 1, 1, 1)
        torch.testing.assert_close(after[f"{name}.weight"], weight * share)
        if norm and name == "first":
            for part in ("weight", "bias"):
                torch.testing.assert_close(after[f"norm.{part}"], before[f"norm.{part}"] * free)
    for part in ("weight", "bias"):
        assert torch.equal(after[f"out.{part}"], before[f"out.{part}"])  # the output layer is left alone


def test_noise_and_decay_leave_the_output_layer_alone() -> None:
    model = Gated()
    before, after, _ = run(model, FeatureUPGD(noise_std=0.1, weight_decay=0.1), torch.randn(5, 1, 3, 3))
    for name, gradient in before.items():
        assert torch.equal(after[name], gradient) == name.startswith("out")


def test_a_unit_that_another_method_resets_has_no_average_and_no_age() -> None:
    chain = Attached(make("FeatureUPGD"), make("ContinualBackprop"))
    assert chain.plastic is not None
    seen = 0
    for x, y in stream(30):
        chain.step(x[0], y[0])
        ours, statistics = chain.plastic.state_dict()["states"]
        for group, kept in ours["groups"].items():
            new = statistics[group]["born"] == statistics[group]["schedule"]["step"]
            seen += int(new.sum())
            assert not bool(kept["utility"][new].any())
            assert bool((kept["decay_power"][new] == 1.0).all())
            assert bool((kept["decay_power"][~new] < 1.0).all())
    assert seen > 3


def test_utilities_come_from_the_loss_alone_and_not_from_loss_terms() -> None:
    plain, with_term = Attached(make("FeatureUPGD")), Attached(make("FeatureUPGD"), neoteny.L2(10.0))
    x, y = stream(1)[0]
    states = []
    for each in (plain, with_term):
        each.step(x[0], y[0])
        assert each.plastic is not None
        states.append(each.plastic.state_dict()["states"][0]["groups"])
    for group, kept in states[0].items():
        torch.testing.assert_close(states[1][group]["utility"], kept["utility"])


def test_a_gradient_that_overflows_is_not_remembered() -> None:
    chain = Attached(make("FeatureUPGD"))
    assert chain.plastic is not None
    chain.train(stream(3))
    kept = chain.plastic._chain.states[0]["groups"]["0"]
    before = {key: value.clone() for key, value in kept.items()}
    for parameter in chain.model.parameters():
        parameter.grad = torch.full_like(parameter, float("inf"))
    chain.plastic._chain.before_update()
    for key, value in before.items():
        assert torch.equal(kept[key], value)


def test_computed_weights_are_refused_by_name() -> None:
    model = network()
    nn.utils.parametrizations.weight_norm(model[2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    example = torch.zeros(2, 5)
    with pytest.raises(ValueError, match=r"FeatureUPGD: 2.weight is computed from other parameters"):
        neoteny.attach(model, optimizer, FeatureUPGD(), example=example, trained=True)


def test_in_a_stack_of_convolutional_networks_each_run_has_a_scale_of_its_own() -> None:
    torch.manual_seed(0)
    members = [nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)) for _ in range(2)]
    x = torch.randn(2, 4, 1, 3, 3)
    x[1] *= 50.0
    example = torch.zeros(2, 1, 3, 3)
    method = FeatureUPGD(decay_rate=0.5, noise_std=0.01)
    together = neoteny.stack(members, SGD(1e-4), method, example=example, seeds=[3, 4])
    for _ in range(3):
        together.step(x, torch.zeros(2, 4, 2))
    for number, member in enumerate(members):
        alone = neoteny.stack([member], SGD(1e-4), method, example=example, seeds=[3 + number])
        for _ in range(3):
            alone.step(x[number : number + 1], torch.zeros(1, 4, 2))
        for name, value in alone.view.tensors.items():
            torch.testing.assert_close(together.view.tensors[name][number], value[0], rtol=1e-10, atol=1e-12)
