"""What a kernel covers: a learner's options as plain numbers, or the reason why the library has to train it.

Before this: a setting of the suite (problem, network, methods); a method says what it does by `Method.kernel_terms`.
After it: `pack` and the kernels, which branch on these numbers alone.

Planning knows a network by its class and options, training by an instance. Both ask `options_of`, planning with a
network made for the purpose (`coverage`), so that they cannot disagree.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from neoteny.methods.declaration import KernelTerms, kernel_terms_of
from neoteny.methods.method import Method
from neoteny.nets import MLP
from neoteny.nets.activations import make_activation
from neoteny.nets.dropout import Dropout
from neoteny.nets.online_norm import OnlineNorm
from neoteny.units.utilities import UTILITIES

ACTIVATIONS = ("relu", "leaky_relu", "tanh", "sigmoid", "elu", "swish")
LOSSES = ("mse", "cross_entropy")
OPTIMIZERS = ("sgd", "momentum", "adam")
FOLD = 0.125
"""L2 under plain SGD is a lazy factor of each matrix; one below this is multiplied into the weights at once."""
_BEYOND = {
    "anchor": "a pull to initial weights is",
    "weight_decay": "decoupled weight decay is",
    "reset": "resets by a score are",
    "reinit": "redrawn weights are",
    "clip": "clipping is",
    "slow": "slow weights are",
}  # terms of the dense kernel


@dataclass(frozen=True)
class Options:
    """One learner, without its hyperparameters.

    Attributes:
        widths: inputs, hidden units of each layer, outputs.
        activation, loss, optimizer: indices into `ACTIVATIONS`, `LOSSES`, `OPTIMIZERS`.
        norm: whether `OnlineNorm` comes before each activation.
        forward_decay, backward_decay, norm_eps: of `OnlineNorm`.
        dropout: probability of zero, 0 for none.
        shrink: whether any method adds L2 to the gradients.
        noise: whether shrink and perturb adds noise after each update.
        noise_first: whether the noise comes before continual backpropagation, or after it.
        utility: the terms of the utility (`units.utilities`), or 0 without continual backpropagation.
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
    utility: int = 0
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
        return self.utility != 0

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


def options_of(module: nn.Module, methods: Sequence[Method], loss: str) -> Options | str:
    """The options of a learner, or why no kernel trains it."""
    network = _network_options(module)
    if isinstance(network, str):
        return network
    if loss not in LOSSES:
        return f"the loss must be one of {', '.join(LOSSES)}; got {loss!r}"
    terms = [kernel_terms_of(method) for method in methods]
    for each in terms:
        if isinstance(each, str):
            return each
    combined = _combine([each for each in terms if isinstance(each, KernelTerms)])
    if isinstance(combined, str):
        return combined
    return Options(**network, **combined, loss=LOSSES.index(loss))


def numbers_of(methods: Sequence[Method], runs: int) -> Numbers:
    """The hyperparameters of every run of a covered learner; strengths of several L2 terms add up."""

    def spread(value: Any, kind: type = float) -> np.ndarray:
        return np.broadcast_to(np.asarray(value, dtype=kind), (runs,)).copy()

    declared = [kernel_terms_of(method) for method in methods]
    terms = [each for each in declared if isinstance(each, KernelTerms)]
    zero = ("shrink", "noise_std", "replacement_rate", "decay_rate")
    found = {name: spread(0.0) for name in zero} | {"maturity_threshold": spread(0, int)}
    found |= {"step_size": spread(terms[0].step_size), "momentum": spread(terms[0].momentum)}
    for each in terms:
        if each.l2 is not None:
            found["shrink"] = found["shrink"] + spread(each.l2)
        if each.noise_std is not None:
            found["noise_std"] = spread(each.noise_std)
        if each.replacement is not None:
            found["replacement_rate"] = spread(each.replacement.rate)
            found["maturity_threshold"] = spread(each.replacement.maturity_threshold, int)
            found["decay_rate"] = spread(each.replacement.decay_rate)
    return Numbers(**found)


def _combine(terms: Sequence[KernelTerms]) -> dict[str, Any] | str:
    """What several methods do together, as fields of `Options`, or why no kernel does it."""
    optimizers = [number for number, each in enumerate(terms) if each.optimizer]
    noises = [number for number, each in enumerate(terms) if each.noise_std is not None]
    replacements = [number for number, each in enumerate(terms) if each.replacement is not None]
    if optimizers != [0]:
        return "one optimizer must come first"
    if len(noises) > 1:
        return "noise is added twice"
    if len(replacements) > 1:
        return "units are replaced twice"
    first = terms[0]
    if first.optimizer not in OPTIMIZERS:
        return f"the optimizer {first.optimizer!r} is not covered"
    for name, words in _BEYOND.items():
        if any(getattr(each, name) is not None for each in terms):
            return f"{words} not covered"
    found: dict[str, Any] = {
        "optimizer": OPTIMIZERS.index(first.optimizer),
        "shrink": any(each.l2 is not None for each in terms),
        "noise": bool(noises),
        "noise_first": not noises or not replacements or noises < replacements,
    }
    if first.optimizer == "adam":
        found |= {"beta1": first.betas[0], "beta2": first.betas[1], "eps": first.eps}
    for each in terms:
        if each.replacement is not None:
            found["utility"] = UTILITIES[each.replacement.utility]
            found |= {"compensate": each.replacement.compensate, "count_layer": each.replacement.count == "layer"}
    return found


def layers_of(module: nn.Module) -> dict[str, list[Any]] | str:
    """The hidden layers of an `MLP` by kind ("fc", "norm", "act", "drop"), or why they are not what it was built of."""
    if type(module) is not MLP:
        return f"{type(module).__name__} is not an MLP"
    children = {name: layer for name, layer in module.named_children() if name != "flatten"}
    hidden = sum(name.startswith("fc") for name in children)
    parts = [part for part in ("fc", "norm", "act", "drop") if f"{part}1" in children]
    if list(children) != [*(f"{part}{number}" for number in range(1, hidden + 1) for part in parts), "out"]:
        return f"the layers of the MLP are not its own: {', '.join(children)}"
    of_part: dict[str, list[Any]] = {
        part: [children[f"{part}{number}"] for number in range(1, hidden + 1)] for part in parts
    }
    linear = [*of_part.get("fc", ()), module.out]
    if any(type(layer) is not nn.Linear or layer.bias is None for layer in linear):
        return "a layer of the MLP is not a Linear with a bias"
    if len({repr(layer) for layer in of_part.get("act", ())}) > 1:
        return "the activations of the MLP differ"
    return of_part


def _network_options(module: nn.Module) -> dict[str, Any] | str:
    """The fields of `Options` that describe a network, or why no kernel computes it."""
    of_part = layers_of(module)
    if isinstance(of_part, str):
        return of_part
    linear = [*of_part.get("fc", ()), module.out]
    found: dict[str, Any] = {"activation": 0}
    found["widths"] = (linear[0].in_features, *(layer.out_features for layer in linear))
    for activation in of_part.get("act", ())[:1]:
        known = [name for name in ACTIVATIONS if repr(make_activation(name)) == repr(activation)]
        if not known:
            return f"the activation {activation!r} is not covered"
        found["activation"] = ACTIVATIONS.index(known[0])
    norms = {_norm_options(layer) for layer in of_part.get("norm", ())}
    if len(norms) > 1 or None in norms:
        return "the norms of the MLP differ, or are not OnlineNorm with scaling and weights"
    for norm in norms:
        found |= {"norm": True, **dict(norm or ())}
    drops = {layer.p if type(layer) is Dropout else None for layer in of_part.get("drop", ())}
    if len(drops) > 1 or None in drops:
        return "the dropout layers of the MLP differ, or are not neoteny's"
    for probability in drops:
        found["dropout"] = probability
    return found


def _norm_options(layer: nn.Module) -> tuple[tuple[str, float], ...] | None:
    """The fields of `Options` that describe a norm; None if it is of another kind."""
    if type(layer) is not OnlineNorm or not layer.layer_scaling or layer.weight is None:
        return None
    return (
        ("forward_decay", layer.forward_decay),
        ("backward_decay", layer.backward_decay),
        ("norm_eps", layer.eps),
    )


def weight_count(widths: Sequence[int]) -> int:
    """Weights of all layers, without biases."""
    return sum(math.prod(pair) for pair in itertools.pairwise(widths))
