"""Dropout: documented draws, the same alone and inside a stack."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state

from neoteny.draws import rng
from neoteny.nets import Dropout
from support.stacked_nets import assert_stack_equals_alone

pytestmark = pytest.mark.usefixtures("double_precision")


def test_dropout_keeps_the_mean_and_the_share() -> None:
    y = Dropout(0.3)(torch.ones(200, 500))
    assert (y == 0).double().mean().item() == pytest.approx(0.3, abs=0.01)
    assert set(y.unique().tolist()) == {0.0, 1 / 0.7}


def test_dropout_masks_are_the_documented_draws() -> None:
    layer = Dropout(0.4)
    x = torch.randn(3, 2, 5, requires_grad=True)
    for step in range(3):
        draws = rng.uniform(layer.seed, step, "dropout", torch.arange(3), 10).reshape(3, 2, 5)
        scale = (draws > 0.4) / 0.6
        y = layer(x)
        torch.testing.assert_close(y, x * scale, rtol=1e-15, atol=0)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], scale, rtol=1e-15, atol=0)
    assert layer.step.item() == 3


def test_dropout_in_evaluation_is_the_identity_and_leaves_no_trace() -> None:
    layer = Dropout(0.5).eval()
    x = torch.randn(4, 4)
    assert layer(x) is x
    assert layer.step.item() == 0


def test_dropout_is_reproduced_by_manual_seed_and_layers_differ() -> None:
    x = torch.ones(20, 20)
    torch.manual_seed(5)
    first, second = Dropout(0.5)(x), Dropout(0.5)(x)
    torch.manual_seed(5)
    assert torch.equal(Dropout(0.5)(x), first)
    assert not torch.equal(first, second)


def test_dropout_resumes_from_its_state_dict() -> None:
    layer, x = Dropout(0.5), torch.ones(10, 10)
    layer(x)
    resumed = Dropout(0.5)
    resumed.load_state_dict(layer.state_dict())
    for _ in range(3):
        assert torch.equal(layer(x), resumed(x))


def test_dropout_draws_the_same_masks_in_a_stack_at_other_steps() -> None:
    layers: list[nn.Module] = [Dropout(0.5) for _ in range(3)]
    for run, layer in enumerate(layers):
        layer.get_buffer("step").fill_(7 * run)
    parameters, buffers = stack_module_state(layers)
    x = torch.ones(3, 6, 8)
    for _ in range(4):
        stacked = torch.vmap(lambda b, x: functional_call(layers[0], b, (x,)))(buffers, x)
        assert torch.equal(stacked, torch.stack([layer(x[0]) for layer in layers]))
    assert parameters == {}
    assert buffers["step"].tolist() == [4, 11, 18]


def test_dropout_trains_in_a_stack_as_alone() -> None:
    assert_stack_equals_alone(lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), Dropout(0.3), nn.Linear(8, 2)))


@pytest.mark.parametrize("p", [-0.1, 1.0, math.nan])
def test_dropout_refuses_an_impossible_probability(p: float) -> None:
    with pytest.raises(ValueError, match=f"got {p}"):
        Dropout(p)


def test_dropout_refuses_a_vector() -> None:
    with pytest.raises(ValueError, match=r"got \(4,\)"):
        Dropout(0.5)(torch.ones(4))
