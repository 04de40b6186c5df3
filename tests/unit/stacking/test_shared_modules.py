"""A stack of networks that call a module several times."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import SGD
from support.shared_models import Pyramid, Rnn


class OneOutput(Rnn):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, 0]


def test_a_stack_counts_all_calls_as_attach_does() -> None:
    torch.manual_seed(0)
    networks = [OneOutput().double() for _ in range(2)]
    method = neoteny.ContinualBackprop(0.3, maturity_threshold=3)
    x, y = torch.randn(20, 2, 5, 4, 3, dtype=torch.float64), torch.randn(20, 2, 5, 2, dtype=torch.float64)
    runs = neoteny.stack(networks, SGD(0.05), method, example=x[0, 0], seeds=[3, 4], init="default")
    for inputs, targets in zip(x, y, strict=True):
        runs.step(inputs, targets)
    for run, network in enumerate(networks):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
        plastic = neoteny.attach(network, optimizer, method, example=x[0, 0], seed=3 + run, init="default")
        for inputs, targets in zip(x[:, run], y[:, run], strict=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(network(inputs), targets).backward()
            optimizer.step()
            plastic.step()
        assert plastic.replaced["ih"] == runs.replaced["ih"][run] > 10
        for name, value in network.named_parameters():
            torch.testing.assert_close(runs.view.tensors[name][run], value.detach(), rtol=1e-9, atol=1e-12)


def test_calls_with_inputs_of_different_size_are_refused_in_a_stack() -> None:
    networks = [Pyramid() for _ in range(2)]
    runs = neoteny.stack(networks, SGD(0.05), neoteny.ContinualBackprop(), example=torch.rand(1, 3, 16, 16))
    with pytest.raises(ValueError, match="h2 is called several times in a forward pass, with inputs that cannot be"):
        runs.step(torch.rand(2, 1, 3, 16, 16), torch.rand(2, 1, 320))
