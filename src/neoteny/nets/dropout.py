"""Dropout whose masks belong to one run; see `own_draws`."""

from __future__ import annotations

import torch
from torch import Tensor

from neoteny.nets.own_draws import OwnDraws


class Dropout(OwnDraws):
    r"""Set each element to zero with probability p in training, and scale the others by 1 / (1 - p).

    .. math::
        y_{bj} = \begin{cases} x_{bj} / (1 - p) & u_{bj} > p \\ 0 & \text{else} \end{cases}

    where u is `rng.uniform(seed, step, "dropout")` at row b (example) and column j (feature, all other axes flattened).
    Every forward pass in training mode takes one step; evaluation is the identity and changes no state.

    Args:
        p: probability of zero, from 0 up to but not including 1.

    Attributes:
        seed: int64 scalar, drawn with torch.randint at construction, so torch.manual_seed reproduces it.
        step: int64 scalar, the number of training passes so far.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> layer = Dropout(0.5)
        >>> sorted(set(layer(torch.ones(8, 8)).flatten().tolist()))
        [0.0, 2.0]
        >>> torch.equal(layer.eval()(torch.ones(2, 3)), torch.ones(2, 3))
        True
    """

    def __init__(self, p: float) -> None:
        super().__init__("dropout")
        if not 0.0 <= p < 1.0:
            raise ValueError(f"Dropout: p must be at least 0 and below 1, got {p!r}.")
        self.p = float(p)

    def forward(self, x: Tensor) -> Tensor:
        """x (*R, B, ...) to the same shape; R is () unless the buffers are stacked."""
        if not self.training or self.p == 0.0:
            return x
        return torch.where(self.draw(x) > self.p, x * (1.0 / (1.0 - self.p)), 0.0)

    def extra_repr(self) -> str:
        """What print shows between the brackets."""
        return f"p={self.p}"
