"""The naive online normalisation: the equations of its paper, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from reference import online_norm
from support.reference_nets import central_difference


def test_online_normalisation_of_single_examples_follows_the_papers_equations() -> None:
    norm = online_norm.NaiveOnlineNorm(1, decay_forward=0.5, decay_backward=0.75, epsilon=0.0, layer_scaling=False)
    assert norm.forward(np.array([[2.0]])).item() == 2.0  # (2 - 0) / 1
    assert norm.mean.item() == 1.0
    assert norm.variance.item() == 0.5 * 1 + 0.25 * 2**2
    gx, weight_gradient, bias_gradient = norm.backward(np.array([[3.0]]))
    assert (gx.item(), weight_gradient.item(), bias_gradient.item()) == (3.0, 6.0, 3.0)
    assert (norm.error_y.item(), norm.error_1.item()) == (6.0, 3.0)
    y = norm.forward(np.array([[4.0]])).item()
    assert y == pytest.approx(3 / math.sqrt(1.5))
    gx, _, _ = norm.backward(np.array([[1.0]]))
    g = 1.0 - 0.25 * 6.0 * y
    assert gx.item() == pytest.approx(g / math.sqrt(1.5) - 0.25 * 3.0)
    assert norm.error_y.item() == pytest.approx(6.0 + g * y)
    assert norm.error_1.item() == pytest.approx(3.0 + gx.item())


def test_online_normalisation_statistics_of_a_batch_are_those_of_a_mixture() -> None:
    norm = online_norm.NaiveOnlineNorm(1, decay_forward=0.75)
    norm.forward(np.array([[1.0], [5.0]]))
    # a distribution that is (0, 1) with probability 0.75 and the batch (mean 3, variance 4) with 0.25
    assert norm.mean.item() == 0.25 * 3
    second_moment = 0.75 * 1 + 0.25 * (4 + 9)
    assert norm.variance.item() == pytest.approx(second_moment - norm.mean.item() ** 2)


@pytest.mark.parametrize("layer_scaling", [False, True])
def test_online_normalisation_without_control_has_the_gradient_of_frozen_statistics(layer_scaling: bool) -> None:
    generator = np.random.default_rng(12)
    x, direction = generator.normal(size=(3, 4)), generator.normal(size=(3, 4))
    weight, bias = generator.normal(size=4), generator.normal(size=4)
    mean, variance = generator.normal(size=4), generator.uniform(0.5, 2.0, size=4)

    def fresh() -> online_norm.NaiveOnlineNorm:
        norm = online_norm.NaiveOnlineNorm(4, decay_backward=1.0, layer_scaling=layer_scaling)
        norm.weight, norm.bias, norm.mean, norm.variance = weight, bias, mean.copy(), variance.copy()
        return norm

    def value() -> float:
        return float(np.sum(fresh().forward(x) * direction))

    norm = fresh()
    norm.forward(x)
    for gradient, array in zip(norm.backward(direction), (x, weight, bias), strict=True):
        np.testing.assert_allclose(gradient, central_difference(value, array), rtol=1e-6, atol=1e-8)


def test_online_normalisation_settles_at_zero_mean_and_unit_variance() -> None:
    generator = np.random.default_rng(13)
    norm = online_norm.NaiveOnlineNorm(2, decay_forward=0.99, layer_scaling=False)
    outputs = np.array([norm.forward(generator.normal([3.0, -1.0], [2.0, 0.1], size=(1, 2)))[0] for _ in range(8000)])
    np.testing.assert_allclose(outputs[2000:].mean(axis=0), 0.0, atol=0.05)
    np.testing.assert_allclose(outputs[2000:].std(axis=0), 1.0, atol=0.05)
