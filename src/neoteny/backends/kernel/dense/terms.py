"""What the dense kernel covers: a learner's options as plain numbers, or the reason why the library has to train it.

Before this: a setting of the suite; a method says what it does by `Method.kernel_terms`. After it: `pack` and `run`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from neoteny.backends.kernel import options as sparse
from neoteny.backends.kernel.options import LOSSES
from neoteny.methods.declaration import KernelTerms, Number, PeriodicReset, SilenceReset, kernel_terms_of
from neoteny.methods.method import Method
from neoteny.nets import CReLU, SmoothLeaky
from neoteny.nets.activations import make_activation
from neoteny.units.utilities import UTILITIES

PAD = 8
"""Columns of a weight matrix are padded to a multiple of this with zeros, which stay zero."""
LEAKY, SMOOTH_LEAKY, CRELU = (len(sparse.ACTIVATIONS) + k for k in range(3))
"""Activations beyond `options.ACTIVATIONS`: leaky ReLU of any slope, Smooth-Leaky, CReLU."""
SGD, MOMENTUM, ADAM, UPGD = range(4)
OPTIMIZERS = ("sgd", "momentum", "adam", "upgd")
SCALES = ("corrected", "raw", "local")
ACTIVITY, GRADIENT, SILENCE = range(3)
SCORES = ("activity", "gradient")
LARGEST_BETA = 0.9999
"""Of Adam where weights are redrawn: what follows from the age of a weight is looked up in a table."""
UPDATE, NOISE, REPLACE, RESET, REINIT, CLIP, SLOW = range(7)
"""What happens at an update once the gradients are there; noise before the update is UPGD's own."""


@dataclass(frozen=True)
class DenseOptions:
    """One learner, without the hyperparameters that may differ between runs.

    Attributes:
        widths: inputs, hidden units of each layer, outputs.
        copies: features that a hidden unit gives: 2 with CReLU, else 1.
        activation: index into `options.ACTIVATIONS`, or one of those beyond.
        slope, sharpness: of leaky ReLU and Smooth-Leaky.
        norm: whether a layer norm comes before each activation; norm_eps: its epsilon.
        loss: index into `LOSSES`.
        batch: examples per update.
        optimizer: index into `OPTIMIZERS`.
        beta1, beta2, eps: of Adam; beta1 is also the decay rate of UPGD's average.
        factor, scale, protect: of UPGD; the second as index into `SCALES`.
        after: what happens after the update, in order.
        utility, compensate, count_layer: of continual backpropagation; a utility of 0 is none.
        reset_by: what units are reset by: `ACTIVITY`, `GRADIENT` or `SILENCE`.
        reset_period: of checks by the first two, or of recalibrations by the last; slow_period: of copies of the slow
            weights.
        first_threshold, longest: of `SelfNormalizedResets`.
        reinit_period, by_gradient, proportional, averages: of `SelectiveWeightReinit`; the last: whether it averages.
        spare_output: of `WeightClipping`.
        anchored, slow: whether there are initial weights and slow weights.
    """

    widths: tuple[int, ...]
    loss: int
    batch: int
    optimizer: int
    copies: int = 1
    activation: int = 0
    slope: float = 0.0
    sharpness: float = 0.0
    norm: bool = False
    norm_eps: float = 1e-5
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    factor: float = 1.0
    scale: int = 0
    protect: bool = True
    after: tuple[int, ...] = ()
    utility: int = 0
    compensate: bool = True
    count_layer: bool = False
    reset_by: int = ACTIVITY
    reset_period: int = 1
    first_threshold: int = 1
    longest: int = 0
    reinit_period: int = 1
    by_gradient: bool = True
    proportional: bool = True
    averages: bool = False
    spare_output: bool = False
    slow_period: int = 0
    anchored: bool = False
    slow: bool = False

    @property
    def hidden(self) -> int:
        """Hidden layers."""
        return len(self.widths) - 2

    @property
    def acts(self) -> tuple[int, ...]:
        """What happens at an update, in order."""
        return (*((NOISE,) if self.optimizer == UPGD else ()), UPDATE, *self.after)

    @property
    def width(self) -> int:
        """The most features of a layer, padded."""
        most = max(self.widths[0], self.copies * max(self.widths[1:]))
        return -(-most // PAD) * PAD

    @property
    def counts_weights(self) -> bool:
        """Whether weights have step counts of their own, since some are redrawn under Adam."""
        return REINIT in self.after and self.optimizer == ADAM

    @property
    def rewrites_units(self) -> bool:
        """Whether any method replaces or resets units."""
        return REPLACE in self.after or RESET in self.after


class DenseNumbers(NamedTuple):
    """The hyperparameters of n runs, each float64 (n,)."""

    step_size: np.ndarray
    momentum: np.ndarray
    l2: np.ndarray
    anchor: np.ndarray
    noise_std: np.ndarray
    replacement_rate: np.ndarray
    maturity_threshold: np.ndarray
    decay_rate: np.ndarray
    threshold: np.ndarray
    slow_decay: np.ndarray
    clip: np.ndarray
    reinit: np.ndarray
    reinit_decay: np.ndarray
    step_noise_std: np.ndarray
    weight_decay: np.ndarray


def dense_options_of(module: nn.Module, methods: Sequence[Method], loss: str, batch: int) -> DenseOptions | str:
    """The options of a learner, or why the dense kernel does not train it."""
    network = _network_options(module)
    if isinstance(network, str):
        return network
    if loss not in LOSSES:
        return f"the loss must be one of {', '.join(LOSSES)}; got {loss!r}"
    terms: list[KernelTerms] = []
    for method in methods:
        each = kernel_terms_of(method)
        if isinstance(each, str):
            return each
        terms.append(each)
    combined = _combine(terms)
    if isinstance(combined, str):
        return combined
    return DenseOptions(**network, **combined, loss=LOSSES.index(loss), batch=batch)


def dense_numbers_of(methods: Sequence[Method], runs: int) -> DenseNumbers:
    """The hyperparameters of every run of a covered learner; strengths of several terms of one kind add up."""
    terms = [each for each in map(kernel_terms_of, methods) if isinstance(each, KernelTerms)]

    def total(get: Callable[[KernelTerms], Any]) -> np.ndarray:
        found = np.zeros(runs)
        for each in terms:
            value = get(each)
            if value is not None:
                found = found + np.asarray(value, dtype=np.float64)
        return found

    return DenseNumbers(
        step_size=total(lambda each: each.step_size),
        momentum=total(lambda each: each.momentum),
        l2=total(lambda each: each.l2),
        anchor=total(lambda each: each.anchor),
        noise_std=total(lambda each: each.noise_std),
        replacement_rate=total(lambda each: each.replacement and each.replacement.rate),
        maturity_threshold=total(lambda each: each.replacement and each.replacement.maturity_threshold),
        decay_rate=total(lambda each: each.replacement and each.replacement.decay_rate),
        threshold=total(lambda each: each.reset and _limit(each.reset)),
        slow_decay=total(lambda each: each.slow and each.slow.decay),
        clip=total(lambda each: each.clip and each.clip.bound),
        reinit=total(lambda each: each.reinit and each.reinit.amount),
        reinit_decay=total(lambda each: each.reinit and each.reinit.decay_rate),
        step_noise_std=total(lambda each: each.utility_step and each.utility_step.noise_std),
        weight_decay=total(lambda each: each.utility_step.weight_decay if each.utility_step else each.weight_decay),
    )


def _limit(reset: PeriodicReset | SilenceReset) -> Number:
    """The number that decides over a reset."""
    return reset.rejection if isinstance(reset, SilenceReset) else reset.threshold


def _combine(terms: Sequence[KernelTerms]) -> dict[str, Any] | str:
    """What several methods do together, as fields of `DenseOptions`, or why no kernel does it."""
    if [number for number, each in enumerate(terms) if each.optimizer] != [0]:
        return "one optimizer must come first"
    first = terms[0]
    if first.optimizer not in OPTIMIZERS:
        return f"the optimizer {first.optimizer!r} is not covered"
    kinds = {"noise_std": NOISE, "replacement": REPLACE, "reset": RESET, "reinit": REINIT, "clip": CLIP, "slow": SLOW}
    after = tuple(kind for each in terms for name, kind in kinds.items() if getattr(each, name) is not None)
    if REINIT in after and first.optimizer == "upgd":
        return "redrawn weights under UPGD are not covered"
    if REINIT in after and first.optimizer == "adam" and max(first.betas) > LARGEST_BETA:
        return f"redrawn weights under Adam with betas above {LARGEST_BETA} are not covered"
    if REINIT in after and {REPLACE, RESET} & set(after):
        return "redrawn weights beside new units are not covered"
    twice = {
        NOISE: "noise is added",
        REPLACE: "units are replaced",
        RESET: "units are reset",
        REINIT: "weights are redrawn",
        CLIP: "weights are clipped",
        SLOW: "weights are averaged",
    }
    for kind, words in twice.items():
        if after.count(kind) > 1:
            return f"{words} twice"
    if sum(each.anchor is not None for each in terms) > 1:
        return "weights are pulled to initial ones twice"
    found: dict[str, Any] = {"optimizer": OPTIMIZERS.index(first.optimizer), "after": after}
    if first.optimizer == "adam":
        found |= {"beta1": first.betas[0], "beta2": first.betas[1], "eps": first.eps}
    for each in terms:
        if (how := each.utility_step) is not None:
            found |= {"beta1": how.decay_rate, "factor": how.factor, "scale": SCALES.index(how.scale)}
            found |= {"protect": how.protect}
        if (replacement := each.replacement) is not None:
            found["utility"] = UTILITIES[replacement.utility]
            found |= {"compensate": replacement.compensate, "count_layer": replacement.count == "layer"}
        if isinstance(each.reset, PeriodicReset):
            found |= {"reset_by": SCORES.index(each.reset.score), "reset_period": each.reset.period}
        elif each.reset is not None:
            found |= {"reset_by": SILENCE, "reset_period": each.reset.period}
            found |= {"first_threshold": each.reset.first_threshold, "longest": each.reset.longest}
        if (reinit := each.reinit) is not None:
            averages = isinstance(reinit.decay_rate, tuple) or reinit.decay_rate > 0.0
            found |= {"reinit_period": reinit.period, "by_gradient": reinit.utility == "gradient"}
            found |= {"proportional": reinit.rule == "proportional", "averages": averages}
        if each.clip is not None:
            found["spare_output"] = each.clip.spare_output
        if each.slow is not None:
            found |= {"slow": True, "slow_period": each.slow.period}
        if each.anchor is not None:
            found["anchored"] = True
    return found


def _network_options(module: nn.Module) -> dict[str, Any] | str:
    """The fields of `DenseOptions` that describe a network, or why the dense kernel does not compute it."""
    layers = sparse.layers_of(module)
    if isinstance(layers, str):
        return layers
    if "drop" in layers:
        return "dropout is not covered"
    linear = [*layers.get("fc", ()), module.out]
    found: dict[str, Any] = {"widths": (linear[0].in_features, *(layer.out_features for layer in linear))}
    for activation in layers.get("act", ())[:1]:
        known = _activation_options(activation)
        if known is None:
            return f"the activation {activation!r} is not covered"
        found |= known
    norms = layers.get("norm", ())
    if any(type(norm) is not nn.LayerNorm or not norm.elementwise_affine or norm.bias is None for norm in norms):
        return "the norms of the MLP are not layer norms with weights"
    if len({norm.eps for norm in norms}) > 1:
        return "the norms of the MLP differ"
    for norm in norms[:1]:
        found |= {"norm": True, "norm_eps": norm.eps}
    return found


def _activation_options(layer: nn.Module) -> dict[str, Any] | None:
    if type(layer) is CReLU:
        return {"activation": CRELU, "copies": 2}
    if type(layer) is SmoothLeaky:
        return {"activation": SMOOTH_LEAKY, "slope": layer.alpha, "sharpness": layer.c / layer.p}
    if type(layer) is nn.LeakyReLU:
        return {"activation": LEAKY, "slope": float(layer.negative_slope)}
    names = [name for name in sparse.ACTIVATIONS if repr(make_activation(name)) == repr(layer)]
    return {"activation": sparse.ACTIVATIONS.index(names[0])} if names else None
