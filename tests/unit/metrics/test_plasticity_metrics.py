"""Linear and duplicate units, isometry, churn, one-step plasticity, gradients of examples: by hand and by reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from neoteny import metrics
from reference import plasticity_metrics as reference


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Units


def test_linearised_units_by_hand() -> None:
    activations = torch.ones(10, 3)
    activations[0, 1] = 0.0  # positive on 9 of 10
    activations[:2, 2] = -1.0  # on 8 of 10
    assert metrics.linearised_units(activations).tolist() == [True, True, False]
    assert metrics.linearised_units(activations, share=1.0).tolist() == [True, False, False]
    assert metrics.linearised_share(activations).item() == pytest.approx(2 / 3)


@pytest.mark.parametrize("seed", range(5))
def test_units_are_those_of_the_reference(seed: int) -> None:
    activations = draw(30, 12, seed=seed).add(1.0).relu()
    activations[:, 3] = 0.0
    activations[:, 5] = 2.0 * activations[:, 1] + 0.05 * activations[:, 2]
    activations[:, 6] = 1.5
    array = activations.numpy()
    for share in (0.5, 0.9, 1.0):
        expected = reference.linearised_units(array, share)
        np.testing.assert_array_equal(metrics.linearised_units(activations, share).numpy(), expected)
    for correlation in (0.3, 0.95):
        expected = reference.duplicate_units(array, correlation)
        np.testing.assert_array_equal(metrics.duplicate_units(activations, correlation).numpy(), expected)
    assert metrics.duplicate_units(activations)[[1, 5]].all()


def test_a_unit_that_never_changes_is_no_duplicate_in_any_precision() -> None:
    for constant in (0.1, 1e-30, 1e30):
        activations = torch.full((7, 2), constant)
        assert not metrics.duplicate_units(activations).any()
        assert not metrics.duplicate_units(activations.double()).any()


def test_opposite_units_are_duplicates_and_both_of_a_pair_count() -> None:
    unit = draw(20)
    activations = torch.stack([unit, -3.0 * unit + 7.0, draw(20, seed=1)], 1)
    assert metrics.duplicate_units(activations).tolist() == [True, True, False]
    assert metrics.duplicate_share(activations).item() == pytest.approx(2 / 3)


@pytest.mark.parametrize(("metric", "options"), [
    (metrics.linearised_units, {"share": 0.0}), (metrics.linearised_units, {"share": 1.5}),
    (metrics.duplicate_units, {"correlation": 1.0}), (metrics.duplicate_units, {"correlation": math.nan}),
])  # fmt: skip
def test_impossible_thresholds_are_refused(metric, options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=rf"{metric.__name__}: .*got {next(iter(options.values()))}"):
        metric(torch.zeros(2, 2), **options)


# Isometry


def test_distance_from_isometry_by_hand() -> None:
    tall = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    for matrix in (tall, tall.mT):
        assert metrics.distance_from_isometry(matrix, scaled=False).item() == 9.0  # (1 - 1)^2 + (4 - 1)^2
        assert metrics.distance_from_isometry(matrix).item() == pytest.approx(9 / 25)  # squares 0.4 and 1.6
    rank_one = torch.ones(4, 5)
    assert metrics.distance_from_isometry(rank_one).item() == pytest.approx(3.0)
    assert metrics.distance_from_isometry(torch.zeros(3, 4)).item() == 1.0
    assert metrics.distance_from_isometry(torch.zeros(3, 4), scaled=False).item() == 3.0


def test_a_multiple_of_an_orthogonal_matrix_is_an_isometry_at_every_scale() -> None:
    rotation = torch.linalg.qr(draw(6, 6))[0]
    for scale in (1e-200, 1.0, 1e200):
        assert metrics.distance_from_isometry(scale * rotation[:4]).item() == pytest.approx(0.0, abs=1e-14)
    assert metrics.distance_from_isometry(rotation, scaled=False).item() == pytest.approx(0.0, abs=1e-14)


@pytest.mark.parametrize("scaled", [True, False])
def test_distance_from_isometry_is_that_of_the_reference(scaled: bool) -> None:
    weights = [draw(5, 3), draw(2, 7, seed=1), draw(4, 3, 2, 2, seed=2), torch.zeros(3, 3, dtype=torch.float64)]
    expected = reference.distance_from_isometry([each.numpy() for each in weights], scaled)
    found = metrics.distance_from_isometry([*weights, draw(5)], scaled=scaled)  # a bias is left out
    assert found.item() == pytest.approx(expected, rel=1e-12)


# Updates


def test_one_step_plasticity_by_hand_and_by_reference() -> None:
    before, after = torch.tensor([2.0, 1.0, 0.0]), torch.tensor([0.5, 3.0, 0.0])
    assert metrics.one_step_plasticity(before, after).item() == pytest.approx((0.75 + 0.0 + 1.0) / 3)
    losses, later = draw(20).abs(), draw(20, seed=1).abs()
    expected = reference.one_step_plasticity(losses.tolist(), later.tolist())
    assert metrics.one_step_plasticity(losses, later).item() == pytest.approx(expected, rel=1e-12)


def test_churn_is_that_of_the_reference_and_outputs_add_up() -> None:
    now, before = draw(9, 3, 2), draw(9, 3, 2, seed=1)
    expected = reference.churn(now.numpy(), before.numpy())
    assert metrics.churn(now, before).item() == pytest.approx(expected, rel=1e-12)
    assert metrics.churn([now[:, :1], now[:, 1:]], [before[:, :1], before[:, 1:]]).item() == pytest.approx(expected)
    assert metrics.churn(now, now).item() == 0.0


def test_outputs_and_losses_of_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"churn: outputs and previous must have the same shape, got .*\(2, 3\)"):
        metrics.churn(torch.zeros(2, 3), torch.zeros(2, 1))
    with pytest.raises(
        ValueError, match=r"churn: outputs must have shape \(\*runs, inputs, \.\.\.\).*got shapes \[\(2,\)\]"
    ):
        metrics.churn(torch.zeros(2), torch.zeros(2), run_dims=1)
    with pytest.raises(ValueError, match="must not be empty"):
        metrics.one_step_plasticity(torch.zeros(0), torch.zeros(0))


# Gradients of examples


def test_gradient_agreement_and_strength_by_hand() -> None:
    gradients = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    assert metrics.gradient_agreement(gradients).item() == pytest.approx(1 / 3)  # one pair of three agrees
    assert metrics.gradient_strength(gradients).item() == pytest.approx(2.0)
    opposite = torch.tensor([[1.0, 1.0], [-2.0, -2.0]])
    assert metrics.gradient_agreement(opposite).item() == pytest.approx(-1.0)


def test_gradients_of_several_parameters_are_one_vector() -> None:
    whole = draw(7, 10)
    whole[2] = 0.0
    parts = [whole[:, :6].reshape(7, 2, 3), whole[:, 6:]]
    for name in ("gradient_agreement", "gradient_strength"):
        expected = getattr(reference, name)(whole.numpy())
        assert getattr(metrics, name)(parts).item() == pytest.approx(expected, rel=1e-12)


def test_too_few_examples_and_unequal_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 2 examples are needed, got shapes \[\(1, 3\)\]"):
        metrics.gradient_agreement(torch.zeros(1, 3))
    with pytest.raises(ValueError, match=r"equally many examples, got shapes \[\(2, 3\), \(3, 3\)\]"):
        metrics.gradient_strength([torch.zeros(2, 3), torch.zeros(3, 3)])
