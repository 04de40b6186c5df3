"""Units of several layers that are replaced at one tick: new units start as new, in any order of the layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import neoteny


def tick(model: nn.Module) -> neoteny.Attachment:
    """One update after which half of all units are replaced."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = neoteny.ContinualBackprop(0.5, maturity_threshold=0)
    plastic = neoteny.attach(model, optimizer, method, example=torch.zeros(1, 6))
    model(torch.randn(16, 6)).square().sum().backward()
    optimizer.step()
    plastic.step()
    return plastic


class Branches(nn.Module):
    """The units that are read in the end have a producer in each branch."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(2))
        self.out = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.one(x) + self.two(x)))


def test_a_unit_that_is_new_has_no_bias_left_of_a_layer_that_was_replaced_with_it() -> None:
    torch.manual_seed(0)
    model = Branches()
    plastic = tick(model)
    assert plastic.replaced == {"one.0": 4, "one.2": 4, "two.0": 4}
    new = (model.out.weight == 0).all(0)
    assert int(new.sum()) == 4
    for name in ("one.2", "two.2"):
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        assert not layer.bias[new].any()
        assert layer.bias[~new].all()
        assert layer.weight[new].all()  # drawn, not cleared with the columns


class Loop(nn.Module):
    """Two layers that feed each other, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.up, self.down, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        for _ in range(2):
            x = x + self.down(torch.relu(self.up(x)))
        return self.out(torch.relu(self.up(x)))


def test_new_units_have_no_bias_left_in_layers_that_feed_each_other() -> None:
    torch.manual_seed(0)
    model = Loop()
    plastic = tick(model)
    assert plastic.replaced == {"start": 4, "up": 4}
    ages = {name: each["born"] for name, each in plastic.state_dict()["states"][0].items()}
    assert not model.up.bias[ages["up"] == 1].any()
    assert not model.down.bias[ages["start"] == 1].any()
