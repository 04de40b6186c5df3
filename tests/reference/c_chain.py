"""Naive C-CHAIN (Tang et al. 2025): keep outputs on other data from moving while the network learns from a batch.

    loss + c D(f_old, f)   on a batch of its own

f_old is the network as it was `lag` updates ago (at first, the initial network) and is not differentiated. The batch is
the one of `age` updates ago; before there is one, the term is 0.

    "mse"            D = mean over examples and outputs of (f - f_old)^2
    "cross_entropy"  D = mean over examples of -sum softmax(f_old) log softmax(f)

c is fixed for the first `warmup` updates. Then, with beta, it is beta mean|loss| / (mean D + 1e-8), at least `minimum`,
with means over the last `window` updates that had a term, this one not included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from . import mlp
from .cbp import Optimizer
from .learner import BIAS, WEIGHT, Learner, copied

Distance = Literal["mse", "cross_entropy"]


def softmax(values: np.ndarray) -> np.ndarray:
    """(B, K) along the last axis."""
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def distance(old: np.ndarray, new: np.ndarray, kind: Distance) -> tuple[float, np.ndarray]:
    """D and its gradient by the new outputs (B, K)."""
    if kind == "mse":
        difference = new - old
        return float((difference**2).mean()), 2.0 * difference / difference.size
    p, q = softmax(old), softmax(new)
    total = 0.0
    for example, output in np.ndindex(p.shape):
        total -= p[example, output] * np.log(q[example, output])
    return float(total) / len(p), (q - p) / len(p)


def coefficient(losses: Sequence[float], distances: Sequence[float], beta: float, minimum: float = 0.0) -> float:
    """c, such that c mean D = beta mean |loss|."""
    size = sum(abs(value) for value in losses) / len(losses)
    return max(minimum, beta * size / (sum(distances) / len(distances) + 1e-8))


class NaiveCChain(Learner):
    """A learner with the term in its loss.

    Attributes:
        coefficients: c of every update that had a term.
    """

    def __init__(
        self,
        layers: mlp.Layers,
        activations: str | Sequence[str],
        optimizer: Optimizer,
        *,
        fixed: float,
        kind: Distance,
        lag: int = 1,
        age: int = 2,
        beta: float | None = None,
        window: int = 10**9,
        warmup: int = 0,
        minimum: float = 0.0,
        reset_at_boundary: bool = False,
    ) -> None:
        super().__init__(layers, activations, optimizer)
        self.kind: Distance = kind
        self.fixed, self.lag, self.age = fixed, lag, age
        self.beta, self.window, self.warmup, self.minimum = beta, window, warmup, minimum
        self.reset_at_boundary = reset_at_boundary
        self.networks: list[mlp.Layers] = []  # before every update so far
        self.batches: list[np.ndarray] = []
        self.losses: list[float] = []
        self.distances: list[float] = []
        self.coefficients: list[float] = []

    def task_boundary(self) -> None:
        """Forget the running means."""
        if self.reset_at_boundary:
            self.losses, self.distances = [], []

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        """One update; returns the loss from before it, without the term."""
        self.updates += 1
        loss, _, gradients = self.differentiate(x, target)
        self.networks.append(copied(self.layers))
        self.batches.append(np.array(x))
        if len(self.batches) > self.age:
            c = self.fixed
            if self.beta is not None and self.updates > self.warmup and self.losses:
                c = coefficient(self.losses[-self.window :], self.distances[-self.window :], self.beta, self.minimum)
            self.coefficients.append(c)
            reference = self.batches[-1 - self.age]
            old_layers = self.networks[max(0, len(self.networks) - 1 - self.lag)]
            old = mlp.forward(old_layers, self.activations, reference)[1][-1]
            pre_activations, values = mlp.forward(self.layers, self.activations, reference)
            d, slope = distance(old, values[-1], self.kind)
            more = mlp.backward(self.layers, self.activations, pre_activations, values, c * slope)
            for found, added in zip(gradients, more, strict=True):
                for part in (WEIGHT, BIAS):
                    found[part][...] += added[part]
            self.losses.append(loss)
            self.distances.append(d)
        self.optimizer.update(self.layers, gradients)
        return loss
