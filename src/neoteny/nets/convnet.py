"""ConvNet: the convolutional network of Continual ImageNet (the paper's Table 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from neoteny.draws.initial import Initial
from neoteny.nets.activations import check_init, kaiming_uniform_


class ConvNet(nn.Module):
    """Three convolutions with max-pooling and three linear layers, ReLU, for images (B, 3, 32, 32).

    =========  ===============================  ====================
    layer      what                             outputs (stride 2)
    =========  ===============================  ====================
    `conv1`    32 filters 5x5, ReLU, pool 2x2   32 x 14 x 14
    `conv2`    64 filters 3x3, ReLU, pool 2x2   64 x 6 x 6
    `conv3`    128 filters 3x3, ReLU, pool 2x2  128 x 2 x 2, flattened to 512
    `fc1`      linear, ReLU                     128
    `fc2`      linear, ReLU                     128
    `out`      linear                           `outputs`
    =========  ===============================  ====================

    Args:
        outputs: number of outputs; 2 for the paper's binary tasks.
        pool_stride: stride of the max-pooling. 2 is what the paper's results were made with; 1 is what its table prints
            and gives the first linear layer 56,448 inputs.
        filters: of the three convolutions.
        units: of each of the two hidden linear layers.
        init: "default" for torch's own initial distribution, or "kaiming_uniform" (gain sqrt(2), output layer 1, zero
            biases).

    Example:
        >>> ConvNet().fc1.in_features
        512
        >>> ConvNet(filters=(8, 16, 32)).fc1.in_features
        128
    """

    runs_children_in_order: ClassVar[bool] = True

    def __init__(
        self,
        outputs: int = 2,
        pool_stride: int = 2,
        init: str = "default",
        filters: Sequence[int] = (32, 64, 128),
        units: int = 128,
    ) -> None:
        if not isinstance(outputs, int) or outputs < 1:
            raise ValueError(f"ConvNet: outputs must be a whole number of at least 1, got {outputs!r}.")
        if pool_stride not in (1, 2):
            raise ValueError(f"ConvNet: pool_stride must be 2 (as the paper's code) or 1, got {pool_stride!r}.")
        if len(filters) != 3 or any(not isinstance(count, int) or count < 1 for count in (*filters, units)):
            raise ValueError(
                "ConvNet: filters must be three whole numbers and units one, each at least 1; got "
                f"filters={filters!r}, units={units!r}."
            )
        check_init(init)
        super().__init__()
        side, channels = 32, 3
        for number, (count, kernel) in enumerate(zip(filters, (5, 3, 3), strict=True), start=1):
            self.add_module(f"conv{number}", nn.Conv2d(channels, count, kernel))
            self.add_module(f"act{number}", nn.ReLU())
            self.add_module(f"pool{number}", nn.MaxPool2d(2, pool_stride))
            side, channels = (side - kernel + 1 - 2) // pool_stride + 1, count
        self.flatten = nn.Flatten()
        self.fc1 = nn.Linear(channels * side * side, units)
        self.act4 = nn.ReLU()
        self.fc2 = nn.Linear(units, units)
        self.act5 = nn.ReLU()
        self.out = nn.Linear(units, outputs)
        # What `attach` and `stack` draw new units from.
        self.initial_distributions: dict[str, Initial] = {}
        if init == "kaiming_uniform":
            for name, layer in self.named_children():
                if isinstance(layer, (nn.Linear, nn.Conv2d)):
                    layer_gain = 1.0 if layer is self.out else math.sqrt(2.0)
                    self.initial_distributions[name] = kaiming_uniform_(layer, layer_gain)

    def forward(self, x: Tensor) -> Tensor:
        """Images x (B, 3, 32, 32) to (B, outputs)."""
        for layer in self.children():
            x = layer(x)
        return x
