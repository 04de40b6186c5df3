"""AID, activation by interval-wise dropout: each side of zero is dropped with a probability of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from neoteny.nets.own_draws import OwnDraws


class AID(OwnDraws):
    r"""ReLU that in training now and then lets the negative part pass instead of the positive one.

    .. math::
        \text{training:} \quad y = \begin{cases} \max(x, 0) & u < p \\ \min(x, 0) & \text{else} \end{cases}
        \qquad
        \text{evaluation:} \quad y = \begin{cases} p x & x \ge 0 \\ (1 - p) x & x < 0 \end{cases}

    where u is `rng.uniform(seed, step, "aid")` at row b (example) and column j (feature, all other axes flattened). In
    training :math:`E[y^2] = p x_+^2 + (1 - p) x_-^2`, half of :math:`E[x^2]` for a symmetric x with any p. p = 1 is
    ReLU and p = 0.5 is linear in evaluation. Every forward pass in training mode takes one step; evaluation changes no
    state. The authors pool by averages instead of maxima (`ConvNet(pooling="average")`).

    Args:
        p: probability of the positive part, in [0, 1]. The authors' choices: permuted MNIST 0.99, random labels 0.9,
            CIFAR-10 0.9, CIFAR-100 0.7, reinforcement learning 0.99 to 0.999.

    Attributes:
        seed: int64 scalar, drawn with torch.randint at construction, so torch.manual_seed reproduces it.
        step: int64 scalar, the number of training passes so far.

    Example:
        >>> AID(0.9).eval()(torch.tensor([[-2.0, -0.5, 1.0, 3.0]]))
        tensor([[-0.2000, -0.0500,  0.9000,  2.7000]])
    """

    def __init__(self, p: float = 0.9) -> None:
        super().__init__("aid")
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"AID: p must be a probability, from 0 to 1; got {p!r}.")
        self.p = float(p)

    def forward(self, x: Tensor) -> Tensor:
        """x (*R, B, ...) to the same shape; R is () unless the buffers are stacked."""
        if self.training:
            return torch.where(self.draw(x) < self.p, torch.relu(x), -torch.relu(-x))
        return torch.where(x < 0.0, x * (1.0 - self.p), x * self.p)

    def extra_repr(self) -> str:
        """What print shows between the brackets."""
        return f"p={self.p}"
