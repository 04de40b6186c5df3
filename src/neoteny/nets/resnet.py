"""ResNet: residual networks for images of 32 by 32, of 18 layers or any other depth and width."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from neoteny.draws.initial import Initial
from neoteny.nets.activations import check_init

NARROW = (16, 32, 64, 128)
"""The widths of Ash and Adams' ResNet-18."""


class ResNet(nn.Module):
    """A residual network for small images: 3x3 stem, stages of basic blocks, mean over positions, linear output.

    The form for images of 32 by 32: the stem has stride 1 and no pooling behind it; the first block of every stage but
    the first halves the sides. By default it is the ResNet-18 of class-incremental CIFAR-100 (Dohare et al. 2024):
    convolutions with biases, Kaiming-normal weights (fan in, gain sqrt(2), and 1 for the output layer) and zero biases.
    Ash and Adams' narrow ResNet-18 (2020) is `ResNet(widths=NARROW, bias=False, init="default")`; that its convolutions
    have no biases is from memory of their code, and not verified.

    Batch norms keep running statistics, a part of each run's state: in a stack every run has its own.

    The hidden units are the channels between the two convolutions of a block. Channels of the residual stream belong to
    several layers at once, so methods that replace units leave them alone.

    Args:
        outputs: number of outputs.
        widths: channels of each stage.
        blocks: basic blocks (two convolutions and a shortcut) of each stage.
        bias: whether convolutions have biases.
        init: "kaiming_normal", or "default" for torch's own initial distribution.
        channels: of the images.

    Example:
        >>> sum(parameter.numel() for parameter in ResNet(widths=NARROW, bias=False, outputs=10).parameters())
        701466
    """

    def __init__(
        self,
        outputs: int = 100,
        widths: Sequence[int] = (64, 128, 256, 512),
        blocks: Sequence[int] = (2, 2, 2, 2),
        bias: bool = True,
        init: str = "kaiming_normal",
        channels: int = 3,
    ) -> None:
        if any(isinstance(count, bool) or not isinstance(count, int) or count < 1 for count in (outputs, channels)):
            raise ValueError(
                f"ResNet: outputs and channels must be whole numbers of at least 1; got {outputs!r}, {channels!r}."
            )
        for name, values in (("widths", widths), ("blocks", blocks)):
            if not _are_counts(values):
                raise ValueError(f"ResNet: {name} must be whole numbers of at least 1, one per stage; got {values!r}.")
        if len(widths) != len(blocks):
            raise ValueError(f"ResNet: widths and blocks must have one number per stage; got {widths!r}, {blocks!r}.")
        if not isinstance(bias, bool):
            raise ValueError(f"ResNet: bias must be True or False; got {bias!r}.")
        check_init(init, ("kaiming_normal", "default"))
        super().__init__()
        self.conv = nn.Conv2d(channels, widths[0], 3, padding=1, bias=bias)
        self.norm = nn.BatchNorm2d(widths[0])
        self.act = nn.ReLU()
        stages, inputs = [], widths[0]
        for number, (width, count) in enumerate(zip(widths, blocks, strict=True)):
            made = []
            for place in range(count):
                made.append(Block(inputs, width, 2 if number > 0 and place == 0 else 1, bias))
                inputs = width
            stages.append(nn.Sequential(*made))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.out = nn.Linear(inputs, outputs)
        # What `attach` and `stack` draw new units and whole layers from.
        self.initial_distributions: dict[str, Initial] = {}
        if init == "kaiming_normal":
            for name, layer in self.named_modules():
                if isinstance(layer, (nn.Conv2d, nn.Linear)):
                    nonlinearity = "linear" if layer is self.out else "relu"
                    nn.init.kaiming_normal_(layer.weight, nonlinearity=nonlinearity)
                    if layer.bias is not None:
                        nn.init.zeros_(layer.bias)
                    self.initial_distributions[name] = Initial("kaiming_normal", nonlinearity=nonlinearity)

    def forward(self, x: Tensor) -> Tensor:
        """Images x (B, channels, height, width) to (B, outputs)."""
        x = self.act(self.norm(self.conv(x)))
        return self.out(self.flatten(self.pool(self.stages(x))))


class Block(nn.Module):
    """Two 3x3 convolutions with batch norm beside a shortcut, which is a 1x1 convolution where shapes change."""

    def __init__(self, inputs: int, width: int, stride: int, bias: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=bias)
        self.norm1 = nn.BatchNorm2d(width)
        self.act1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=bias)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != width:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=bias), nn.BatchNorm2d(width))
        self.act2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """x (B, inputs, height, width) to (B, width, height / stride, width / stride)."""
        hidden = self.act1(self.norm1(self.conv1(x)))
        return self.act2(self.norm2(self.conv2(hidden)) + self.shortcut(x))


def _are_counts(values: object) -> bool:
    """Whether these are some whole numbers of at least 1."""
    if not isinstance(values, (list, tuple)) or not values:
        return False
    return all(isinstance(value, int) and not isinstance(value, bool) and value >= 1 for value in values)
