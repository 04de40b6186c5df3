"""The naive Philox: published answers, the layout of its words, moments."""

from __future__ import annotations

import math

import numpy as np
import pytest

from reference import philox


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
    ids=["zeros", "ones", "pi"],
)
def test_philox_gives_the_published_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    assert philox.philox4x32(counter, key) == expected


def test_words_put_seed_step_purpose_row_and_block_where_the_layout_says() -> None:
    # the layout with step < 2**32 puts the purpose code itself into the last counter word
    seed = 0x299F31D0 << 32 | 0xA4093822
    assert philox.words(seed, 0x13198A2E, 0x03707344, 0x85A308D3, 0x243F6A88)[0] == 0xD16CFE09
    # a step with high bits 1 flips the purpose by the golden ratio
    high = philox.words(seed, 2**32 + 0x13198A2E, 0x03707344 ^ 0x9E3779B9, 0x85A308D3, 0x243F6A88)
    assert high[0] == 0xD16CFE09


def test_uniform_columns_do_not_depend_on_how_many_are_drawn() -> None:
    long = philox.uniform(7, 3, "0.weight", 2, 11)
    assert long.shape == (11,)
    for columns in range(12):
        np.testing.assert_array_equal(philox.uniform(7, 3, "0.weight", 2, columns), long[:columns])
        np.testing.assert_array_equal(
            philox.normal(7, 3, "0.weight", 2, columns), philox.normal(7, 3, "0.weight", 2, 11)[:columns]
        )


def test_normal_numbers_are_box_muller_of_the_uniform_ones() -> None:
    u = philox.uniform(1, 2, "x", 3, 4)
    first, second, third, fourth = philox.normal(1, 2, "x", 3, 4)
    assert first**2 + second**2 == pytest.approx(-2 * math.log(u[0]))
    assert third**2 + fourth**2 == pytest.approx(-2 * math.log(u[2]))
    assert math.atan2(second, first) % (2 * math.pi) == pytest.approx(2 * math.pi * u[1])


def test_draws_have_the_moments_of_their_distributions() -> None:
    uniform = philox.uniform(0, 1, "moments", 0, 20_000)
    normal = philox.normal(0, 1, "moments", 0, 20_000)
    assert uniform.mean() == pytest.approx(0.5, abs=0.01)
    assert uniform.var() == pytest.approx(1 / 12, abs=0.003)
    assert normal.mean() == pytest.approx(0.0, abs=0.03)
    assert normal.var() == pytest.approx(1.0, abs=0.04)
