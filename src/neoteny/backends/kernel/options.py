"""What a kernel covers: the options of a learner as plain numbers, or the reason why the library has to train it.

Before this: a setting of the engine (problem, network, methods). After it: `packing` and the kernels, which branch on
these numbers alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from neoteny.methods import L2, SGD, Adam, ContinualBackprop, ShrinkAndPerturb
from neoteny.methods.continual_backprop import UTILITIES
from neoteny.methods.method import Method
from neoteny.nets import MLP
from neoteny.problems import PermutedMNIST, SlowlyChangingRegression
from neoteny.problems.problem import Problem

ACTIVATIONS = ("relu", "leaky_relu", "tanh", "sigmoid", "elu", "swish")
LOSSES = ("mse", "cross_entropy")
OPTIMIZERS = ("sgd", "momentum", "adam")
NO_REPLACEMENT = -1
FOLD = 0.125
"""L2 under plain SGD is a lazy factor of each matrix; one below this is multiplied into the weights at once."""
_MOST_RANDOM_BITS = 10  # of slowly-changing regression: up to here a plan holds a table of all inputs


@dataclass(frozen=True)
class Specification:
    """One learner, whatever its numbers.

    Attributes:
        widths: inputs, hidden units of each layer, outputs.
        activation, loss, optimizer: indices into `ACTIVATIONS`, `LOSSES`, `OPTIMIZERS`.
        norm: whether `OnlineNorm` comes before each activation.
        forward_decay, backward_decay, norm_eps: of `OnlineNorm`.
        dropout: probability of zero, 0 for none.
        shrink: whether any method adds L2 to the gradients.
        noise: whether shrink and perturb adds noise after each update.
        noise_first: whether the noise comes before continual backpropagation, or after it.
        utility: index into `UTILITIES`, or -1 without continual backpropagation.
        compensate: see `ContinualBackprop`.
        count_layer: whether the number of replacements follows the layer's size (`count="layer"`).
        beta1, beta2, eps: of Adam.
    """

    widths: tuple[int, ...]
    activation: int
    loss: int
    optimizer: int
    norm: bool = False
    forward_decay: float = 0.999
    backward_decay: float = 0.99
    norm_eps: float = 1e-5
    dropout: float = 0.0
    shrink: bool = False
    noise: bool = False
    noise_first: bool = True
    utility: int = NO_REPLACEMENT
    compensate: bool = True
    count_layer: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    @property
    def layers(self) -> int:
        """Linear layers, the output layer included."""
        return len(self.widths) - 1

    @property
    def hidden(self) -> int:
        """Hidden layers."""
        return len(self.widths) - 2

    @property
    def replaces(self) -> bool:
        """Whether units are replaced."""
        return self.utility != NO_REPLACEMENT

    @property
    def dense(self) -> bool:
        """Whether every weight changes at every update, so that no row can be passed over."""
        return self.noise or OPTIMIZERS[self.optimizer] != "sgd"


@dataclass(frozen=True)
class Numbers:
    """The hyperparameters of n runs, each float64 (n,) (`maturity_threshold` int64)."""

    step_size: np.ndarray
    momentum: np.ndarray
    shrink: np.ndarray
    noise_std: np.ndarray
    replacement_rate: np.ndarray
    maturity_threshold: np.ndarray
    decay_rate: np.ndarray


def why_not(problem: Problem, build: type[nn.Module], methods: Sequence[Method]) -> str:
    """Why no kernel covers these, in a few words; "" if one does.

    Example:
        >>> why_not(PermutedMNIST(), MLP, (SGD(0.01), L2(1e-4)))
        ''
        >>> why_not(PermutedMNIST(), nn.Linear, (SGD(0.01),))
        'Linear is not an MLP'
    """
    if type(problem) not in (PermutedMNIST, SlowlyChangingRegression):
        return f"the plans of {type(problem).__name__} are not covered"
    if isinstance(problem, SlowlyChangingRegression) and problem.bits - problem.slow_bits > _MOST_RANDOM_BITS:
        return f"more than {_MOST_RANDOM_BITS} random bits"
    return covers(build, methods)


def covers(build: type[nn.Module], methods: Sequence[Method]) -> str:
    """As `why_not`, whatever the problem."""
    if build is not MLP:
        return f"{build.__name__} is not an MLP"
    kinds = [type(method) for method in methods]
    for kind in kinds:
        if kind not in (SGD, Adam, L2, ShrinkAndPerturb, ContinualBackprop):
            return f"{kind.__name__} is not covered"
    for kind in (ShrinkAndPerturb, ContinualBackprop):
        if kinds.count(kind) > 1:
            return f"{kind.__name__} twice"
    return ""


def specify(module: MLP, methods: Sequence[Method], loss: str) -> Specification:
    """The specification of a covered learner."""
    linear = [layer for layer in module.children() if isinstance(layer, nn.Linear)]
    found: dict[str, Any] = {"widths": (linear[0].in_features, *(layer.out_features for layer in linear))}
    found["activation"] = ACTIVATIONS.index(_activation(module))
    found["loss"] = LOSSES.index(loss)
    norm, drop = getattr(module, "norm1", None), getattr(module, "drop1", None)
    if norm is not None:
        found |= {"norm": True, "forward_decay": norm.forward_decay, "backward_decay": norm.backward_decay}
        found["norm_eps"] = norm.eps
    if drop is not None:
        found["dropout"] = drop.p
    kinds = [type(method) for method in methods]
    for method in methods:
        if isinstance(method, SGD):
            found["optimizer"] = OPTIMIZERS.index("sgd" if method.momentum == 0.0 else "momentum")
        elif isinstance(method, Adam):
            found |= {"optimizer": OPTIMIZERS.index("adam"), "eps": method.eps}
            found["beta1"], found["beta2"] = method.betas
        elif isinstance(method, L2):
            found["shrink"] = True
        elif isinstance(method, ShrinkAndPerturb):
            found |= {"shrink": True, "noise": True}
            later = kinds[kinds.index(ShrinkAndPerturb) :]
            found["noise_first"] = ContinualBackprop not in kinds or ContinualBackprop in later
        elif isinstance(method, ContinualBackprop):
            found |= {"utility": UTILITIES.index(method.utility), "compensate": method.compensate}
            found["count_layer"] = method.count == "layer"
    return Specification(**found)


def numbers_of(methods: Sequence[Method], runs: int) -> Numbers:
    """The hyperparameters of every run; strengths of several L2 terms add up."""

    def spread(value: Any, kind: type = float) -> np.ndarray:
        return np.broadcast_to(np.asarray(value, dtype=kind), (runs,)).copy()

    found: dict[str, np.ndarray] = {"step_size": spread(methods[0].hyperparameters()["step_size"])}
    zero = ("momentum", "shrink", "noise_std", "replacement_rate", "decay_rate")
    found |= {name: spread(0.0) for name in zero} | {"maturity_threshold": spread(0, int)}
    for method in methods:
        if isinstance(method, SGD):
            found["momentum"] = spread(method.momentum)
        elif isinstance(method, (L2, ShrinkAndPerturb)):
            found["shrink"] = found["shrink"] + spread(method.strength)
        if isinstance(method, ShrinkAndPerturb):
            found["noise_std"] = spread(method.noise_std)
        elif isinstance(method, ContinualBackprop):
            found["replacement_rate"] = spread(method.replacement_rate)
            found["maturity_threshold"] = spread(method.maturity_threshold, int)
            found["decay_rate"] = spread(method.decay_rate)
    return Numbers(**found)


def _activation(module: MLP) -> str:
    from neoteny.nets.activations import make_activation

    layer = getattr(module, "act1", None)
    if layer is None:
        return ACTIVATIONS[0]
    return next(name for name in ACTIVATIONS if type(make_activation(name)) is type(layer))


def weight_count(widths: Sequence[int]) -> int:
    """Weights of all layers, without biases."""
    return sum(math.prod(pair) for pair in itertools.pairwise(widths))
