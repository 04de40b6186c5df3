"""Activation functions that give two numbers for each one: CReLU and deep Fourier features.

The layer behind them has twice as many inputs as the layer before has units. Both numbers belong to one unit: tracing
finds them as two columns per unit, and a reset rewrites both.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Paired(nn.Module):
    """Two functions of every element, the results side by side: first all of the one, then all of the other.

    Args:
        dim: the axis of the features, which doubles: 1 for rows (B, F) and images (B, C, H, W), -1 where features come
            last (B, T, F).
    """

    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        if not isinstance(dim, int) or dim == 0:
            raise ValueError(
                f"{type(self).__name__}: dim must be the axis of the features, 1 or -1, and not that of the examples; "
                f"got {dim!r}."
            )
        self.dim = dim

    def extra_repr(self) -> str:
        """What print shows between the brackets."""
        return f"dim={self.dim}"

    def _join(self, x: Tensor, one: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor]) -> Tensor:
        if not -x.dim() < self.dim < x.dim():
            raise ValueError(
                f"{type(self).__name__}(dim={self.dim}): x must have an axis of examples and axis {self.dim} beside "
                f"it; got {tuple(x.shape)}."
            )
        return torch.cat([one(x), other(x)], self.dim)


class CReLU(Paired):
    r"""Concatenated ReLU: the positive and the negative part of every unit, so that no unit is ever silent.

    .. math::
        y = [\max(z, 0),\ \max(-z, 0)]

    The next layer has twice the inputs. For as many parameters as with ReLU, cut the widths by 0.09 (MLP 100-100), 0.27
    (a small convolutional network) or 0.31 (the network of 5+1 CIFAR).

    Args:
        dim: the axis of the features, which doubles: 1 for rows (B, F) and images (B, C, H, W), -1 where features come
            last (B, T, F).

    Example:
        >>> CReLU()(torch.tensor([[2.0, -3.0]]))
        tensor([[2., 0., 0., 3.]])

    References:
        Abbas et al., "Loss of Plasticity in Continual Deep Reinforcement Learning", 2023.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x (..., F, ...) to (..., 2 F, ...)."""
        return self._join(x, torch.relu, lambda each: torch.relu(-each))


class DeepFourier(Paired):
    r"""Deep Fourier features: sine and cosine of every unit, of which one is always steep.

    .. math::
        y = [\sin z,\ \cos z]

    Use half as many units, so that the layer behind keeps its number of inputs (`MLP(activation="fourier")` does it).
    Since the squares of a pair sum to 1 no unit can be dead. The authors combine it with L2 or spectral regularisation.

    Args:
        dim: the axis of the features, which doubles: 1 for rows (B, F) and images (B, C, H, W), -1 where features come
            last (B, T, F).

    Example:
        >>> DeepFourier()(torch.zeros(1, 2))
        tensor([[0., 0., 1., 1.]])

    References:
        Lewandowski et al., "Plastic Learning with Deep Fourier Features", 2024.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x (..., F, ...) to (..., 2 F, ...)."""
        return self._join(x, torch.sin, torch.cos)
