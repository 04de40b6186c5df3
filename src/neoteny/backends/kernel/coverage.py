"""Whether a compiled kernel trains a setting: the sparse ones, or else the dense ones. Both devices cover the same.

Before this: a setting of the suite (problem, network, methods); after it: `suite.configuration`, which chooses a
backend, and `backends.backend`, which makes it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from neoteny.backends.kernel.dense.terms import dense_options_of
from neoteny.backends.kernel.options import options_of
from neoteny.methods.method import Method
from neoteny.nets import MLP
from neoteny.problems import (
    LabelPermutedImages,
    LabelPermutedMNIST,
    PermutedMNIST,
    RandomLabelImages,
    RandomLabelMNIST,
    SlowlyChangingRegression,
)
from neoteny.problems.problem import Problem

_OF_IMAGES = (LabelPermutedImages, LabelPermutedMNIST, PermutedMNIST, RandomLabelImages, RandomLabelMNIST)
_MOST_RANDOM_BITS = 10  # of slowly-changing regression: up to here a plan holds a table of all inputs


def why_not_covered(
    problem: Problem, build: type[nn.Module], network: Mapping[str, Any], methods: Sequence[Method]
) -> str:
    """Why no kernel trains this setting, in a few words; "" if one does.

    Args:
        problem: what is learnt.
        build, network: the network's class and its options, but for the numbers of inputs and outputs.
        methods: an optimizer first.

    Example:
        >>> from neoteny.methods import L2, SGD, L2Init
        >>> why_not_covered(PermutedMNIST(), MLP, {"hidden": (100,)}, (SGD(0.01), L2(1e-4)))
        ''
        >>> why_not_covered(PermutedMNIST(), nn.Linear, {}, (SGD(0.01),))
        'Linear is not an MLP'
        >>> why_not_covered(PermutedMNIST(), MLP, {"hidden": (100,)}, (SGD(0.01), L2Init(1e-4)))
        ''
        >>> why_not_covered(PermutedMNIST(), MLP, {"hidden": (100,), "activation": "aid"}, (SGD(0.01),))
        'the activation AID(p=0.9) is not covered'
    """
    if type(problem) not in (*_OF_IMAGES, SlowlyChangingRegression):
        return f"the plans of {type(problem).__name__} are not covered"
    if isinstance(problem, SlowlyChangingRegression) and problem.bits - problem.slow_bits > _MOST_RANDOM_BITS:
        return f"more than {_MOST_RANDOM_BITS} random bits"
    if build is not MLP:
        return f"{build.__name__} is not an MLP"
    try:
        module = _template(math.prod(problem.input_shape), problem.outputs, tuple(sorted(network.items())))
    except (TypeError, ValueError) as error:  # the library says it again when it builds the network
        return f"the MLP cannot be built: {error}"
    if len(problem.input_shape) > 1 and not network.get("flatten"):
        return f"inputs of shape {tuple(problem.input_shape)} need an MLP with flatten=True"
    batch = batch_of(problem)
    if not why_not_sparse(module, methods, problem.loss, batch):
        return ""
    dense = dense_options_of(module, methods, problem.loss, batch)
    return dense if isinstance(dense, str) else ""


def why_not_sparse(module: nn.Module, methods: Sequence[Method], loss: str, batch: int) -> str:
    """Why the kernels for one example at a time do not train a learner; "" if they do."""
    found = options_of(module, methods, loss)
    if isinstance(found, str):
        return found
    return "" if batch == 1 else f"{batch} examples per update are not covered"


def batch_of(problem: Problem) -> int:
    """Examples per update."""
    return problem.batch_size if isinstance(problem, _OF_IMAGES) else 1


@functools.lru_cache(maxsize=256)
def _template(inputs: int, outputs: int, network: tuple[tuple[str, Any], ...]) -> MLP:
    """A network without numbers."""
    with torch.device("meta"):
        return MLP(inputs=inputs, outputs=outputs, **dict(network))
