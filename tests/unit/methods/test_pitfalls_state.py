"""Pitfalls of other code in this field: partial checkpoints, topology, seeds. Each test fails on one."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neoteny
from support.pitfall_models import ARCHITECTURES, IDS, Make, mlp, statistics_of, update

pytestmark = pytest.mark.usefixtures("double_precision")


# ------------------------------------------------------------------------------------------------ partial checkpoints


def through_a_file(state: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


RESUMED: dict[str, list[neoteny.methods.Method]] = {
    "overall": [neoteny.ContinualBackprop(0.05, 7)],
    "random": [neoteny.ContinualBackprop(0.05, 7, utility="random", count="layer")],
    "with noise": [neoteny.ShrinkAndPerturb(1e-3, 1e-3), neoteny.ContinualBackprop(0.05, 7)],
}


@pytest.mark.parametrize("name", RESUMED)
@pytest.mark.parametrize(
    "kind", [torch.optim.SGD, neoteny.optim.Adam, torch.optim.Adam], ids=["sgd", "neoteny adam", "adam"]
)
@pytest.mark.parametrize(("make", "shape"), ARCHITECTURES, ids=IDS)
def test_training_resumed_from_a_file_is_bit_identical(
    make: Make, shape: tuple[int, ...], kind: Any, name: str
) -> None:
    def start(seed: int) -> tuple[nn.Sequential, torch.optim.Optimizer, neoteny.Attachment]:
        torch.manual_seed(seed)
        net = make()
        optimizer = kind(net.parameters(), lr=0.01)
        return net, optimizer, neoteny.attach(net, optimizer, *RESUMED[name], example=torch.randn(4, *shape), seed=seed)

    data = [(torch.randn(4, *shape), torch.randn(4, 3)) for _ in range(24)]
    net, optimizer, plastic = start(1)
    for x, y in data[:12]:
        update(net, optimizer, plastic, x, y)
    saved = through_a_file([net.state_dict(), optimizer.state_dict(), plastic.state_dict()])
    losses = [update(net, optimizer, plastic, x, y) for x, y in data[12:]]

    again, fresh_optimizer, fresh_plastic = start(2)
    for one, state in zip((again, fresh_optimizer, fresh_plastic), saved, strict=True):
        one.load_state_dict(state)
    assert [update(again, fresh_optimizer, fresh_plastic, x, y) for x, y in data[12:]] == losses
    assert fresh_plastic.replaced == plastic.replaced
    assert fresh_plastic.seed == plastic.seed
    for mine, theirs in zip(again.state_dict().values(), net.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    for group, values in statistics_of(plastic).items():
        for key in ("born", "mean_activation", "utility", "decay_power"):
            assert torch.equal(statistics_of(fresh_plastic)[group][key], values[key]), key
        assert statistics_of(fresh_plastic)[group]["schedule"] == values["schedule"]


def test_weights_alone_do_not_make_a_checkpoint() -> None:
    # The check above would pass on a checkpoint without ages and utilities if these made no difference.
    data = [(torch.randn(4, 4), torch.randn(4, 3)) for _ in range(40)]
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    plastic = neoteny.attach(net, optimizer, *RESUMED["overall"], example=data[0][0], seed=1)
    for x, y in data[:20]:
        update(net, optimizer, plastic, x, y)
    twin = copy.deepcopy(net)
    losses = [update(net, optimizer, plastic, x, y) for x, y in data[20:]]
    plain = mlp()
    plain.load_state_dict(twin.state_dict())
    again = torch.optim.SGD(plain.parameters(), lr=0.01)
    restarted = neoteny.attach(plain, again, *RESUMED["overall"], example=data[0][0], seed=1, trained=True)
    assert [update(plain, again, restarted, x, y) for x, y in data[20:]] != losses


# ------------------------------------------------------------------ topology by index arithmetic, or by shape


class Shuffled(nn.Module):
    """Four layers of one shape, registered in an order that is not that of the forward pass."""

    def __init__(self, order: tuple[str, ...]) -> None:
        super().__init__()
        torch.manual_seed(5)
        layers = {name: nn.Linear(4, 4) for name in ("first", "second", "third", "out")}
        for name in order:
            self.add_module(name, layers[name])

    def forward(self, x: Tensor) -> Tensor:
        for name in ("first", "second", "third"):
            x = F.relu(self.get_submodule(name)(x))
        return self.get_submodule("out")(x)


def test_the_order_of_registration_makes_no_difference() -> None:
    results = []
    for order in (("first", "second", "third", "out"), ("third", "out", "first", "second")):
        net = Shuffled(order)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        plastic = neoteny.attach(net, optimizer, neoteny.ContinualBackprop(0.1, 3), example=torch.randn(2, 4), seed=1)
        data = torch.Generator().manual_seed(9)
        for _ in range(40):
            x, y = torch.randn(4, 4, generator=data), torch.randn(4, 4, generator=data)
            update(net, optimizer, plastic, x, y)
        assert plastic.wiring is not None
        consumers = {group.name: [port.module for port in group.consumers] for group in plastic.wiring.groups}
        assert consumers == {"first": ["second"], "second": ["third"], "third": ["out"]}
        assert all(plastic.replaced.values())
        results.append({name: value.clone() for name, value in net.state_dict().items()})
    for name, value in results[0].items():
        assert torch.equal(results[1][name], value), name


# ----------------------------------------------------------------------------------------------- unseeded randomness


def final_weights(seed: int | None, torch_seed: int, utility: str = "random") -> Tensor:
    torch.manual_seed(0)
    net = mlp()
    data = [(torch.randn(4, 4), torch.randn(4, 3)) for _ in range(30)]
    torch.manual_seed(torch_seed)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    method = neoteny.ContinualBackprop(0.1, 3, utility=utility)
    plastic = neoteny.attach(net, optimizer, method, example=torch.zeros(1, 4), seed=seed)
    for x, y in data:
        update(net, optimizer, plastic, x, y)
    return nn.utils.parameters_to_vector(net.parameters()).detach()


def test_a_seed_makes_every_draw_reproducible_whatever_torchs_generator_does() -> None:
    assert torch.equal(final_weights(seed=3, torch_seed=1), final_weights(seed=3, torch_seed=2))
    assert not torch.equal(final_weights(seed=3, torch_seed=1), final_weights(seed=4, torch_seed=1))


def test_without_a_seed_torchs_manual_seed_reproduces() -> None:
    assert torch.equal(final_weights(seed=None, torch_seed=1), final_weights(seed=None, torch_seed=1))
    assert not torch.equal(final_weights(seed=None, torch_seed=1), final_weights(seed=None, torch_seed=2))


def test_replacing_units_does_not_consume_torchs_random_numbers() -> None:
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    plastic = neoteny.attach(net, optimizer, neoteny.ContinualBackprop(0.5, 0), example=torch.zeros(1, 4), seed=1)
    x, y = torch.randn(4, 4), torch.randn(4, 3)
    before = torch.get_rng_state()
    for _ in range(10):
        update(net, optimizer, plastic, x, y)
    assert all(plastic.replaced.values())
    assert torch.equal(torch.get_rng_state(), before)
