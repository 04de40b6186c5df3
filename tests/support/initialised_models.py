"""Small networks initialised as the families of published models are, and what their laws are called."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Blocks(nn.Module):
    """Two hidden layers whose class draws its weights in a method, as in transformers and timm."""

    def __init__(self, std: float = 0.02) -> None:
        super().__init__()
        self.std = std
        self.first, self.second, self.head = nn.Linear(20, 96), nn.Linear(96, 64), nn.Linear(64, 4)
        self.norms = nn.ModuleList([nn.LayerNorm(20), nn.LayerNorm(96), nn.LayerNorm(64)])
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=self.std)
            nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.gelu(self.first(self.norms[0](x)))
        return self.head(nn.functional.gelu(self.second(x)))


def mlp(draw: Callable[[Tensor], object], *, zero_bias: bool = True, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """20-96-64-4, its weights drawn by `draw`."""
    net = nn.Sequential(nn.Linear(20, 96), act(), nn.Linear(96, 64), act(), nn.Linear(64, 4))
    for layer in net:
        if isinstance(layer, nn.Linear):
            draw(layer.weight)
            if zero_bias:
                nn.init.zeros_(layer.bias)
    return net


def convolutions() -> nn.Sequential:
    """Convolutions and batch norms as a ResNet draws them."""
    net = nn.Sequential(
        nn.Conv2d(3, 12, 3, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
        nn.Conv2d(12, 24, 3, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
        nn.Conv2d(24, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip
    for layer in net:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return net


def cut_lecun(weight: Tensor) -> None:
    """LeCun's normal as flax draws it: cut at two standard deviations, and as wide as before the cut."""
    std = weight.shape[1] ** -0.5 / 0.8796256610342398
    nn.init.trunc_normal_(weight, 0.0, std, -2.0 * std, 2.0 * std)


def scaled_by_fan_in(weight: Tensor) -> None:
    """T5's feed-forward layers: normal, 1 / sqrt(inputs)."""
    nn.init.normal_(weight, 0.0, weight.shape[1] ** -0.5)


FAMILIES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "torch": (lambda: mlp(lambda weight: None, zero_bias=False), "torch's own (reset_parameters)"),
    "ResNet": (convolutions, "normal, kaiming fan_out, gain sqrt(2)"),
    "BERT": (Blocks, "normal, standard deviation 0.02"),
    "squeezenet": (lambda: mlp(nn.init.kaiming_uniform_), "uniform, kaiming fan_in, gain sqrt(2)"),
    "ViT": (lambda: mlp(nn.init.xavier_uniform_, act=nn.GELU), "uniform, xavier, gain 1"),
    "xavier": (lambda: mlp(nn.init.xavier_normal_, act=nn.Tanh), "normal, xavier, gain 1"),
    "T5": (lambda: mlp(scaled_by_fan_in), "normal, lecun (fan_in, gain 1)"),
    "flax": (lambda: mlp(cut_lecun), "normal, cut at 2 standard deviations, lecun (fan_in, gain 1)"),
    "orthogonal": (lambda: mlp(lambda weight: nn.init.orthogonal_(weight, 2**0.5)), "orthogonal, gain sqrt(2)"),
}


def batch(model: nn.Module, size: int = 64) -> Tensor:
    """Inputs for any of these."""
    shape = (size, 3, 8, 8) if isinstance(next(model.children()), nn.Conv2d) else (size, 20)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))
