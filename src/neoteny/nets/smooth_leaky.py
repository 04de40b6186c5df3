"""Smooth-Leaky: a leaky ReLU without a corner, with a fixed slope or one drawn for each element."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from neoteny.nets.own_draws import OwnDraws


class SmoothLeaky(nn.Module):
    r"""Leaky ReLU without a corner, steep enough on both sides of zero for every unit to keep learning.

    .. math::
        f(x) = \alpha x + (1 - \alpha) x \, \sigma(c x / p)

    with :math:`\sigma` the logistic function. Formula and defaults are from notes on the paper; not verified in it.

    Args:
        alpha: the slope far below zero, in [0, 1].
        c, p: c / p says how sharp the bend is; both above 0.

    Example:
        >>> SmoothLeaky()(torch.tensor([-5.0, -1.0, 1.0, 5.0]))
        tensor([-0.5011, -0.2430,  0.8570,  4.9989])
    """

    def __init__(self, alpha: float = 0.1, c: float = 5.0, p: float = 3.0) -> None:
        super().__init__()
        _check_share("SmoothLeaky", alpha=alpha)
        _check_positive("SmoothLeaky", c=c, p=p)
        self.alpha, self.c, self.p = float(alpha), float(c), float(p)

    def forward(self, x: Tensor) -> Tensor:
        """x of any shape to the same shape."""
        return _bend(x, self.alpha, self.c / self.p)

    def extra_repr(self) -> str:
        """What print shows between the brackets."""
        return f"alpha={self.alpha}, c={self.c}, p={self.p}"


class RandomizedSmoothLeaky(OwnDraws):
    r"""Smooth-Leaky whose slope below zero is drawn for each element in training.

    .. math::
        f(x) = \alpha x + (1 - \alpha) x \, \sigma(c x / p), \qquad
        \alpha = \mathrm{lower} + (\mathrm{upper} - \mathrm{lower}) u

    where u is `rng.uniform(seed, step, "smooth_leaky")` at row b (example) and column j (feature, all other axes
    flattened); in evaluation u is 1/2. Every forward pass in training mode takes one step. The notes on the paper that
    this follows do not say how the slope is drawn: the uniform law and its bounds are those of torch's RReLU.

    Args:
        lower, upper: the bounds of the slope, in [0, 1].
        c, p: c / p says how sharp the bend is; both above 0.

    Attributes:
        seed: int64 scalar, drawn with torch.randint at construction, so torch.manual_seed reproduces it.
        step: int64 scalar, the number of training passes so far.

    Example:
        >>> RandomizedSmoothLeaky(0.0, 0.2).eval()(torch.tensor([[-5.0, -1.0, 1.0, 5.0]]))
        tensor([[-0.5011, -0.2430,  0.8570,  4.9989]])
    """

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3, c: float = 5.0, p: float = 3.0) -> None:
        super().__init__("smooth_leaky")
        _check_share("RandomizedSmoothLeaky", lower=lower, upper=upper)
        if lower > upper:
            raise ValueError(f"RandomizedSmoothLeaky: lower must be at most upper; got {lower!r} and {upper!r}.")
        _check_positive("RandomizedSmoothLeaky", c=c, p=p)
        self.lower, self.upper, self.c, self.p = float(lower), float(upper), float(c), float(p)

    def forward(self, x: Tensor) -> Tensor:
        """x (*R, B, ...) to the same shape; R is () unless the buffers are stacked."""
        if not self.training:
            return _bend(x, (self.lower + self.upper) / 2, self.c / self.p)
        slope = self.lower + (self.upper - self.lower) * self.draw(x)
        return _bend(x, slope.to(x.dtype), self.c / self.p)

    def extra_repr(self) -> str:
        """What print shows between the brackets."""
        return f"lower={self.lower}, upper={self.upper}, c={self.c}, p={self.p}"


def _bend(x: Tensor, slope: float | Tensor, sharpness: float) -> Tensor:
    return x * (slope + (1.0 - slope) * torch.sigmoid(sharpness * x))


def _check_share(owner: str, **values: float) -> None:
    for name, value in values.items():
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{owner}: {name} must be a number in [0, 1]; got {value!r}.")


def _check_positive(owner: str, **values: float) -> None:
    for name, value in values.items():
        if not 0.0 < value < math.inf:
            raise ValueError(f"{owner}: {name} must be a number above 0; got {value!r}.")
