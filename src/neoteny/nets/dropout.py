"""Dropout whose masks belong to one run: counter-based draws instead of torch's shared generator.

torch's own dropout draws from a generator that all runs share, so a network inside a stack would see other masks
than alone. Here a mask follows from the layer's own `seed` and `step`, both of which are in its state dict: a resumed
run goes on with the mask that it would have drawn next.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from neoteny.draws import rng


class Dropout(nn.Module):
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

    seed: Tensor
    step: Tensor

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ValueError(f"Dropout: p must be at least 0 and below 1, got {p!r}.")
        self.p = float(p)
        self.register_buffer("seed", torch.randint(0, 2**63 - 1, (), dtype=torch.int64))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """x (*R, B, ...) to the same shape; R is () unless the buffers are stacked."""
        if not self.training or self.p == 0.0:
            return x
        runs = self.seed.dim()
        if x.dim() < runs + 2:
            raise ValueError(f"Dropout: x must have shape (batch, features, ...), got {tuple(x.shape)}.")
        rows = torch.arange(x.shape[runs], device=x.device)
        features = x.shape[runs + 1 :].numel()
        draws = rng.uniform(self.seed.unsqueeze(-1), self.step.unsqueeze(-1), "dropout", rows, features)
        self.step.add_(1)
        return torch.where(draws.reshape(x.shape) > self.p, x * (1.0 / (1.0 - self.p)), 0.0)

    def extra_repr(self) -> str:
        """What print shows between the brackets."""
        return f"p={self.p}"
