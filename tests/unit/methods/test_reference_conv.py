"""The naive convolutions: torch's own functions, the linear reference, kept means."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from reference import cbp, conv, philox
from support.reference_nets import random_layers

UTILITIES: list[cbp.Utility] = [
    "overall",
    "mean_corrected_contribution",
    "contribution",
    "adaptation",
    "weight_magnitude",
    "random",
]


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
