"""Which distributions a weight may have been drawn from: normal, cut normal or uniform, each with its spread.

`fit` judges one weight by itself. Three things must agree with a family: no weight outside its support, the distance
between the weights and the family (Kolmogorov and Smirnov's), and a likelihood close to the best family's. A large
weight leaves one family; a small one leaves several, and `units/laws.py` lets the other layers decide.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

NORMAL, UNIFORM, CUT_AT_2, CUT_AT_3 = "normal", "uniform", "cut at 2", "cut at 3"
CUTS = {CUT_AT_2: 2.0, CUT_AT_3: 3.0}
"""Where a normal distribution is cut, in standard deviations."""

MOST_WEIGHTS = 2**15
"""Weights looked at, of a large tensor: enough for a spread to half a per cent, in a hundredth of a second."""
_MOST_HALF = 2**14  # half precision rounds to steps that a larger sample would see
_MOST_DISTANCE = 2.3
_MOST_DISTANCE_KNOWN = 2.7
_LEAST_LIKELIHOOD = 7.0
_ROUNDING = {torch.float16: 1e-3, torch.bfloat16: 8e-3}


@dataclass(frozen=True)
class Fit:
    """What was measured on one weight.

    Attributes:
        spread: root of the mean square.
        families: the families it may come from, with their logarithmic likelihoods; empty if it fits none.
        weights: how many were looked at.
        rounding: relative rounding error of one weight.
        constant: whether all weights are equal.
    """

    spread: float
    families: Mapping[str, float]
    weights: int
    rounding: float = 0.0
    constant: bool = False


def relative_error(family: str, weights: int) -> float:
    """The relative standard error of the spread of n weights: sqrt((kurtosis - 1) / (4 n))."""
    return math.sqrt((_shape(family).kurtosis - 1.0) / (4.0 * weights))


@torch.no_grad()
def fit(weight: Tensor) -> Fit:
    """The families that a weight may come from.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> found = fit(torch.empty(100, 50).normal_(0.0, 0.02, generator=generator))
        >>> list(found.families), round(found.spread, 3)
        (['normal'], 0.02)
    """
    sample = _without_outliers(sample_of(weight))
    count = len(sample)
    spread = sample.square().mean().sqrt().item() if count else 0.0
    if not math.isfinite(spread) or bool((sample == sample[0]).all()):
        return Fit(spread, {}, count, constant=math.isfinite(spread))
    ordered = (sample / spread).sort().values
    largest = max(abs(ordered[0].item()), abs(ordered[-1].item()))
    rounding = _ROUNDING.get(weight.dtype, 1e-6)
    likely: dict[str, float] = {}
    for family in (NORMAL, UNIFORM, CUT_AT_2, CUT_AT_3):
        shape = _shape(family)
        # The support is known up to the error of the measured spread.
        slack = 1.0 + rounding + 5.0 * relative_error(family, count)
        if largest <= shape.support * slack and distance(ordered, family) <= _MOST_DISTANCE:
            likely[family] = _log_likelihood(ordered, family, largest)
    best = max(likely.values(), default=0.0)
    likely = {name: value for name, value in likely.items() if value > best - _LEAST_LIKELIHOOD}
    return Fit(spread, likely, count, rounding)


@torch.no_grad()
def is_uniform(weight: Tensor, bound: float) -> bool:
    """Whether a weight looks drawn uniformly within this very bound; a fresh one is denied once in a million times."""
    sample = sample_of(weight)
    if not len(sample) or not bool(sample.isfinite().all()):
        return False
    rounding = _ROUNDING.get(weight.dtype, 1e-6)
    # All n weights stay below 1 - 14 / n of the bound once in a million times.
    if not 1.0 - 14.0 / len(sample) - rounding <= sample.abs().max().item() / bound <= 1.0 + rounding:
        return False
    error = sample.square().mean().sqrt().item() * math.sqrt(3.0) / bound - 1.0
    ordered = (sample * (math.sqrt(3.0) / bound)).sort().values
    return abs(error) <= 5.0 * relative_error(UNIFORM, len(sample)) and (
        distance(ordered, UNIFORM) <= _MOST_DISTANCE_KNOWN
    )


def sample_of(weight: Tensor) -> Tensor:
    """At most `MOST_WEIGHTS` elements of a tensor, float64 on the CPU, always the same ones."""
    flat = weight.detach().flatten()
    most = _MOST_HALF if weight.dtype in _ROUNDING else MOST_WEIGHTS
    if len(flat) > most:
        # Multiples of a large prime visit the elements without a step that rows or columns could follow.
        flat = flat[torch.arange(most, device=flat.device) * 2654435761 % len(flat)]
    return flat.to("cpu", torch.float64)


def _without_outliers(sample: Tensor) -> Tensor:
    """The weights without up to three that lie ten spreads away.

    `torch.nn.init.trunc_normal_` gives one weight in 2^24 the value of its bound, often a hundred standard deviations.
    """
    far = sample.abs() > 15.0 * sample.abs().median() if len(sample) > 1000 else torch.zeros(1, dtype=torch.bool)
    return sample[~far] if 0 < int(far.sum()) <= 3 else sample


def distance(ordered: Tensor, family: str) -> float:
    """Kolmogorov and Smirnov's distance of sorted weights of unit spread from a family, times the root of n."""
    count = len(ordered)
    expected = _shape(family).cumulative(ordered)
    steps = torch.arange(count + 1, dtype=torch.float64) / count
    apart = max((steps[1:] - expected).max().item(), (expected - steps[:-1]).max().item())
    return apart * (math.sqrt(count) + 0.12 + 0.11 / math.sqrt(count))


@dataclass(frozen=True)
class _Shape:
    """A family at unit spread: |w| <= support, and its fourth moment."""

    support: float
    kurtosis: float
    cut: float | None = None
    inner: float = 1.0  # spread of the standard normal after it was cut

    def cumulative(self, values: Tensor) -> Tensor:
        """The share of weights below each value."""
        if self.cut is None and math.isfinite(self.support):
            return ((values / self.support + 1.0) / 2.0).clamp(0.0, 1.0)
        below = torch.special.ndtr(values * self.inner)
        if self.cut is None:
            return below
        outside = _normal_below(-self.cut)
        return ((below - outside) / (1.0 - 2.0 * outside)).clamp(0.0, 1.0)


@functools.cache
def _shape(family: str) -> _Shape:
    if family == NORMAL:
        return _Shape(math.inf, 3.0)
    if family == UNIFORM:
        return _Shape(math.sqrt(3.0), 1.8)
    cut = CUTS[family]
    inner, fourth = cut_moments(cut)
    return _Shape(cut / inner, fourth / inner**4, cut, inner)


def cut_moments(cut: float) -> tuple[float, float]:
    """The spread and the fourth moment of a standard normal distribution cut at +-cut."""
    edge = 2.0 * math.exp(-cut * cut / 2.0) / math.sqrt(2.0 * math.pi) / (1.0 - 2.0 * _normal_below(-cut))
    square = 1.0 - cut * edge
    return math.sqrt(square), 3.0 * square - cut**3 * edge


def _normal_below(value: float) -> float:
    return math.erfc(-value / math.sqrt(2.0)) / 2.0


def _log_likelihood(ordered: Tensor, family: str, largest: float) -> float:
    """Of weights of unit spread, each family with the scale that suits it: bounds are at least as wide as the weights.

    Sixteen normal weights look uniform half of the time, and a cut normal differs from a whole one by little. So a
    uniform one must be better by 2.5 and a cut one by 5.
    """
    count = len(ordered)
    if family == UNIFORM:
        return -count * math.log(2.0 * largest) - 2.5
    shape = _shape(family)
    if shape.cut is None:
        return -count * (0.5 * math.log(2.0 * math.pi) + 0.5)
    scale = max(1.0 / shape.inner, largest / shape.cut)
    inside = math.log(1.0 - 2.0 * _normal_below(-shape.cut))
    return -count * (0.5 * math.log(2.0 * math.pi) + math.log(scale) + 0.5 / scale**2 + inside) - 5.0
