"""Published test vectors of the methods: hand-checked numbers that the naive references give to the last digit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from reference import cbp, hare_and_tortoise, l2_init, mlp, redo, spectral, upgd

ACTIVITIES = np.array([[0, 0, 0.03, 0], [1, 0, 3, 0], [2, 2, 0, 4]]).T  # 4 inputs, 3 units
W = np.array([1, -2, 0.5, 0])
G = np.array([0.1, 0.2, -0.4, 3])


def small_network(seed: int = 0) -> mlp.Layers:
    generator = np.random.default_rng(seed)
    shapes = [(5, 3), (4, 5), (2, 4)]
    return [(generator.normal(size=shape), generator.normal(size=shape[0])) for shape in shapes]


def batches(steps: int, seed: int = 1) -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(seed)
    return [(generator.normal(size=(4, 3)), generator.normal(size=(4, 2))) for _ in range(steps)]


def constant_rows(update: int, layer: int, unit: int) -> np.ndarray:
    """New incoming weights of the small network, all one half."""
    return np.full((3, 5)[layer], 0.5)


def flat_loss() -> tuple[np.ndarray, np.ndarray]:
    """A batch whose loss does not depend on the weights of one linear layer."""
    return np.zeros((1, 2)), np.zeros((1, 2))


def central_difference(function: Callable[[], float], array: np.ndarray, width: float = 1e-6) -> np.ndarray:
    found = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        old = array[index]
        array[index] = old + width
        above = function()
        array[index] = old - width
        found[index] = (above - function()) / (2 * width)
        array[index] = old
    return found


# ------------------------------------------------------------------------------------------------------------ ReDo


def test_redo_scores_and_thresholds() -> None:
    np.testing.assert_allclose(redo.scores(ACTIVITIES), [0.007481, 0.997506, 1.995012], atol=5e-7)
    assert redo.dormant_units(ACTIVITIES, 0.1) == [0]
    assert redo.dormant_units(ACTIVITIES, 1.0) == [0, 1]
    assert redo.dormant_units(np.zeros((4, 3)), 0.0) == [0, 1, 2]  # a silent layer: every score is 0


def test_redo_of_a_silent_unit_leaves_the_output_and_of_another_takes_its_share_away() -> None:
    learner = redo.NaiveReDo(small_network(), "relu", cbp.SGD(0.0), fresh=constant_rows)
    learner.layers[0][1][2] = -100.0  # silent
    x = batches(1)[0][0]
    before = mlp.forward(learner.layers, ["relu", "linear"], x)[1][-1]
    learner.recycle([(0, 2)])
    np.testing.assert_array_equal(mlp.forward(learner.layers, ["relu", "linear"], x)[1][-1], before)
    h = mlp.forward(learner.layers, ["relu", "linear"], x)[1][2]
    lost = np.outer(h[:, 1], learner.layers[2][0][:, 1])
    learner.recycle([(1, 1)])
    np.testing.assert_allclose(mlp.forward(learner.layers, ["relu", "linear"], x)[1][-1], before - lost, atol=1e-12)


@pytest.mark.parametrize("shared_weights", ["zero", "fresh"])
def test_redo_clears_adam_and_decides_about_weights_between_two_reset_units(shared_weights: Any) -> None:
    learner = redo.NaiveReDo(
        small_network(),
        "relu",
        cbp.Adam(0.01),
        fresh=constant_rows,
        period=10**6,
        shared_weights=shared_weights,
    )
    for x, target in batches(5):
        learner.step(x, target)
    learner.recycle([(0, 1), (1, 3)])
    assert learner.layers[1][0][3, 1] == (0.0 if shared_weights == "zero" else 0.5)
    assert list(learner.layers[1][0][3, [0, 2, 3, 4]]) == [0.5] * 4
    assert np.all(learner.layers[1][0][[0, 1, 2], 1] == 0.0)
    assert learner.layers[0][1][1] == learner.layers[1][1][3] == 0.0
    times = learner.optimizer.state["time_step"]
    expected = np.full((4, 5), 5.0)
    expected[3, :] = expected[:, 1] = 0.0
    np.testing.assert_array_equal(times[1][0], expected)
    np.testing.assert_array_equal(times[2][1], [5.0, 5.0])


def test_adam_moves_a_reset_weight_by_one_step_size_and_others_as_before() -> None:
    def first_move(t: float) -> float:
        layers: mlp.Layers = [(np.zeros((1, 1)), np.zeros(1))]
        adam = cbp.Adam(0.01)
        adam.start(layers)
        adam.state["time_step"][0][0][...] = t
        adam.update(layers, [(np.full((1, 1), 7.0), np.zeros(1))])
        return abs(float(layers[0][0][0, 0])) / 0.01

    assert first_move(0.0) == pytest.approx(1.0, rel=1e-6)  # its own count
    assert first_move(1e6) == pytest.approx(3.162, abs=5e-4)  # a count that all weights share


# ------------------------------------------------------------------------------------------------------------ UPGD


UPGD_VECTORS: dict[upgd.Scaling, tuple[list[float] | None, list[float]]] = {
    "code": ([0.075858, 0.999955, 0.993307, 0.5], [0.990759, -2.000001, 0.500268, -0.15]),
    "paper": ([0.437823, 0.731059, 0.622459, 0.5], [0.994378, -2.005379, 0.515102, -0.15]),
    "local": (None, [0.994457, -2.005893, 0.515704, -0.15]),
}


@pytest.mark.parametrize("scaling", UPGD_VECTORS)
def test_upgd_first_update(scaling: upgd.Scaling) -> None:
    utility = upgd.running_utility(np.zeros(4), G, W, 0.9)
    (scaled,) = upgd.scaled_utilities([utility], 0.9, 1, scaling)
    gates, weights = UPGD_VECTORS[scaling]
    if gates is not None:
        np.testing.assert_allclose(scaled, gates, atol=5e-7)
    np.testing.assert_allclose(upgd.updated(W, G, scaled, step_size=0.1), weights, atol=5e-7)


def test_upgd_without_protection_gates_the_noise_alone() -> None:
    utility = upgd.running_utility(np.zeros(4), G, W, 0.9)
    (scaled,) = upgd.scaled_utilities([utility], 0.9, 1, "paper")
    plain = upgd.updated(W, G, scaled, step_size=0.1, protecting=False)
    np.testing.assert_allclose(plain, W - 0.1 * G, atol=1e-15)
    noise = np.array([1.0, -1.0, 2.0, 0.5])
    noisy = upgd.updated(W, G, scaled, step_size=0.1, noise=noise, protecting=False)
    np.testing.assert_allclose(noisy - plain, -0.1 * noise * (1.0 - scaled), atol=1e-15)


def test_upgd_scale_is_one_for_the_whole_network_and_never_flips_a_sign() -> None:
    big, small = np.array([4.0, -1.0]), np.array([2.0, 0.0])
    scaled = upgd.scaled_utilities([big, small], 0.0, 1, "paper")
    np.testing.assert_allclose(scaled[1], [upgd.sigmoid(0.5), 0.5])
    useless = upgd.scaled_utilities([np.array([-3.0, -1.0, 0.0])], 0.0, 1, "paper")
    np.testing.assert_array_equal(useless[0], [0.0, 0.0, 0.5])


# --------------------------------------------------------------------------------------------------------- L2-init


def test_l2_init_gradient_is_the_penaltys_and_pulls_home_on_a_flat_loss() -> None:
    layers, anchor = small_network(0), small_network(1)
    for layer in range(3):
        for part in (0, 1):
            expected = central_difference(lambda: l2_init.penalty(layers, anchor, 0.3), layers[layer][part])
            found = l2_init.gradient(layers[layer][part], anchor[layer][part], 0.3)
            np.testing.assert_allclose(found, expected, atol=1e-7)
    learner = l2_init.NaiveL2Init([(np.eye(2), np.zeros(2))], [], cbp.SGD(0.1), strength=0.5)
    learner.layers[0][0][...] = [[3.0, 1.0], [0.0, -2.0]]
    for _ in range(400):
        learner.step(*flat_loss())
    np.testing.assert_allclose(learner.layers[0][0], np.eye(2), atol=1e-8)
    np.testing.assert_array_equal(learner.anchor[0][0], np.eye(2))


def test_l2_init_decoupled_does_not_pass_through_adam() -> None:
    moved = {}
    for step_size in (None, 0.01):
        learner = l2_init.NaiveL2Init(
            [(np.eye(2), np.zeros(2))], [], cbp.Adam(0.01), strength=0.5, decoupled_step_size=step_size
        )
        learner.layers[0][0][0, 0] = 3.0
        learner.step(*flat_loss())
        moved[step_size] = 3.0 - learner.layers[0][0][0, 0]
    assert moved[None] == pytest.approx(0.01, rel=1e-6)  # Adam takes the term's size away
    assert moved[0.01] == pytest.approx(0.01 * 0.5 * 2.0, rel=1e-12)


# -------------------------------------------------------------------------------------------------------- Spectral


def test_spectral_penalty_and_gradient_of_a_diagonal_matrix() -> None:
    weight = np.diag([3.0, 1.0])
    u, v = spectral.power_iteration(weight, np.array([1.0, 0.0]))
    sigma = spectral.singular_value(weight, u, v)
    assert spectral.weight_penalty(sigma, 2) == 64.0
    np.testing.assert_array_equal(spectral.weight_gradient(sigma, u, v, 2), [[96.0, 0.0], [0.0, 0.0]])


def test_spectral_pulls_the_largest_singular_value_to_one_and_leaves_smaller_ones() -> None:
    learner = spectral.NaiveSpectral(
        [(np.diag([3.0, 0.4]), np.zeros(2))], [], cbp.SGD(0.01), start=[np.array([1.0, 0.0])], strength=0.1
    )
    for _ in range(2000):
        learner.step(*flat_loss())
    np.testing.assert_allclose(learner.layers[0][0], np.diag([1.0, 0.4]), atol=1e-6)


def test_spectral_power_iteration_finds_the_largest_singular_value() -> None:
    weight = np.random.default_rng(3).normal(size=(4, 6))
    u, v = np.zeros(4), np.ones(6)
    for _ in range(200):
        u, v = spectral.power_iteration(weight, v)
    assert spectral.singular_value(weight, u, v) == pytest.approx(np.linalg.svd(weight)[1][0], rel=1e-10)


@pytest.mark.parametrize("term", ["squared_norm", "power"])
@pytest.mark.parametrize("exponent", [1, 2, 3])
def test_spectral_gradients_are_those_of_the_penalties(term: spectral.BiasTerm, exponent: int) -> None:
    generator = np.random.default_rng(4)
    weight, bias, gain = generator.normal(size=(3, 4)), generator.normal(size=3), generator.normal(size=3)
    u, v = spectral.power_iteration(weight, np.ones(4))
    expected = central_difference(
        lambda: spectral.weight_penalty(spectral.singular_value(weight, u, v), exponent), weight
    )
    found = spectral.weight_gradient(spectral.singular_value(weight, u, v), u, v, exponent)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    expected = central_difference(lambda: spectral.bias_penalty(bias, exponent, term), bias)
    np.testing.assert_allclose(spectral.bias_gradient(bias, exponent, term), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        spectral.gain_gradient(gain), central_difference(lambda: spectral.gain_penalty(gain), gain), atol=1e-6
    )


# ------------------------------------------------------------------------------------------------- Hare & Tortoise


def test_hare_and_tortoise_average_after_three_updates() -> None:
    slow = np.zeros(1)
    for _ in range(3):
        slow = hare_and_tortoise.averaged(slow, np.ones(1), 0.999)
    assert slow[0] == pytest.approx(0.002997001, rel=1e-12)


def test_hare_and_tortoise_copies_on_its_clock_and_shares_no_storage() -> None:
    learner = hare_and_tortoise.NaiveHareAndTortoise(small_network(), "tanh", cbp.Adam(0.01), decay_rate=0.5, period=4)
    for update, (x, target) in enumerate(batches(9), 1):
        learner.step(x, target)
        same = all(
            np.array_equal(slow[part], fast[part])
            for slow, fast in zip(learner.slow, learner.layers, strict=True)
            for part in (0, 1)
        )
        assert same == (update % 4 == 0)
        assert learner.optimizer.state["time_step"][0][0][0, 0] == update  # the optimizer goes on
    slow = [array.copy() for pair in learner.slow for array in pair]
    learner.layers[0][0][...] += 1.0
    for before, array in zip(slow, [array for pair in learner.slow for array in pair], strict=True):
        np.testing.assert_array_equal(before, array)
    x = batches(1)[0][0]
    np.testing.assert_array_equal(learner.evaluate(x), mlp.forward(learner.slow, ["tanh", "tanh"], x)[1][-1])


def test_upgd_noise_and_decay_reach_every_weight() -> None:
    network = small_network()
    learner = upgd.NaiveUPGD(
        network,
        "relu",
        step_size=0.1,
        noise_std=0.5,
        weight_decay=0.01,
        noise=lambda update, layer, part: np.ones_like(network[layer][part]),
    )
    zero: mlp.Layers = [(np.zeros_like(weight), np.zeros_like(bias)) for weight, bias in network]
    learner.updates = 1
    learner.update(zero)  # no gradient: every utility is 0, every gate one half
    for layer, pair in enumerate(network):
        for part in (0, 1):
            expected = (1 - 0.1 * 0.01) * pair[part] - 0.1 * 0.5 * 0.5
            np.testing.assert_allclose(learner.layers[layer][part], expected, atol=1e-15)
    assert math.isclose(upgd.sigmoid(-800.0), 0.0)
