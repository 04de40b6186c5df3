"""Layers and norms with a `forward` of their own: units are found where a trial shows what they compute."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neoteny
from neoteny.layers.kinds import kind_of


class OwnLinear(nn.Linear):
    """A linear layer in its own words."""

    def forward(self, input: Tensor) -> Tensor:
        return input @ self.weight.T + self.bias


class DoublingLinear(nn.Linear):
    """Its rows are not what it multiplies with."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, 2 * self.weight, self.bias)


class SamePadding(nn.Conv2d):
    """Pads as the size of the image asks for."""

    def forward(self, input: Tensor) -> Tensor:
        size, step = input.shape[-1], self.stride[0]
        more = max(0, (-(-size // step) - 1) * step + self.kernel_size[0] - size)
        return F.conv2d(F.pad(input, (0, more, 0, more)), self.weight, self.bias, self.stride)


class NormAct(nn.BatchNorm2d):
    """A norm with its activation built in."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.act = nn.ReLU()

    def forward(self, input: Tensor) -> Tensor:
        return self.act(super().forward(input))


class MixingNorm(nn.BatchNorm2d):
    """Channels meet after the norm."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).softmax(1)


class CrossedScales(nn.BatchNorm2d):
    """A channel has the scale of another one."""

    def forward(self, input: Tensor) -> Tensor:
        return F.batch_norm(input, None, None, self.weight.flip(0), self.bias, True)


class OffsetScale(nn.BatchNorm2d):
    """Its new scale is zero and counts from one."""

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.zeros_(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        return F.batch_norm(input, None, None, self.weight + 1, self.bias, True)


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (OwnLinear(4, 6), "boundary"),
        (DoublingLinear(4, 6), "opaque"),
        (SamePadding(3, 4, 2, 2), "opaque"),
        (NormAct(6), "norm"),
        (MixingNorm(6), "opaque"),
        (CrossedScales(6), "opaque"),
        (OffsetScale(6), "opaque"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_trial_shows_what_a_layer_with_its_own_forward_is(module: nn.Module, kind: str) -> None:
    before = {name: value.clone() for name, value in module.state_dict().items()}
    random = torch.get_rng_state()
    assert kind_of(module) == kind
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_units_in_front_of_a_norm_with_an_activation_are_replaced_with_their_norm() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 8, 3), NormAct(8), nn.Flatten(), OwnLinear(8 * 9, 5), nn.ReLU(), OwnLinear(5, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = neoteny.ContinualBackprop(0.5, maturity_threshold=0)
    plastic = neoteny.attach(model, optimizer, method, example=torch.randn(2, 2, 5, 5))
    assert plastic.wiring is not None
    assert [[port.module for port in group.norms] for group in plastic.wiring] == [["1"], []]
    model(torch.randn(4, 2, 5, 5)).square().sum().backward()
    optimizer.step()
    plastic.step()
    assert plastic.replaced == {"0": 4, "3": 2}
    norm = model[1]
    assert isinstance(norm, NormAct)
    new = norm.running_var == 1.0
    assert int(new.sum()) == 4
    assert norm.weight[new].tolist() == [1.0] * 4
