"""Loops as they are in the wild: bad batches, heads trained apart, layers frozen half-way, forgotten calls."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny import ContinualBackprop
from support.loops import FAST, batches, mlp, train


@pytest.mark.parametrize("utility", ["overall", "random"])
@pytest.mark.parametrize("convolution", [False, True])
def test_a_batch_that_is_not_finite_leaves_the_statistics_alone(utility: str, convolution: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)) if convolution else mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    shape = (1, 6) if convolution else (6,)
    method = ContinualBackprop(0.05, 5, utility=utility)
    plastic = neoteny.attach(model, optimizer, method, example=torch.zeros(2, *shape), seed=1)
    for number, (x, y) in enumerate(batches(60)):
        x = x.reshape(4, *shape)
        if number in (0, 20, 21):
            x[0] = float("nan")
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        if not torch.isfinite(loss):  # the usual way to skip a bad batch
            continue
        loss.backward()
        optimizer.step()
        plastic.step()
    assert sum(plastic.replaced.values()) > 5
    assert all(bool(torch.isfinite(value).all()) for value in model.parameters())
    for statistics in plastic.state_dict()["states"][0].values():
        assert bool(torch.isfinite(statistics["mean_activation"]).all())


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.policy, self.value = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x: Tensor, heads: str = "both") -> Tensor:
        hidden = torch.relu(self.trunk(x))
        both = (("policy", self.policy), ("value", self.value))
        return torch.cat([head(hidden) for name, head in both if heads in (name, "both")], dim=-1)


@pytest.mark.parametrize("compensate", [True, False])
def test_heads_may_be_trained_apart(compensate: bool) -> None:
    torch.manual_seed(0)
    model = TwoHeads()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    method = ContinualBackprop(0.02, 5, 0.9, compensate=compensate)
    plastic = neoteny.attach(model, optimizer, method, example=torch.zeros(2, 6), seed=1)
    x = torch.randn(16, 6)
    before = model(x).mean(0)
    for heads in ["policy", "value", "both", "value"] * 15:
        optimizer.zero_grad()
        model(x, heads).square().mean().backward()
        optimizer.step()
        plastic.step()
    assert plastic.state_dict()["states"][0]["trunk"]["schedule"]["step"] == 60
    assert plastic.replaced["trunk"] >= 5
    if compensate:  # with constant data and weights the mean output of either head is kept through every reset
        torch.testing.assert_close(model(x).mean(0), before, rtol=1e-4, atol=1e-5)


def test_layers_frozen_after_attach_are_not_touched_and_thawed_ones_are() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    methods = (neoteny.ShrinkAndPerturb(1e-3, 1e-3), FAST)
    plastic = neoteny.attach(model, optimizer, *methods, example=torch.zeros(1, 6), seed=1)
    train(model, optimizer, plastic, batches(20))
    model[0].requires_grad_(False)
    optimizer.zero_grad()
    frozen, counts = copy.deepcopy(model[0].state_dict()), plastic.replaced
    train(model, optimizer, plastic, batches(40))
    assert all(torch.equal(value, model[0].state_dict()[name]) for name, value in frozen.items())
    assert plastic.replaced["0"] == counts["0"]
    assert plastic.replaced["2"] > counts["2"]
    model[0].requires_grad_(True)
    train(model, optimizer, plastic, batches(40))
    assert plastic.replaced["0"] > counts["0"]


def test_attaching_twice_is_refused_until_the_first_is_detached() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
    with pytest.raises(ValueError, match="already attached"):
        neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
    neoteny.detach(model)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
    train(model, optimizer, plastic, batches(30))
    assert sum(plastic.replaced.values()) > 5


def test_memory_stays_bounded_when_the_step_is_forgotten() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
    with pytest.warns(RuntimeWarning, match=r"without plastic\.step"):
        train(model, optimizer, None, batches(250))
    assert all(len(kept) <= 1 for kept in plastic.view.activations.values())


def test_a_norm_kept_in_eval_mode_does_not_switch_its_group_off() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(2, 6), seed=1)
    model[2].eval()
    train(model, optimizer, plastic, batches(30))
    assert plastic.replaced["0"] > 3


def test_an_empty_batch_counts_for_nothing() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(2, 6), seed=1)
    train(model, optimizer, plastic, batches(5))
    optimizer.zero_grad()
    for x in (torch.zeros(0, 6), torch.randn(4, 6)):
        model(x).square().sum().backward()
    optimizer.step()
    plastic.step()
    assert plastic.state_dict()["states"][0]["0"]["schedule"]["step"] == 6


@pytest.mark.parametrize("tick_both", [False, True])
def test_one_optimizer_may_serve_two_models_in_turn(tick_both: bool) -> None:
    first, second = mlp(), mlp(seed=1)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.01)
    handles = [neoteny.attach(net, optimizer, FAST, example=torch.zeros(2, 6), seed=1) for net in (first, second)]
    for number, (x, y) in enumerate(batches(40)):
        optimizer.zero_grad()
        ((first, second)[number % 2](x) - y).square().mean().backward()
        optimizer.step()
        for plastic in handles if tick_both else handles[number % 2 :][:1]:
            plastic.step()
    for plastic in handles:
        assert plastic.state_dict()["states"][0]["0"]["schedule"]["step"] == 20


def test_a_layer_reparametrised_after_attach_is_an_error() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(2, 6), seed=1)
    nn.utils.parametrizations.weight_norm(model[0])
    with pytest.raises(ValueError, match=r"0\.weight is no longer a parameter"):
        train(model, optimizer, plastic, batches(1))


def test_sparse_gradients_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    neoteny.attach(model, optimizer, neoteny.L2(0.1))
    model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(TypeError, match=r"0\.weight has sparse gradients"):
        optimizer.step()


def test_a_skipped_update_whose_gradients_were_zeroed_is_still_skipped() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
    for number, (x, y) in enumerate(batches(6)):
        loss = (model(x) - y).square().mean()
        scaler.scale(loss * (float("inf") if number == 3 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=False)
        plastic.step()
    assert plastic.state_dict()["states"][0]["0"]["schedule"]["step"] == 5


def test_numbers_of_numpy_and_torch_are_numbers() -> None:
    settings: Any = (torch.tensor(0.125), np.int64(50), np.float64(0.5))
    method = ContinualBackprop(*settings)
    assert method == ContinualBackprop(0.125, 50, 0.5)
    assert isinstance(method.replacement_rate, float)


@pytest.mark.parametrize("seed", [1.7, "a", 2**64, True])
def test_a_seed_that_is_not_a_64_bit_integer_is_refused(seed: Any) -> None:
    model = mlp()
    with pytest.raises(ValueError, match="seed must be a 64-bit integer"):
        neoteny.attach(model, torch.optim.SGD(model.parameters(), 0.1), FAST, example=torch.zeros(2, 6), seed=seed)


def test_an_unknown_initialisation_gets_the_line_to_write() -> None:
    model = mlp()
    nn.init.orthogonal_(model.get_parameter("2.weight"), gain=5.0)
    with pytest.raises(ValueError, match=r"init=\{'2': neoteny\.Initial\('orthogonal', scale=5\)\}"):
        neoteny.attach(model, torch.optim.SGD(model.parameters(), 0.1), FAST, example=torch.zeros(2, 6), init="strict")
    nn.init.normal_(model.get_parameter("2.weight"), std=1.5)
    with pytest.raises(ValueError, match=r"init=\{'2': neoteny\.Initial\('normal', scale=1\.\d+\)\}"):
        neoteny.attach(model, torch.optim.SGD(model.parameters(), 0.1), FAST, example=torch.zeros(2, 6), init="strict")


@pytest.mark.parametrize("accumulated", [False, True])
def test_units_without_incoming_weights_rank_lowest(accumulated: bool) -> None:
    model = mlp()
    with torch.no_grad():
        model.get_parameter("0.weight")[3] = 0.0
        model.get_parameter("0.bias")[3] = 1.0
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    plastic = neoteny.attach(
        model, optimizer, ContinualBackprop(0.02, 5), example=torch.zeros(2, 6), seed=1, trained=True
    )
    for x, y in batches(20):
        for part in (slice(0, 2), slice(2, 4)) if accumulated else (slice(0, 4),):  # two passes take the general path
            (model(x[part]) - y[part]).square().mean().backward()
        optimizer.step()
        plastic.step()
        if plastic.replaced["0"]:
            break
    assert bool(model.get_parameter("0.weight")[3].any())
