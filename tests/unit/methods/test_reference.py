"""Tests of the naive references themselves: known answers, finite differences, torch's own functions, hand cases."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from reference import cbp, conv, metrics, mlp, online_norm, philox

UTILITIES: list[cbp.Utility] = [
    "overall",
    "mean_corrected_contribution",
    "contribution",
    "adaptation",
    "weight_magnitude",
    "random",
]


def random_layers(sizes: list[int], seed: int = 0) -> mlp.Layers:
    generator = np.random.default_rng(seed)
    return [
        (generator.normal(size=(n_out, n_in)) / math.sqrt(n_in), 0.1 * generator.normal(size=n_out))
        for n_in, n_out in itertools.pairwise(sizes)
    ]


def central_difference(function: Callable[[], float], array: np.ndarray, width: float = 1e-6) -> np.ndarray:
    """The gradient of a function that reads `array`, one entry at a time."""
    gradient = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        old = array[index]
        array[index] = old + width
        above = function()
        array[index] = old - width
        below = function()
        array[index] = old
        gradient[index] = (above - below) / (2 * width)
    return gradient


# ---------------------------------------------------------------------------------------------------------- philox


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


# ------------------------------------------------------------------------------------------------------------- mlp


@pytest.mark.parametrize("activation", sorted(mlp.ACTIVATIONS))
@pytest.mark.parametrize("loss", sorted(mlp.LOSSES))
def test_backward_matches_finite_differences(activation: str, loss: str) -> None:
    layers = random_layers([3, 5, 4, 3])
    generator = np.random.default_rng(1)
    x = generator.normal(size=(4, 3))
    target = generator.integers(3, size=4) if loss == "cross_entropy" else generator.normal(size=(4, 3))
    names = [activation] * 2

    def value() -> float:
        return mlp.LOSSES[loss](mlp.forward(layers, names, x)[1][-1], target)[0]

    pre_activations, values = mlp.forward(layers, names, x)
    _, output_gradient = mlp.LOSSES[loss](values[-1], target)
    gradients = mlp.backward(layers, names, pre_activations, values, output_gradient)
    for pair, gradient_pair in zip(layers, gradients, strict=True):
        for parameter, gradient in zip(pair, gradient_pair, strict=True):
            np.testing.assert_allclose(gradient, central_difference(value, parameter), rtol=1e-5, atol=1e-8)


def test_activations_and_their_derivatives_match_torch() -> None:
    functions = {
        "linear": lambda z: z,
        "relu": torch.relu,
        "leaky_relu": torch.nn.functional.leaky_relu,
        "elu": torch.nn.functional.elu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "swish": torch.nn.functional.silu,
    }
    points = np.array([-30.0, -2.0, -0.1, 0.0, 0.1, 2.0, 30.0])
    assert functions.keys() == mlp.ACTIVATIONS.keys() == mlp.DERIVATIVES.keys()
    for name, function in functions.items():
        z = torch.tensor(points, dtype=torch.float64, requires_grad=True)
        h = function(z) * 1.0
        (derivative,) = torch.autograd.grad(h.sum(), z)
        np.testing.assert_allclose(mlp.ACTIVATIONS[name](points), h.detach().numpy(), rtol=1e-12, atol=1e-300)
        np.testing.assert_allclose(mlp.DERIVATIVES[name](points), derivative.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss", sorted(mlp.LOSSES))
def test_losses_match_torch(loss: str) -> None:
    generator = np.random.default_rng(2)
    output = generator.normal(size=(4, 3))
    out = torch.tensor(output, requires_grad=True)
    if loss == "cross_entropy":
        target = generator.integers(3, size=4)
        expected = torch.nn.functional.cross_entropy(out, torch.tensor(target))
    else:
        target = generator.normal(size=(4, 3))
        expected = ((out - torch.tensor(target)) ** 2).sum(-1).mean()
    (gradient,) = torch.autograd.grad(expected, out)
    value, naive_gradient = mlp.LOSSES[loss](output, target)
    assert value == pytest.approx(expected.item())
    np.testing.assert_allclose(naive_gradient, gradient.numpy())


# ------------------------------------------------------------------------------------------------------------- cbp


@pytest.mark.parametrize("rule", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("l2_strength", [0.0, 0.01])
def test_a_learner_that_never_replaces_is_torch_with_that_optimizer(rule: str, l2_strength: float) -> None:
    layers = random_layers([3, 5, 4, 2])
    tensors = [torch.tensor(p, requires_grad=True) for pair in layers for p in pair]
    if rule == "adam":
        optimizer, theirs = cbp.Adam(0.01), torch.optim.Adam(tensors, lr=0.01, weight_decay=l2_strength)
    else:
        momentum = 0.9 if rule == "momentum" else 0.0
        optimizer = cbp.SGD(0.01, momentum)
        theirs = torch.optim.SGD(tensors, lr=0.01, momentum=momentum, weight_decay=l2_strength)
    learner = cbp.NaiveCBP(
        layers,
        "tanh",
        layer_names=["0", "2", "4"],
        optimizer=optimizer,
        scales=[1.0, 1.0],
        replacement_rate=0.0,
        l2_strength=l2_strength,
    )
    generator = np.random.default_rng(3)
    for _ in range(50):
        x, target = generator.normal(size=(4, 3)), generator.normal(size=(4, 2))
        loss = learner.step(x, target)
        h = torch.tensor(x)
        h = torch.tanh(h @ tensors[0].T + tensors[1])
        h = torch.tanh(h @ tensors[2].T + tensors[3])
        value = ((h @ tensors[4].T + tensors[5] - torch.tensor(target)) ** 2).sum(-1).mean()
        theirs.zero_grad()
        value.backward()
        theirs.step()
        assert loss == pytest.approx(value.item())
    ours = [p for pair in learner.layers for p in pair]
    for mine, tensor in zip(ours, tensors, strict=True):
        np.testing.assert_allclose(mine, tensor.detach().numpy(), rtol=1e-9, atol=1e-12)
    assert learner.replaced == [[]] * 50


def hand_learner(utility: cbp.Utility = "overall", **settings: object) -> cbp.NaiveCBP:
    """One input, two linear units with incoming weights 2 and -1, outgoing 3 and 0.5; gradients change nothing."""
    layers = [(np.array([[2.0], [-1.0]]), np.zeros(2)), (np.array([[3.0, 0.5]]), np.zeros(1))]
    options: dict[str, object] = {"decay_rate": 0.5, "maturity_threshold": 1, "replacement_rate": 0.5} | settings
    return cbp.NaiveCBP(
        layers,
        "linear",
        layer_names=["0", "2"],
        optimizer=cbp.SGD(0.0, 0.9),
        scales=[0.25],
        utility=utility,
        **options,  # pyright: ignore[reportArgumentType]
    )


# First step: h = (2, -1) for x = 1, f = h / 2, f-hat = h, so the centred parts are 0. Second: h = (6, -3) for x = 3,
# f = (1, -0.5) / 2 + (6, -3) / 2 = (3.5, -1.75), f-hat = f / 0.75 = (14/3, -7/3), |h - f-hat| = (4/3, 2/3).
# u after both steps = y1 / 4 + y2 / 2, u-hat = u / 0.75 = y1 / 3 + 2 y2 / 3.
@pytest.mark.parametrize(
    ("utility", "expected"),
    [
        ("overall", [2 / 3 * (4 / 3 * 3 / 2), 2 / 3 * (2 / 3 * 0.5 / 1)]),
        ("mean_corrected_contribution", [2 / 3 * (4 / 3 * 3), 2 / 3 * (2 / 3 * 0.5)]),
        ("contribution", [6 / 3 + 2 / 3 * 18, 0.5 / 3 + 2 / 3 * 1.5]),
        ("adaptation", [0.5, 1.0]),
        ("weight_magnitude", [3.0, 0.5]),
    ],
)
def test_utilities_match_two_steps_by_hand(utility: cbp.Utility, expected: list[float]) -> None:
    learner = hand_learner(utility, replacement_rate=0.0)
    for x in (1.0, 3.0):
        learner.step(np.array([[x]]), np.zeros((1, 1)))
    np.testing.assert_allclose(learner.mean[0], [3.5, -1.75])
    np.testing.assert_allclose(learner.mean_hat[0], [14 / 3, -7 / 3])
    np.testing.assert_allclose(learner.score[0], expected)


def test_a_batch_averages_magnitudes_not_values() -> None:
    learner = hand_learner(replacement_rate=0.0)
    learner.step(np.array([[1.0], [-1.0]]), np.zeros((2, 1)))
    np.testing.assert_allclose(learner.mean_hat[0], [0.0, 0.0])
    np.testing.assert_allclose(learner.score[0], [2 * 3 / 2, 1 * 0.5 / 1])


def test_a_replacement_matches_the_hand_computed_network() -> None:
    learner = hand_learner(seed=5)
    learner.step(np.array([[1.0]]), np.zeros((1, 1)))
    assert learner.replaced == [[]]  # age 1 is not above the threshold 1
    assert learner.accumulator == [0.0]
    learner.step(np.array([[3.0]]), np.zeros((1, 1)))
    assert learner.replaced == [[], [("0", 1)]]  # two eligible units times 0.5 make one, the less useful one
    (weight, bias), (next_weight, next_bias) = learner.layers
    fresh = 0.25 * (2 * philox.uniform(5, 2, "0.weight", 1, 1) - 1)
    np.testing.assert_array_equal(weight, [[2.0], fresh])
    np.testing.assert_array_equal(bias, [0.0, 0.0])
    np.testing.assert_array_equal(next_weight, [[3.0, 0.0]])
    np.testing.assert_allclose(next_bias, [-7 / 3 * 0.5])
    momentum = learner.optimizer.state["momentum"]
    assert momentum[0][0][0, 0] != 0.0
    assert momentum[0][0][1, 0] == 0.0
    assert momentum[0][1][1] == 0.0
    assert momentum[1][0][0, 0] != 0.0
    assert momentum[1][0][0, 1] == 0.0
    assert momentum[1][1][0] != 0.0  # the consumer's bias is changed but not reset
    np.testing.assert_array_equal(learner.age[0], [2, 0])
    assert learner.mean[0][1] == learner.utility[0][1] == 0.0


def test_without_compensation_the_consumer_bias_stays() -> None:
    learner = hand_learner(compensate=False)
    for x in (1.0, 3.0):
        learner.step(np.array([[x]]), np.zeros((1, 1)))
    assert learner.replaced[-1] == [("0", 1)]
    np.testing.assert_array_equal(learner.layers[1][1], [0.0])


def test_a_unit_replaced_in_two_layers_at_once_gets_fresh_weights_from_the_later_layer() -> None:
    learner = cbp.NaiveCBP(
        random_layers([2, 2, 2, 1]),
        "tanh",
        layer_names=["a", "b", "c"],
        optimizer=cbp.Adam(0.01),
        scales=[0.5, 0.5],
        replacement_rate=1.0,
        maturity_threshold=0,
    )
    learner.step(np.ones((1, 2)), np.ones((1, 1)))
    assert sorted(learner.replaced[0]) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    for unit in range(2):
        np.testing.assert_array_equal(
            learner.layers[1][0][unit], 2 * 0.5 * philox.uniform(0, 1, "b.weight", unit, 2) - 0.5
        )
    np.testing.assert_array_equal(learner.layers[1][1], 0.0)  # the earlier layer's compensation is gone with the reset
    np.testing.assert_array_equal(learner.layers[2][0], 0.0)
    assert learner.layers[2][1][0] != 0.0
    assert all(not np.any(state[layer][0]) for state in learner.optimizer.state.values() for layer in range(3))


def test_ties_go_to_the_lowest_index_and_ranks_are_lowest_first() -> None:
    units, rest = cbp.choose_units(
        [0.0, 2.0, 0.0, 1.0, 0.0],
        [9, 9, 5, 9, 9],
        0.0,
        replacement_rate=0.75,
        maturity_threshold=5,
        count="eligible",
    )
    assert (units, rest) == ([0, 4, 3], 0.0)  # unit 2 has age 5, which is not above 5


def test_counting_eligible_units_carries_fractions_and_counting_the_layer_drops_what_cannot_be_paid() -> None:
    def choose(ages: list[int], accumulator: float, rate: float, count: cbp.Count) -> tuple[list[int], float]:
        return cbp.choose_units(
            [0.0] * len(ages), ages, accumulator, replacement_rate=rate, maturity_threshold=0, count=count
        )

    assert choose([0, 0, 0, 0], 0.25, 0.5, "eligible") == ([], 0.25)
    assert choose([0, 0, 0, 0], 0.25, 0.5, "layer") == ([], 0.25)  # no debt while nothing is eligible
    assert choose([1, 0, 0, 0], 0.25, 0.5, "eligible") == ([], 0.75)
    assert choose([1, 0, 0, 0], 0.25, 0.5, "layer") == ([0], 0.25)  # 2.25: one can be paid, the other is dropped
    assert choose([1, 1, 0, 0], 0.25, 0.5, "eligible") == ([0], 0.25)
    assert choose([1, 1, 1, 1], 0.0, 0.5, "layer") == ([0, 1], 0.0)


def test_a_reset_weight_restarts_adam_at_its_first_step() -> None:
    learner = cbp.NaiveCBP(
        random_layers([3, 4, 2]),
        "tanh",
        layer_names=["0", "2"],
        optimizer=cbp.Adam(0.01),
        scales=[0.5],
        replacement_rate=0.25,
        maturity_threshold=9,
    )
    generator = np.random.default_rng(4)
    for _ in range(10):
        learner.step(generator.normal(size=(4, 3)), generator.normal(size=(4, 2)))
    ((_, unit),) = learner.replaced[-1]
    steps = learner.optimizer.state["time_step"]
    expected = np.full(4, 10.0)
    expected[unit] = 0.0
    np.testing.assert_array_equal(steps[0][0], np.repeat(expected[:, None], 3, axis=1))
    np.testing.assert_array_equal(steps[0][1], expected)
    np.testing.assert_array_equal(steps[1][0], np.repeat(expected[None, :], 2, axis=0))
    np.testing.assert_array_equal(steps[1][1], [10.0, 10.0])
    before = learner.layers[1][0][:, unit].copy()
    learner.step(generator.normal(size=(4, 3)), generator.normal(size=(4, 2)))
    # Adam's first step is the step size, whatever the gradient
    np.testing.assert_allclose(np.abs(learner.layers[1][0][:, unit] - before), 0.01, rtol=1e-4)


def test_perturbation_adds_the_named_draws_to_weights_and_biases() -> None:
    learner = hand_learner(noise_std=0.125, replacement_rate=0.0, seed=9)
    old = [(weight.copy(), bias.copy()) for weight, bias in learner.layers]
    learner.step(np.array([[1.0]]), np.zeros((1, 1)))
    for row in range(2):
        noise = 0.125 * philox.normal(9, 1, "0.weight/perturb", row, 1)
        np.testing.assert_array_equal(learner.layers[0][0][row], old[0][0][row] + noise)
    noise = 0.125 * philox.normal(9, 1, "2.weight/perturb", 0, 2)
    np.testing.assert_array_equal(learner.layers[1][0][0], old[1][0][0] + noise)
    np.testing.assert_array_equal(learner.layers[0][1], 0.125 * philox.normal(9, 1, "0.bias/perturb", 0, 2))


@pytest.mark.parametrize("utility", ["overall", "random"])
def test_two_thousand_steps_are_quick_and_replace_at_the_asked_rate(utility: cbp.Utility) -> None:
    learner = cbp.NaiveCBP(
        random_layers([6, 8, 7, 3]),
        "relu",
        layer_names=["0", "2", "4"],
        optimizer=cbp.Adam(0.001),
        loss="cross_entropy",
        scales=[0.5, 0.5],
        replacement_rate=0.01,
        maturity_threshold=20,
        utility=utility,
        noise_std=1e-4,
    )
    generator = np.random.default_rng(6)
    start = time.perf_counter()
    for _ in range(2000):
        learner.step(generator.normal(size=(4, 6)), generator.integers(3, size=4))
    assert time.perf_counter() - start < 30.0
    # eligible units settle at n / (1 + rho * m)
    expected = 2000 * 0.01 * 15 / (1 + 0.01 * 20)
    assert sum(len(tick) for tick in learner.replaced) == pytest.approx(expected, rel=0.1)


# ------------------------------------------------------------------------------------------------------------ conv


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (1, 1), (2, 0), (2, 1)])
def test_convolution_and_pooling_match_torch(stride: int, padding: int) -> None:
    generator = np.random.default_rng(7)
    x = generator.normal(size=(2, 3, 7, 6))
    weight, bias = generator.normal(size=(4, 3, 3, 2)), generator.normal(size=4)
    expected = torch.nn.functional.conv2d(
        torch.tensor(x), torch.tensor(weight), torch.tensor(bias), stride=stride, padding=padding
    )
    np.testing.assert_allclose(conv.conv2d(x, weight, bias, stride, padding), expected.numpy())
    average = torch.nn.functional.avg_pool2d(torch.tensor(x), 2, stride)
    largest = torch.nn.functional.max_pool2d(torch.tensor(x), 2, stride)
    np.testing.assert_allclose(conv.pool2d(x, "avg", 2, stride), average.numpy())
    np.testing.assert_allclose(conv.pool2d(x, "max", 2, stride), largest.numpy())


@pytest.mark.parametrize("utility", UTILITIES)
@pytest.mark.parametrize("count", ["eligible", "layer"])
def test_the_conv_reference_on_linear_layers_is_the_mlp_reference(utility: cbp.Utility, count: cbp.Count) -> None:
    names, scales = ["0", "2", "4"], [0.5, 0.4]
    learner = cbp.NaiveCBP(
        random_layers([4, 6, 5, 2]),
        "relu",
        layer_names=names,
        optimizer=cbp.Adam(0.01),
        scales=scales,
        replacement_rate=0.05,
        maturity_threshold=3,
        utility=utility,
        count=count,
        seed=11,
    )
    other = conv.NaiveConvCBP(
        layer_names=names,
        scales=scales,
        replacement_rate=0.05,
        maturity_threshold=3,
        utility=utility,
        count=count,
        seed=11,
    )
    generator = np.random.default_rng(8)
    for _ in range(60):
        learner.ticks += 1
        _, hidden = learner.learn(generator.normal(size=(3, 4)), generator.normal(size=(3, 2)))
        layers = [(weight.copy(), bias.copy()) for weight, bias in learner.layers]
        moments = [[(w.copy(), b.copy()) for w, b in state] for state in learner.optimizer.state.values()]
        learner.reinitialize(hidden)
        assert other.tick(hidden, layers, moments) == learner.replaced[-1]
        for mine, theirs in zip([layers, *moments], [learner.layers, *learner.optimizer.state.values()], strict=True):
            for pair, other_pair in zip(mine, theirs, strict=True):
                np.testing.assert_allclose(pair[0], other_pair[0], rtol=1e-12, atol=1e-15)
                np.testing.assert_allclose(pair[1], other_pair[1], rtol=1e-12, atol=1e-15)
    assert sum(len(tick) for tick in learner.replaced) > 5


def test_a_flattened_channel_weighs_every_position_by_its_own_column() -> None:
    # one channel, positions with values 1 and 3, columns with weights 10 and 0
    h = np.array([1.0, 3.0]).reshape(1, 1, 1, 2)
    incoming, consumer = np.full((1, 1, 2, 2), -0.5), np.array([[10.0, 0.0]])
    start = conv.Statistics.start(1, 2)
    overall = conv.measure(start, h, incoming, consumer, utility="overall", decay_rate=0.9)
    np.testing.assert_allclose(overall.mean_hat, [2.0])
    np.testing.assert_allclose(overall.column_mean_hat, [[1.0, 3.0]])
    np.testing.assert_allclose(overall.score, [(1 * 10 + 1 * 0) / 2 / 0.5])
    contribution = conv.measure(start, h, incoming, consumer, utility="contribution", decay_rate=0.9)
    np.testing.assert_allclose(contribution.score, [(1 * 10 + 3 * 0) / 2])
    np.testing.assert_allclose(conv.compensation(overall, [0], consumer), [10.0])  # the channel's mean would give 20


def test_a_tap_mean_counts_the_padding_that_the_tap_sees() -> None:
    # input (1, 2) in one row, kernel 1 x 3 would need padding in the width only; padding 1 pads the rows too
    h = np.array([1.0, 2.0]).reshape(1, 1, 1, 2)
    means = conv.consumed_columns(h, np.zeros((1, 1, 3, 3)), stride=1, padding=1).reshape(3, 3)
    np.testing.assert_allclose(means, [[0, 0, 0], [0.5, 1.5, 1.0], [0, 0, 0]])
    strided = conv.consumed_columns(h, np.zeros((1, 1, 3, 3)), stride=2, padding=1).reshape(3, 3)
    np.testing.assert_allclose(strided, [[0, 0, 0], [0, 1, 2], [0, 0, 0]])


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (1, 1), (2, 1)])
@pytest.mark.parametrize("pool", [None, "avg", "max"])
def test_compensation_keeps_every_consumers_mean_pre_activation(stride: int, padding: int, pool: str | None) -> None:
    generator = np.random.default_rng(10)
    x = generator.normal(size=(3, 2, 8, 8))

    def read(values: np.ndarray) -> np.ndarray:
        values = np.maximum(values, 0.0)
        return values if pool is None else conv.pool2d(values, pool, 2, 2)

    first = (generator.normal(size=(3, 2, 3, 3)), generator.normal(size=3))
    second = (generator.normal(size=(4, 3, 3, 3)), generator.normal(size=4))
    h1 = read(conv.conv2d(x, *first))
    before_second = conv.conv2d(h1, *second, stride, padding)
    h2 = np.maximum(before_second, 0.0)
    flat = h2.reshape(3, -1)
    third = (generator.normal(size=(5, flat.shape[1])), generator.normal(size=5))
    before_third = flat @ third[0].T + third[1]

    # one hidden layer at a time, so that the layer above is still there to look at
    lower = conv.NaiveConvCBP(
        layer_names=["0", "1"],
        scales=[0.1],
        strides=[1, stride],
        paddings=[0, padding],
        replacement_rate=1 / 3,
        maturity_threshold=4,
    )
    upper = conv.NaiveConvCBP(layer_names=["1", "2"], scales=[0.1], replacement_rate=0.5, maturity_threshold=4)
    second_copy = (second[0].copy(), second[1].copy())
    for _ in range(5):
        lower.tick([h1], [first, second])
        upper.tick([h2], [second_copy, third])
    assert len(lower.replaced[-1]) == 1
    assert len(upper.replaced[-1]) == 2
    after_second = conv.conv2d(h1, *second, stride, padding)
    np.testing.assert_allclose(after_second.mean(axis=(0, 2, 3)), before_second.mean(axis=(0, 2, 3)))
    assert not np.allclose(after_second, before_second)
    np.testing.assert_allclose((flat @ third[0].T + third[1]).mean(axis=0), before_third.mean(axis=0))
    positions = h2[0, 0].size
    for _, unit in upper.replaced[-1]:
        assert not np.any(third[0][:, unit * positions : (unit + 1) * positions])
        np.testing.assert_array_equal(
            second_copy[0][unit].ravel(), 0.1 * (2 * philox.uniform(0, 5, "1.weight", unit, 27) - 1)
        )


# ----------------------------------------------------------------------------------------------------- online norm


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


# --------------------------------------------------------------------------------------------------------- metrics


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
