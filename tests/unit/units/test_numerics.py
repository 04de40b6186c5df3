"""The compiled passes and torch give the same numbers, and NaN or infinity stays where it is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from neoteny.draws import rng
from neoteny.jit import compiler
from neoteny.units import numerics

torch.set_num_threads(1)
DTYPES = [torch.float32, torch.float64]


def strided(tensor: Tensor) -> Tensor:
    """The same values in memory that the compiled passes do not take."""
    spread = torch.empty(*tensor.shape, 2, dtype=tensor.dtype)[..., 0]
    spread.copy_(tensor)
    assert not numerics.is_plain(spread)
    return spread


def test_the_compiled_passes_are_there_to_be_tested() -> None:
    assert compiler() is not None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 2), (1, 3, 5), (2, 4, 7), (3, 10, 33), (1, 101, 64)])
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_absolute_sums_agree(dtype: torch.dtype, shape: tuple[int, int, int], wanted: tuple[bool, bool]) -> None:
    weight = torch.randn(shape, dtype=dtype)
    compiled = numerics.AbsoluteSums(shape[0], shape[1], *wanted)(weight)
    general = numerics.AbsoluteSums(shape[0], shape[1], *wanted)(strided(weight))
    assert compiled.arrays is not None
    assert general.arrays is None
    for ours, theirs, want in zip(compiled[:2], general[:2], wanted, strict=True):
        if want:
            torch.testing.assert_close(ours, theirs)


def test_absolute_sums_follow_the_weight_and_keep_infinities() -> None:
    weight = torch.ones(1, 6, 5)
    sums = numerics.AbsoluteSums(1, 6, True, True)
    assert sums(weight).rows is not None
    weight[0, 0, 0] = -torch.inf
    weight[0, 5, 1] = torch.nan
    rows, columns, _ = sums(weight)
    assert rows is not None
    assert columns is not None
    assert rows[0, 0] == torch.inf
    assert torch.isnan(rows[0, 5])
    assert torch.equal(rows[0, 1:5], torch.full((4,), 5.0))
    assert columns[0, 0] == torch.inf
    assert torch.isnan(columns[0, 1])
    assert torch.equal(columns[0, 2:], torch.full((3,), 6.0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_weights_are_summed_in_float32(dtype: torch.dtype) -> None:
    rows = numerics.AbsoluteSums(1, 2, True, False)(torch.full((1, 2, 4096), 0.1, dtype=dtype)).rows
    assert rows is not None
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows, torch.full((1, 2), 409.6), rtol=1e-2, atol=0.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 4, 1), (7, 4, 1), (5, 3, 6), (2, 3, 5, 2), (2, 6, 4, 9)])
def test_means_and_deviations_agree(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    batch = torch.randn(shape, dtype=dtype)
    centre = torch.randn(*shape[:-3], shape[-2], dtype=dtype)
    torch.testing.assert_close(numerics.example_mean(batch), batch.mean(-3))
    torch.testing.assert_close(numerics.example_mean(strided(batch)), batch.mean(-3))
    expected = (batch - centre[..., None, :, None]).abs().mean(-3)
    for each in (batch, strided(batch)):
        torch.testing.assert_close(numerics.mean_deviation(each, centre), expected)
        torch.testing.assert_close(numerics.mean_deviation(each, None), batch.abs().mean(-3))


def test_compiled_and_general_draws_are_equal() -> None:
    seeds = torch.tensor([[3], [-(2**63)], [2**62 + 5]])
    rows = torch.tensor([[0, 1], [2**31, 7], [5, 5]])
    for step in (0, 1, 2**32 + 3):
        tensor_step = torch.full((), step)  # a step in a tensor takes the general path
        for draw in (rng.uniform, rng.normal):
            assert torch.equal(
                draw(seeds, step, "fc.weight", rows, 11), draw(seeds, tensor_step, "fc.weight", rows, 11)
            )


def test_some_neighbouring_features_are_measured_in_place() -> None:
    batch, centre = torch.randn(3, 5, 7, 4), torch.randn(3, 2)
    for each in (batch, strided(batch)):
        for middle in (centre, None):
            expected = numerics.mean_deviation(batch[:, :, 3:5].contiguous(), middle)
            torch.testing.assert_close(numerics.mean_deviation(each, middle, 3, 2), expected)
