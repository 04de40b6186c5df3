"""The naive continual backpropagation: gradients, torch's own optimizers, cases by hand."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from reference import cbp, mlp, philox
from support.reference_nets import central_difference, random_layers

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
    # Adam's first step is the step size for every gradient
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
