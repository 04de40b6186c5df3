"""Which layer gives the output: from a pass or from a chain; several or none are refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from neoteny.nets import MLP, ConvNet
from neoteny.wiring.output import find_output_layer


class Residual(nn.Module):
    """Defined from the output to the input, with a layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.second, self.first = nn.Linear(4, 4), nn.Linear(3, 4)
        self.unused = nn.Linear(9, 9)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        return self.head(h + self.second(h).relu())


class TwoHeads(Residual):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        return torch.cat([self.head(h), self.second(h)], -1)


class NoLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def test_a_pass_tells_whatever_the_order_of_definition() -> None:
    assert find_output_layer(Residual(), torch.randn(2, 3)) == "head"
    assert find_output_layer(Residual(), [torch.randn(2, 3), (torch.randn(4, 3),)]) == "head"


def test_a_chain_needs_no_example() -> None:
    inner = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.LayerNorm(4))
    assert find_output_layer(nn.Sequential(inner, nn.Sequential(nn.Linear(4, 2), nn.Flatten()))) == "1.0"
    assert find_output_layer(nn.Sequential(inner, nn.ReLU())) == "0.2"
    assert find_output_layer(MLP(3, [4], 2)) == "out"
    assert find_output_layer(nn.Linear(3, 2)) == ""


def test_the_package_s_networks_have_one() -> None:
    net = ConvNet()
    x = torch.randn(2, 3, 32, 32)
    last = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)][-1]
    assert find_output_layer(net, x) == last


def test_what_cannot_be_told_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"not known which layer of Residual.*pass example="):
        find_output_layer(Residual())
    with pytest.raises(ValueError, match=r"2 layers give the output of TwoHeads: head, second|second, head"):
        find_output_layer(TwoHeads(), torch.randn(2, 3))
    with pytest.raises(ValueError, match=r"No linear layer or convolution ends NoLayer"):
        find_output_layer(NoLayer(), torch.randn(2, 3))


def test_a_pass_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    assert find_output_layer(model, torch.randn(5, 3, generator=torch.Generator())) == "3"
    assert torch.equal(state, torch.random.get_rng_state())
    assert model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
