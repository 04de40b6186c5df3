"""MLP: the fully connected network of permuted MNIST and of slowly-changing regression."""

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
from neoteny.nets.dropout import Dropout
from neoteny.nets.online_norm import OnlineNorm


class MLP(nn.Module):
    """Fully connected layers with the paper's initial weights.

    Each hidden layer is a Linear `fc1`, `fc2`, ..., then `norm1` (if any), the activation `act1` and `drop1` (if any);
    the output layer is the Linear `out`. No hidden layer at all gives the linear baseline.

    With `init="kaiming_uniform"` weights are uniform within gain * sqrt(3 / inputs) and biases zero. Hidden layers use
    the gain of their activation: torch's for ReLU, leaky ReLU, tanh and sigmoid, sqrt(2) for ELU and Swish (as the
    paper); the output layer, which is linear, has gain 1.

    Args:
        inputs: number of input features.
        hidden: number of units of each hidden layer; with "fourier" the number of its features, two per unit.
        outputs: number of outputs.
        activation: "relu", "leaky_relu" (slope 0.01), "tanh", "sigmoid", "elu", "swish", "crelu" (doubles the inputs of
            the next layer), "fourier", "aid", "smooth_leaky" or "randomized_smooth_leaky", with options as in
            "aid(p=0.99)"; see `neoteny.nets.activations.make_activation`.
        dropout: probability with which a hidden unit's activation is set to zero in training.
        normalization: None, "layer" for `nn.LayerNorm` or "online" for `OnlineNorm` before each activation.
        init: "kaiming_uniform"; "lecun_uniform", the same with gain 1 in every layer; or "default" for torch's own
            initial distribution.
        forward_decay, backward_decay: the decay rates of `OnlineNorm`; without it they have no effect.
        flatten: first make each input one row of numbers, for images (B, channels, height, width).

    Example:
        >>> net = MLP(784, [100, 100], 10)
        >>> [name for name, _ in net.named_children()]
        ['fc1', 'act1', 'fc2', 'act2', 'out']
    """

    runs_children_in_order: ClassVar[bool] = True

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        activation: str = "relu",
        dropout: float = 0.0,
        normalization: str | None = None,
        init: str = "kaiming_uniform",
        forward_decay: float = 0.999,
        backward_decay: float = 0.99,
        flatten: bool = False,
    ) -> None:
        widths = [inputs, *hidden, outputs]
        if any(not isinstance(width, int) or width < 1 for width in widths):
            raise ValueError(f"MLP: inputs, hidden and outputs must be whole numbers of at least 1, got {widths}.")
        if normalization not in (None, "layer", "online"):
            raise ValueError(f'MLP: normalization must be None, "layer" or "online", got {normalization!r}.')
        check_init(init, ("kaiming_uniform", "lecun_uniform", "default"))
        super().__init__()
        hidden_gain = gain(activation)
        if flatten:
            self.flatten = nn.Flatten()
        features = inputs
        for number, width in enumerate(hidden, start=1):
            units = units_for(activation, width)
            self.add_module(f"fc{number}", nn.Linear(features, units))
            if normalization == "layer":
                self.add_module(f"norm{number}", nn.LayerNorm(units))
            elif normalization == "online":
                self.add_module(f"norm{number}", OnlineNorm(units, forward_decay, backward_decay))
            self.add_module(f"act{number}", make_activation(activation))
            if dropout != 0.0:
                self.add_module(f"drop{number}", Dropout(dropout))
            features = units * features_per_unit(activation)
        self.out = nn.Linear(features, outputs)
        # What `attach` and `stack` draw new units from.
        self.initial_distributions: dict[str, Initial] = {}
        if init != "default":
            for name, layer in self.named_children():
                if isinstance(layer, nn.Linear):
                    layer_gain = hidden_gain if init == "kaiming_uniform" and layer is not self.out else 1.0
                    self.initial_distributions[name] = kaiming_uniform_(layer, layer_gain)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, inputs), or (B, ...) with `flatten`, to (B, outputs)."""
        for layer in self.children():
            x = layer(x)
        return x
