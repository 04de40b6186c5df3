"""ConvNet: the paper's shapes and initial distribution."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from neoteny.nets import ConvNet

pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.mark.parametrize(("pool_stride", "inputs"), [(2, 512), (1, 56_448)])
def test_convnet_has_the_papers_shapes(pool_stride: int, inputs: int) -> None:
    net = ConvNet(pool_stride=pool_stride)
    assert net.fc1.in_features == inputs
    shapes = [tuple(p.shape) for p in net.parameters() if p.dim() > 1]
    assert shapes == [(32, 3, 5, 5), (64, 32, 3, 3), (128, 64, 3, 3), (128, inputs), (128, 128), (2, 128)]
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, 2)


def test_convnet_kaiming_bounds_count_the_kernel() -> None:
    conv = ConvNet(init="kaiming_uniform").get_submodule("conv2")
    assert isinstance(conv, nn.Conv2d)
    bound = math.sqrt(2) * math.sqrt(3 / (32 * 9))
    assert 0.999 * bound < conv.weight.abs().max().item() <= bound
    assert conv.bias is not None
    assert not conv.bias.any()


@pytest.mark.parametrize("options", [{"pool_stride": 3}, {"outputs": 0}, {"init": "zeros"}], ids=str)
def test_convnet_refuses_bad_arguments(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"got {next(iter(options.values()))!r}"):
        ConvNet(**options)  # type: ignore[arg-type]
