"""Which family a weight was drawn from: how often fresh weights are misjudged, and what is told apart."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from neoteny.draws import fit as fitting
from neoteny.draws.fit import CUT_AT_2, CUT_AT_3, NORMAL, UNIFORM, fit, is_uniform
from neoteny.draws.initial import Distribution, Initial

FAMILIES = (NORMAL, UNIFORM, CUT_AT_2, CUT_AT_3)


def drawn(family: str, count: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    weight = torch.empty(count)
    if family == NORMAL:
        weight.normal_(0.0, 0.02, generator=generator)
    elif family == UNIFORM:
        weight.uniform_(-0.03, 0.03, generator=generator)
    else:
        cut = fitting.CUTS[family] * 0.02
        nn.init.trunc_normal_(weight, 0.0, 0.02, -cut, cut, generator=generator)
    return weight.to(dtype)


@pytest.mark.parametrize("count", [16, 64, 300, 2000])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_true_family_of_a_fresh_weight_is_hardly_ever_ruled_out(family: str, count: int) -> None:
    generator = torch.Generator().manual_seed(0)
    missing = sum(family not in fit(drawn(family, count, generator)).families for _ in range(60))
    assert missing <= (4 if count < 300 else 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_large_weight_has_one_family(family: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        found = fit(drawn(family, 20_000, generator, dtype))
        assert list(found.families) == [family]
        assert found.spread == pytest.approx(Distribution("uniform", 0.03).std, rel=0.02) or family != UNIFORM


@pytest.mark.parametrize("count", [16, 100, 5000])
def test_torchs_own_weights_are_never_denied_and_others_are(count: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        assert is_uniform(torch.empty(count).uniform_(-0.1, 0.1, generator=generator), 0.1)
    others = [torch.empty(count).normal_(0.0, 0.1 / math.sqrt(3.0), generator=generator) for _ in range(100)]
    assert sum(is_uniform(each, 0.1) for each in others) <= (35 if count == 16 else 0)
    if count > 16:
        assert not is_uniform(torch.empty(count).uniform_(-0.06, 0.06, generator=generator), 0.1)


@pytest.mark.parametrize(
    "trained",
    [
        lambda w: w.pow(3),
        lambda w: torch.cat([w, 3.0 * w]),
        lambda w: w * (w.abs() > 0.01),
        lambda w: w + 0.02,
        lambda w: w + 0.05 * torch.sin(torch.arange(len(w)) / 7.0),
    ],
    ids=["heavy tails", "two sizes", "pruned", "shifted", "a pattern"],
)
def test_weights_that_nobody_draws_fit_nothing(trained: object) -> None:
    weight = torch.empty(10_000).normal_(0.0, 0.02, generator=torch.Generator().manual_seed(0))
    assert not fit(trained(weight)).families  # type: ignore[operator]


def test_one_weight_at_the_bound_of_trunc_normal_does_not_hide_the_others() -> None:
    weight = torch.empty(50_000).normal_(0.0, 0.02, generator=torch.Generator().manual_seed(0))
    weight[17] = -2.0
    found = fit(weight)
    assert list(found.families) == [NORMAL]
    assert found.spread == pytest.approx(0.02, rel=0.02)


def test_equal_weights_and_broken_ones_fit_nothing() -> None:
    assert fit(torch.zeros(50)).constant
    assert fit(torch.ones(50)).constant
    assert not fit(torch.full((50,), math.nan)).families
    assert not fit(torch.full((50,), math.nan)).constant


@pytest.mark.parametrize("cut", [2.0, 3.0])
def test_a_cut_normal_is_drawn_with_its_spread_and_bounds(cut: float) -> None:
    distribution = Distribution("cut", 0.5, cut)
    weights = distribution.draw(torch.tensor(1), 3, "w", torch.arange(400), 100)
    assert float(weights.std()) == pytest.approx(distribution.std, rel=0.01)
    assert float(weights.abs().max()) <= 0.5 * cut
    assert float(weights.abs().max()) == pytest.approx(0.5 * cut, rel=0.01)
    assert list(fit(weights).families) == [CUT_AT_2 if cut == 2.0 else CUT_AT_3]


def test_bad_declarations_are_refused() -> None:
    for wrong, message in (
        ({"name": "kaiming_normal", "mode": "fan"}, "mode must be 'fan_in' or 'fan_out'; got 'fan'"),
        ({"name": "xavier_normal", "mode": "fan_out"}, "takes no mode"),
        ({"name": "normal", "scale": 1.0, "gain": 2.0}, "gain belongs to Kaiming and Xavier"),
        ({"name": "kaiming_normal", "gain": -1.0}, "gain must be above 0"),
        ({"name": "uniform", "scale": 1.0, "cut": 2.0}, "cut belongs to normal"),
        ({"name": "kaiming_norm"}, "Did you mean 'kaiming_normal'"),
    ):
        with pytest.raises(ValueError, match=message):
            Initial(**wrong)  # type: ignore[arg-type]
