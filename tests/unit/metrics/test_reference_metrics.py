"""The naive metrics: cases by hand."""

from __future__ import annotations

import numpy as np
import pytest

from reference import metrics


def test_ranks_of_two_by_two_matrices_by_hand() -> None:
    identity, single, zero = np.eye(2), np.array([[3.0, 0.0], [0.0, 0.0]]), np.zeros((2, 2))
    uneven = np.diag([3.0, 1.0])
    assert metrics.effective_rank(identity) == pytest.approx(2.0)
    assert metrics.effective_rank(single) == pytest.approx(1.0)
    assert metrics.effective_rank(zero) == 0.0
    assert metrics.effective_rank(uneven) == pytest.approx(4 / 27**0.25)  # exp of -(3/4 log 3/4 + 1/4 log 1/4)
    assert metrics.stable_rank(identity) == pytest.approx(2.0)
    assert metrics.stable_rank(uneven) == pytest.approx(10 / 9)
    assert metrics.stable_rank(zero) == 0.0
    assert metrics.rank_99(identity) == 2
    assert metrics.rank_99(uneven) == 2
    assert metrics.rank_99(np.diag([995.0, 5.0])) == 1
    assert metrics.rank_99(np.diag([985.0, 15.0])) == 2
    assert metrics.rank_99(zero) == 0


def test_dead_and_saturated_units_by_hand() -> None:
    activations = np.array([[0.0, 0.0, 0.99], [0.0, 1e-12, -0.99]])
    np.testing.assert_array_equal(metrics.dead_units(activations), [True, False, False])
    np.testing.assert_array_equal(metrics.saturated_units(activations, -1.0, 1.0, 0.05), [False, False, True])
    np.testing.assert_array_equal(metrics.saturated_units(activations, 0.0, 1.0, 0.05), [True, True, True])


def test_weight_magnitude_pools_the_weights_of_all_layers() -> None:
    assert metrics.weight_magnitude([np.array([[1.0, -1.0]]), np.array([[-4.0]])]) == pytest.approx(2.0)
