"""Counter-based draws: the reference's words, one stream a (seed, step, purpose, row), nothing shared by a stack."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from neoteny.draws import rng
from reference import philox

SEEDS = st.integers(-(2**63), 2**63 - 1)
STEPS = st.one_of(st.integers(0, 2**20), st.integers(2**32 - 2, 2**32 + 2), st.integers(2**32, 2**63 - 1))
PURPOSES = st.sampled_from(["fc1.weight", "fc1.bias/perturb", "0/utility", "dropout", ""])


def word(value: int) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.int64)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    c0, c1, c2, c3 = (word(value) for value in counter)
    words = rng.philox((c0, c1, c2, c3), (word(key[0]), word(key[1])))
    assert tuple(int(value) for value in words) == expected


@given(
    counter=st.tuples(*[st.integers(0, 2**32 - 1)] * 4),
    key=st.tuples(*[st.integers(0, 2**32 - 1)] * 2),
)
@settings(max_examples=200, deadline=None)
def test_philox_equals_the_plain_integer_reference(counter: tuple[int, int, int, int], key: tuple[int, int]) -> None:
    c0, c1, c2, c3 = (word(value) for value in counter)
    words = rng.philox((c0, c1, c2, c3), (word(key[0]), word(key[1])))
    assert tuple(int(value) for value in words) == philox.philox4x32(counter, key)


@given(
    seed=SEEDS, step=STEPS, purpose=PURPOSES, rows=st.lists(st.integers(0, 2**31), min_size=1, max_size=3),
    columns=st.integers(1, 11),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_uniform_and_normal_draws_equal_the_reference(
    seed: int, step: int, purpose: str, rows: list[int], columns: int
) -> None:
    arguments = (word(seed), step, purpose, torch.tensor(rows), columns)
    uniform, normal = rng.uniform(*arguments), rng.normal(*arguments)
    assert uniform.dtype == normal.dtype == torch.float64
    assert uniform.shape == normal.shape == (len(rows), columns)
    for i, row in enumerate(rows):
        np.testing.assert_array_equal(uniform[i].numpy(), philox.uniform(seed, step, purpose, row, columns))
        expected = philox.normal(seed, step, purpose, row, columns)
        np.testing.assert_allclose(normal[i].numpy(), expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("step", [0, 2**32 - 1, 2**32, 2**32 + 1, 2**40, 2**62])
def test_steps_that_agree_in_their_low_word_draw_different_numbers(step: int) -> None:
    rows = torch.arange(2)
    here = rng.uniform(word(3), step, "w", rows, 5)
    there = rng.uniform(word(3), step + 2**32, "w", rows, 5)
    assert not torch.equal(here, there)


@given(
    seeds=st.lists(SEEDS, min_size=1, max_size=4), step=STEPS, rows=st.integers(1, 3), columns=st.integers(1, 9),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_a_stack_of_seeds_draws_what_each_seed_draws_alone(
    seeds: list[int], step: int, rows: int, columns: int
) -> None:
    numbers = torch.arange(rows)
    for draw in (rng.uniform, rng.normal):
        together = draw(torch.tensor(seeds).unsqueeze(-1), step, "w", numbers.expand(len(seeds), rows), columns)
        assert together.shape == (len(seeds), rows, columns)
        for run, seed in enumerate(seeds):
            assert torch.equal(together[run], draw(word(seed), step, "w", numbers, columns))


def test_each_run_may_be_at_a_step_of_its_own() -> None:
    seeds, steps, rows = torch.tensor([5, 6]), torch.tensor([[9], [2**33]]), torch.arange(3).expand(2, 3)
    together = rng.uniform(seeds.unsqueeze(-1), steps, "w", rows, 5)
    for run in range(2):
        assert torch.equal(together[run], rng.uniform(seeds[run], int(steps[run]), "w", torch.arange(3), 5))


def test_fewer_columns_are_a_prefix_of_more() -> None:
    rows = torch.arange(4)
    for draw in (rng.uniform, rng.normal):
        wide = draw(word(1), 2, "w", rows, 13)
        for columns in range(1, 13):
            assert torch.equal(draw(word(1), 2, "w", rows, columns), wide[:, :columns])


def test_a_row_does_not_depend_on_the_other_rows() -> None:
    some = rng.normal(word(1), 2, "w", torch.tensor([7, 3]), 6)
    everything = rng.normal(word(1), 2, "w", torch.arange(9), 6)
    assert torch.equal(some, everything[[7, 3]])


def test_no_draw_touches_torchs_own_generator() -> None:
    before = torch.get_rng_state()
    rng.normal(word(1), 2, "w", torch.arange(9), 6)
    rng.uniform(word(1), 2, "w", torch.arange(9), 6)
    assert torch.equal(torch.get_rng_state(), before)


def test_uniform_draws_have_the_moments_of_a_uniform_number() -> None:
    draws = rng.uniform(word(-1), 4, "moments", torch.arange(500), 999).flatten()
    n = draws.numel()
    assert draws.min() > 0.0
    assert draws.max() < 1.0
    assert abs(draws.mean() - 1 / 2) < 5 * math.sqrt(1 / 12 / n)
    assert abs(draws.var() - 1 / 12) < 5 * math.sqrt(1 / 180 / n)
    counts = torch.histc(draws, bins=64, min=0.0, max=1.0)
    chi_square = ((counts - n / 64) ** 2 / (n / 64)).sum()
    assert chi_square < 63 + 5 * math.sqrt(2 * 63)


def test_normal_draws_have_the_moments_of_a_standard_normal_number() -> None:
    draws = rng.normal(word(2**62), 4, "moments", torch.arange(500), 999).flatten()
    n = draws.numel()
    # variances of the sample moments 1 to 4 of a standard normal number: 1, 2, 15, 96
    for power, expected, variance in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)):
        assert abs(draws.pow(power).mean() - expected) < 5 * math.sqrt(variance / n), power


@pytest.mark.parametrize("what", ["purpose", "step", "seed", "row", "column"])
def test_draws_that_differ_in_one_argument_are_uncorrelated(what: str) -> None:
    rows, columns = torch.arange(200), 500
    base = rng.normal(word(11), 3, "fc1.weight", rows, columns)
    other = {
        "purpose": lambda: rng.normal(word(11), 3, "fc2.weight", rows, columns),
        "step": lambda: rng.normal(word(11), 4, "fc1.weight", rows, columns),
        "seed": lambda: rng.normal(word(12), 3, "fc1.weight", rows, columns),
        "row": lambda: rng.normal(word(11), 3, "fc1.weight", rows + 200, columns),
        "column": lambda: base.roll(1, dims=-1),
    }[what]()
    assert abs((base * other).mean()) < 5 / math.sqrt(base.numel())


def test_purposes_have_different_codes_that_never_change() -> None:
    assert rng.purpose_code("fc1.weight") == 0x3A7744E0
    names = [f"fc{i}.{part}{use}" for i in range(50) for part in ("weight", "bias") for use in ("", "/perturb")]
    assert len({rng.purpose_code(name) for name in names}) == len(names)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("runs", [(), (3,)])
def test_adding_normal_numbers_is_drawing_and_adding(runs: tuple[int, ...], dtype: torch.dtype) -> None:
    seeds = torch.arange(7, 7 + math.prod(runs)).reshape(runs)
    scale: Tensor | float = 0.3 if runs == () else torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    start = torch.randn(*runs, 5, 9, dtype=dtype)
    added = start.clone()
    rng.add_normal(added, seeds, 2**33 + 5, "w", scale)
    rows = torch.arange(5).expand(*runs, 5)
    noise = rng.normal(seeds.unsqueeze(-1), 2**33 + 5, "w", rows, 9)
    factor = scale.reshape(3, 1, 1) if isinstance(scale, Tensor) else scale
    expected = start + (noise * factor).to(dtype)
    if dtype == torch.float64:
        assert torch.equal(added, expected)
    else:
        torch.testing.assert_close(added, expected, rtol=1.2e-7, atol=1e-7)


def test_noise_for_float32_is_the_exact_one_to_one_rounding() -> None:
    seeds, rows = torch.tensor([3]), torch.arange(400).unsqueeze(0)
    noise = rng.normal(seeds.unsqueeze(-1), 11, "w", rows, 501)  # 200,400 numbers, some of them beyond 4
    added = torch.zeros(1, 400, 501)
    rng.add_normal(added, seeds, 11, "w", 1.0)
    assert noise.abs().max() > 4
    torch.testing.assert_close(added, noise.float(), rtol=1.2e-7, atol=5e-9)
