"""The fused tick on CUDA replaces the same units at the same ticks as the general path, with the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import neoteny
from neoteny.methods import ContinualBackprop
from neoteny.units.device_tick import why_not_fused
from neoteny.units.utilities import GRADIENT, UTILITIES
from support.device_ticks import NETS, OPTIMIZERS, Pair

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TICKS = 12


def agree(pair: Pair, autocast: bool = False) -> None:
    pair.train(autocast)
    pair.worst = 0.0  # with one example the first deviation from the mean is rounding alone
    for _ in range(TICKS):
        pair.train(autocast)
    fused, general = pair.attached
    assert why_not_fused(fused.view) == ""
    assert fused.replaced == general.replaced
    assert min(fused.replaced.values()) > 0
    assert pair.worst < 1e-5


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("net", NETS)
def test_every_optimizer(net: str, optimizer: str) -> None:
    agree(Pair(net, optimizer, ContinualBackprop(0.05, maturity_threshold=3, decay_rate=0.9)))


@pytest.mark.parametrize("utility", [name for name, terms in UTILITIES.items() if not terms & GRADIENT])
@pytest.mark.parametrize("net", NETS)
def test_every_utility(net: str, utility: str) -> None:
    method = ContinualBackprop(0.05, maturity_threshold=3, decay_rate=0.9, utility=utility)
    agree(Pair(net, "momentum", method), autocast=True)


@pytest.mark.parametrize("count", ["eligible", "layer"])
@pytest.mark.parametrize("compensate", [True, False])
@pytest.mark.parametrize("net", ["conv", "separable"])
def test_channels_last_and_options(net: str, compensate: bool, count: str) -> None:
    method = ContinualBackprop(0.05, maturity_threshold=3, decay_rate=0.9, compensate=compensate, count=count)
    agree(Pair(net, "adam", method, channels_last=True), autocast=compensate)


@pytest.mark.parametrize("init", ["kaiming_normal", neoteny.Initial("normal", scale=0.05, cut=2.0), "default"])
def test_new_weights_are_those_of_the_general_path(init: str | neoteny.Initial) -> None:
    drawn = []
    for fused in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 5)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        method = ContinualBackprop(1.0, maturity_threshold=0, decay_rate=0.9)
        example = torch.randn(8, 30, device="cuda")
        plastic = neoteny.attach(model, optimizer, method, example=example, seed=3, init=init, trained=True)
        if not fused:
            state = plastic._chain.states[0]
            plastic.view.fused[id(state)] = (state, "switched off")
        for _ in range(2):
            model(example).sum().backward()
            optimizer.step()
            plastic.step()
        drawn.append(dict(model.named_parameters())["0.weight"].detach().clone())
    torch.testing.assert_close(drawn[0], drawn[1], rtol=1e-6, atol=1e-8)


def test_micro_batches_and_uneven_ones() -> None:
    pair = Pair("transformer", "adam", ContinualBackprop(0.05, maturity_threshold=3, decay_rate=0.9))
    for rows in (4, 4, 2, 4, 1):
        pair.shape = (rows, 7, 32)
        inputs = torch.randn(pair.shape, device="cuda")
        for model in pair.models:
            model(inputs).square().mean().backward()  # a first micro-batch
        pair.train()
    assert pair.worst < 1e-5


def test_two_runs_are_the_same_to_the_last_bit() -> None:
    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = NETS["mlp"][0]().cuda()
        optimizer = neoteny.optim.Adam(model.parameters(), 1e-3)
        example = torch.randn(16, 40, device="cuda")
        plastic = neoteny.attach(
            model, optimizer, ContinualBackprop(0.05, maturity_threshold=3), example=example, seed=1
        )
        for _ in range(60):
            optimizer.zero_grad()
            model(torch.randn(16, 40, device="cuda")).square().mean().backward()
            optimizer.step()
            plastic.step()
        assert sum(plastic.replaced.values()) > 100
        return [parameter.detach().clone() for parameter in model.parameters()]

    for one, other in zip(run(), run(), strict=True):
        assert torch.equal(one, other)


def test_what_the_kernels_do_not_know_takes_the_general_path_and_says_why() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).cuda().double()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    example = torch.randn(3, 4, device="cuda", dtype=torch.float64)
    plastic = neoteny.attach(model, optimizer, ContinualBackprop(0.5, maturity_threshold=0), example=example)
    for _ in range(4):
        model(example).sum().backward()
        optimizer.step()
        plastic.step()
    assert "float64" in why_not_fused(plastic.view)
    assert "float64" in str(plastic)
    assert plastic.replaced["0"] > 0
