"""Squeeze and excitation: the scaled channels and their gate are one group; a residual stream is not."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from support.replaced_units import chosen_units, outputs_of, train_until_replaced
from support.wiring_checks import checked, outline


class Excited(nn.Module):
    """A block with squeeze and excitation, or with a sum in the place of the product."""

    def __init__(self, product: bool = True) -> None:
        super().__init__()
        self.product = product
        self.conv, self.norm = nn.Conv2d(2, 6, 3, bias=False), nn.BatchNorm2d(6)
        self.reduce, self.expand, self.project = nn.Conv2d(6, 3, 1), nn.Conv2d(3, 6, 1), nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        gate = self.expand(torch.relu(self.reduce(x.mean((2, 3), keepdim=True))))
        return self.project(x * gate.sigmoid() if self.product else x + gate)


def test_channels_and_their_gate_are_one_group() -> None:
    wiring = checked(Excited(), torch.randn(3, 2, 5, 5))
    assert outline(wiring) == [
        (["conv", "expand"], ["norm"], ["reduce", "project"], "reduce"),
        (["reduce"], [], ["expand"], "expand"),
    ]
    added = checked(Excited(product=False), torch.randn(3, 2, 5, 5))
    assert [group.name for group in added] == ["reduce"]
    assert "residual stream" in added.left_out["conv"]


def test_a_reset_unit_of_a_gated_group_is_silent() -> None:
    torch.manual_seed(0)
    model, x = Excited().double(), torch.randn(8, 2, 5, 5, dtype=torch.float64)
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    plastic = train_until_replaced(model, x, adam, leave_out=["reduce"])
    units = chosen_units(plastic)["conv"]
    assert not model.project.weight[:, units].any()
    assert not model.reduce.weight[:, units].any()
    assert not adam.state[model.expand.weight]["exp_avg"][units].any()
    model.eval()
    before = outputs_of(model, x)[0]
    with torch.no_grad():
        model.conv.weight[units] += 1.0
        model.expand.weight[units] += 1.0
        model.norm.bias[units] += 1.0
    assert torch.equal(outputs_of(model, x)[0], before)
