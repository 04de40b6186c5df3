"""Pitfalls of other code in this field: resets and gradients. Each test fails on one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neoteny
from support.pitfall_models import ARCHITECTURES, IDS, Make, mlp, statistics_of, update

pytestmark = pytest.mark.usefixtures("double_precision")


def chosen_units(plastic: neoteny.Attachment) -> dict[str, list[int]]:
    return {
        name: (values["born"] == values["schedule"]["step"]).nonzero().flatten().tolist()
        for name, values in statistics_of(plastic).items()
    }


# ------------------------------------------------------------------------------------ an algorithm per architecture


def input_of(module: nn.Module, net: nn.Module, x: Tensor) -> Tensor:
    """What reaches a module of a network that sees x."""
    seen: list[Tensor] = []

    def keep(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        seen.append(arguments[0].detach())

    handle = module.register_forward_pre_hook(keep)
    net(x)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize(("make", "shape"), ARCHITECTURES, ids=IDS)
def test_running_means_decay_in_every_architecture(make: Make, shape: tuple[int, ...]) -> None:
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    first, second = torch.randn(8, *shape), torch.randn(8, *shape)
    method = neoteny.ContinualBackprop(0.0, decay_rate=0.5)
    plastic = neoteny.attach(net, optimizer, method, example=first, seed=1)
    for x in [first] * 60:
        update(net, optimizer, plastic, x, torch.zeros(8, 3))
    at_first = copy.deepcopy(statistics_of(plastic))
    for x in [second] * 60:
        update(net, optimizer, plastic, x, torch.zeros(8, 3))
    at_second = statistics_of(plastic)
    assert plastic.wiring is not None
    for group in plastic.wiring.groups:
        for x, saved in ((first, at_first), (second, at_second)):
            seen = input_of(net.get_submodule(str(group.read)), net, x)
            by_unit = seen.reshape(8, group.units, -1) if seen.dim() == 2 else seen.flatten(2)
            torch.testing.assert_close(
                saved[group.name]["mean_activation"], by_unit.mean((0, 2)), rtol=1e-12, atol=1e-12
            )


@pytest.mark.parametrize(("make", "shape"), ARCHITECTURES, ids=IDS)
@pytest.mark.parametrize("kind", [torch.optim.Adam, neoteny.optim.Adam], ids=["torch", "neoteny"])
def test_both_moments_of_reset_weights_are_cleared_in_every_architecture(
    make: Make, shape: tuple[int, ...], kind: Any
) -> None:
    net = make()
    optimizer = kind(net.parameters(), lr=0.01)
    plastic = neoteny.attach(net, optimizer, neoteny.ContinualBackprop(1.0, 3), example=torch.randn(4, *shape), seed=1)
    for _ in range(4):
        update(net, optimizer, plastic, torch.randn(4, *shape), torch.randn(4, 3))
    assert plastic.wiring is not None
    for group in plastic.wiring.groups:
        assert chosen_units(plastic)[group.name] == list(range(group.units))  # rate 1: all of them
        touched = [f"{port.module}.{part}" for port in (*group.producers, *group.norms) for part in ("weight", "bias")]
        for name in [*touched, *(f"{port.module}.weight" for port in group.consumers)]:
            state = optimizer.state[net.get_parameter(name)]
            assert not state["exp_avg"].any(), name
            assert not state["exp_avg_sq"].any(), name


# ------------------------------------- order: compensation reads means and outgoing weights before they are cleared


@pytest.mark.parametrize(("make", "shape"), ARCHITECTURES, ids=IDS)
def test_replacements_really_change_the_consumers_biases(make: Make, shape: tuple[int, ...]) -> None:
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    plastic = neoteny.attach(net, optimizer, neoteny.ContinualBackprop(0.5, 3), example=torch.randn(4, *shape), seed=1)
    before = copy.deepcopy(net)
    for _ in range(4):
        update(net, optimizer, plastic, torch.randn(4, *shape) + 1.0, torch.randn(4, 3))
    assert plastic.wiring is not None
    for group in plastic.wiring.groups:
        assert plastic.replaced[group.name] > 0
        for port in group.consumers:
            now, then = (each.get_parameter(f"{port.module}.bias") for each in (net, before))
            assert (now - then).abs().max() > 1e-3, port.module


def test_the_bias_gains_the_old_mean_times_the_old_outgoing_weight() -> None:
    net = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        net.get_parameter("0.weight").copy_(torch.tensor([[1.0], [2.0]]))
        net.get_parameter("0.bias").zero_()
        net.get_parameter("2.weight").copy_(torch.tensor([[0.5, -3.0]]))
        net.get_parameter("2.bias").fill_(10.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    method = neoteny.ContinualBackprop(0.5, 0, utility="weight_magnitude")
    plastic = neoteny.attach(net, optimizer, method, example=torch.ones(1, 1), seed=1, trained=True)
    update(net, optimizer, plastic, torch.full((1, 1), 4.0), torch.zeros(1, 1))
    assert chosen_units(plastic) == {"0": [0]}  # the smaller outgoing weight
    assert net.get_parameter("2.bias").item() == pytest.approx(10.0 + 0.5 * 4.0)
    assert net.get_parameter("2.weight").tolist() == [[0.0, -3.0]]


# ------------------------------------------------------------------------------- indexing that edits a copy


@pytest.mark.parametrize(("make", "shape"), ARCHITECTURES, ids=IDS)
def test_outgoing_weights_are_zeroed_in_the_parameter_itself(make: Make, shape: tuple[int, ...]) -> None:
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    plastic = neoteny.attach(net, optimizer, neoteny.ContinualBackprop(1.0, 3), example=torch.randn(4, *shape), seed=1)
    addresses = {name: (id(value), value.data_ptr()) for name, value in net.named_parameters()}
    for _ in range(4):
        update(net, optimizer, plastic, torch.randn(4, *shape), torch.randn(4, 3))
    assert {name: (id(value), value.data_ptr()) for name, value in net.named_parameters()} == addresses
    outgoing = list(net.parameters())[-2]
    assert not outgoing.any()
    assert not optimizer.state[outgoing]["momentum_buffer"].any()


# ------------------------------------------------------------------------------------- rewriting inside backward


@pytest.mark.parametrize(("make", "shape"), ARCHITECTURES, ids=IDS)
@pytest.mark.parametrize("auto", [False, True], ids=["by hand", "auto"])
def test_gradients_with_replacements_going_on_are_those_of_the_plain_network(
    make: Make, shape: tuple[int, ...], auto: bool
) -> None:
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    plastic = neoteny.attach(
        net, optimizer, neoteny.ContinualBackprop(0.3, 2), example=torch.randn(4, *shape), seed=1, auto=auto
    )
    for _ in range(15):
        x, y = torch.randn(4, *shape), torch.randn(4, 3)
        plain = make()
        plain.load_state_dict(net.state_dict())
        (plain(x) - y).square().mean().backward()
        optimizer.zero_grad()
        (net(x) - y).square().mean().backward()
        for mine, theirs in zip(net.parameters(), plain.parameters(), strict=True):
            assert mine.grad is not None
            assert theirs.grad is not None
            assert torch.equal(mine.grad, theirs.grad)
        optimizer.step()
        if not auto:
            plastic.step()
    assert all(plastic.replaced.values())


# ------------------------------------------------------------------------- new parameters that never train


@pytest.mark.parametrize(("make", "shape"), ARCHITECTURES, ids=IDS)
def test_new_units_are_trained_by_the_users_optimizer(make: Make, shape: tuple[int, ...]) -> None:
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    plastic = neoteny.attach(net, optimizer, neoteny.ContinualBackprop(0.5, 3), example=torch.randn(16, *shape), seed=1)
    owned = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    for _ in range(4):
        update(net, optimizer, plastic, torch.randn(16, *shape), torch.randn(16, 3))
    reset = chosen_units(plastic)
    assert [id(parameter) for parameter in net.parameters()] == owned
    fresh = copy.deepcopy(net)
    for _ in range(3):  # the outgoing weights leave zero first, then gradients reach the incoming ones
        update(net, optimizer, None, torch.randn(16, *shape), torch.randn(16, 3))
    name, units = list(reset.items())[-1]
    assert units
    moved = (net.get_parameter(f"{name}.weight") - fresh.get_parameter(f"{name}.weight"))[units].flatten(1).abs().sum(1)
    assert (moved > 0).any()
    now, then = (list(each.parameters())[-2] for each in (net, fresh))
    assert (now - then)[:, units].abs().max() > 0


# -------------------------------------------------------------------------------------------------- loss terms


@pytest.mark.parametrize("closure", [False, True], ids=["loop", "closure"])
def test_a_loss_term_reaches_the_gradient_however_the_optimizer_is_called(closure: bool) -> None:
    nets = [mlp()]
    nets.append(copy.deepcopy(nets[0]))
    optimizers = [
        torch.optim.SGD(nets[0].parameters(), lr=0.1),
        torch.optim.SGD(nets[1].parameters(), lr=0.1, weight_decay=0.1),
    ]
    plastic = neoteny.attach(nets[0], optimizers[0], neoteny.L2(0.1), seed=1)
    for _ in range(5):
        x, y = torch.randn(4, 4), torch.randn(4, 3)
        for net, optimizer in zip(nets, optimizers, strict=True):

            def evaluate(net: nn.Module = net, optimizer: Any = optimizer, x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = (net(x) - y).square().mean()
                loss.backward()
                return loss

            if closure:
                optimizer.step(evaluate)
            else:
                evaluate()
                optimizer.step()
        plastic.step()
    for mine, theirs in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)
