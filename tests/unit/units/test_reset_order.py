"""Units of several layers that are replaced at one tick: new units start as new, in any order of the layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.layers.groups import Port
from neoteny.layers.ports import ConsumerPort
from neoteny.layers.regions import ChosenUnits


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


@pytest.mark.parametrize("groups", [1, 2])
def test_large_compensations_are_added_in_one_order(groups: int) -> None:
    """Threads that add to one bias at once would do so in another order each time."""
    threads = torch.get_num_threads()
    torch.manual_seed(0)
    module = nn.Conv1d(128, 2048, 1, groups=groups)
    port = ConsumerPort(Port("layer", torch.arange(128).reshape(64, 2)), module)
    chosen, means = ChosenUnits((), torch.arange(64)), torch.randn(64, 2, 1)
    found: set[bytes] = set()
    try:
        for count in (1, 2, 2, 2, 2):
            torch.set_num_threads(count)
            bias = torch.zeros(2048)
            port.compensate(module.weight.detach(), bias, chosen, means)
            found.add(bias.numpy().tobytes())
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 1
    columns = means.flatten()
    weight = module.weight.detach().squeeze(-1)
    share = torch.cat([part @ some for part, some in zip(weight.chunk(groups), columns.chunk(groups), strict=True)])
    torch.testing.assert_close(bias, share, rtol=1e-4, atol=1e-4)
