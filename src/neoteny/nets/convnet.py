"""ConvNet: the convolutional network of Continual ImageNet (the paper's Table 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from neoteny.draws.initial import Initial
from neoteny.nets.activations import (
    check_init,
    features_per_unit,
    gain,
    kaiming_uniform_,
    make_activation,
    units_for,
)


class ConvNet(nn.Module):
    """Three convolutions with pooling and three linear layers for images (B, 3, 32, 32).

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
        init: "default" for torch's own initial distribution, or "kaiming_uniform" (the gain of the activation, output
            layer 1, zero biases).
        activation: as for `MLP`; the paper's is "relu". "crelu" doubles the inputs of the next layer; "fourier" has
            half as many filters and units as are given.
        normalization: None, or "layer" for a layer norm before each activation; behind a convolution its mean and
            variance run over channels and positions, with a gain and an offset per channel (`nn.GroupNorm` with one
            group).
        pooling: "max" or "average".

    Example:
        >>> ConvNet().fc1.in_features
        512
        >>> ConvNet(filters=(8, 16, 32), activation="crelu").fc1.in_features
        256
    """

    runs_children_in_order: ClassVar[bool] = True
    fc1: nn.Linear
    fc2: nn.Linear

    def __init__(
        self,
        outputs: int = 2,
        pool_stride: int = 2,
        init: str = "default",
        filters: Sequence[int] = (32, 64, 128),
        units: int = 128,
        activation: str = "relu",
        normalization: str | None = None,
        pooling: str = "max",
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
        if normalization not in (None, "layer"):
            raise ValueError(f'ConvNet: normalization must be None or "layer", got {normalization!r}.')
        if pooling not in ("max", "average"):
            raise ValueError(f'ConvNet: pooling must be "max" or "average", got {pooling!r}.')
        check_init(init)
        super().__init__()
        hidden_gain, copies = gain(activation), features_per_unit(activation)
        pool = nn.MaxPool2d if pooling == "max" else nn.AvgPool2d
        side, channels = 32, 3
        for number, (width, kernel) in enumerate(zip(filters, (5, 3, 3), strict=True), start=1):
            count = units_for(activation, width)
            self.add_module(f"conv{number}", nn.Conv2d(channels, count, kernel))
            if normalization == "layer":
                self.add_module(f"norm{number}", nn.GroupNorm(1, count))
            self.add_module(f"act{number}", make_activation(activation))
            self.add_module(f"pool{number}", pool(2, pool_stride))
            side, channels = (side - kernel + 1 - 2) // pool_stride + 1, count * copies
        self.flatten = nn.Flatten()
        features = channels * side * side
        for number in (1, 2):
            count = units_for(activation, units)
            self.add_module(f"fc{number}", nn.Linear(features, count))
            if normalization == "layer":
                self.add_module(f"norm{number + 3}", nn.LayerNorm(count))
            self.add_module(f"act{number + 3}", make_activation(activation))
            features = count * copies
        self.out = nn.Linear(features, outputs)
        # What `attach` and `stack` draw new units from.
        self.initial_distributions: dict[str, Initial] = {}
        if init == "kaiming_uniform":
            for name, layer in self.named_children():
                if isinstance(layer, (nn.Linear, nn.Conv2d)):
                    layer_gain = 1.0 if layer is self.out else hidden_gain
                    self.initial_distributions[name] = kaiming_uniform_(layer, layer_gain)

    def forward(self, x: Tensor) -> Tensor:
        """Images x (B, 3, 32, 32) to (B, outputs)."""
        for layer in self.children():
            x = layer(x)
        return x
