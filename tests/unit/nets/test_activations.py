"""Activation functions against naive transcriptions, by name, in a stack, and after a resume."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from neoteny.draws import rng
from neoteny.methods.remedies import REMEDIES
from neoteny.nets import AID, MLP, ConvNet, CReLU, DeepFourier, RandomizedSmoothLeaky, SmoothLeaky
from neoteny.nets.activations import features_per_unit, gain, make_activation
from reference import activations as naive
from support.stacked_nets import assert_stack_equals_alone

pytestmark = pytest.mark.usefixtures("double_precision")

NEW = ["crelu", "fourier", "aid(p=0.8)", "smooth_leaky", "randomized_smooth_leaky"]
ROW = [-2.5, -1.0, -0.1, 0.0, 0.3, 1.0, 4.0]


def forward_and_backward(layer: nn.Module, row: list[float]) -> tuple[list[float], list[float], list[float]]:
    """Values at a row, a random gradient of them, and the gradient of the row."""
    x = torch.tensor([row], requires_grad=True)
    y = layer(x)
    gradient = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return y[0].tolist(), gradient[0].tolist(), torch.autograd.grad(y, x, gradient)[0][0].tolist()


@pytest.mark.parametrize(
    ("layer", "forward", "backward"),
    [
        (CReLU(), naive.crelu, naive.crelu_backward),
        (DeepFourier(), naive.fourier, naive.fourier_backward),
    ],
    ids=["crelu", "fourier"],
)
def test_a_pair_and_its_gradient_are_the_naive_ones(
    layer: nn.Module,
    forward: Callable[[list[float]], list[float]],
    backward: Callable[[list[float], list[float]], list[float]],
) -> None:
    values, gradient, found = forward_and_backward(layer, ROW)
    np.testing.assert_allclose(values, forward(ROW), rtol=1e-15, atol=1e-15)
    np.testing.assert_allclose(found, backward(ROW, gradient), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("settings", [(0.1, 5.0, 3.0), (0.3, 1.0, 2.0)], ids=str)
def test_smooth_leaky_and_its_slope_are_the_naive_ones(settings: tuple[float, float, float]) -> None:
    values, gradient, found = forward_and_backward(SmoothLeaky(*settings), ROW)
    np.testing.assert_allclose(values, naive.smooth_leaky(ROW, *settings), rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(
        found, np.multiply(gradient, naive.smooth_leaky_slope(ROW, *settings)), rtol=1e-13, atol=1e-15
    )


@pytest.mark.parametrize("p", [0.0, 0.3, 0.9, 1.0])
def test_aid_is_the_naive_one_at_documented_draws(p: float) -> None:
    layer, x = AID(p), torch.randn(3, 2, 5)
    for step in range(3):
        draws = rng.uniform(layer.seed, step, "aid", torch.arange(3), 10).flatten().tolist()
        expected = naive.aid_training(x.flatten().tolist(), draws, p)
        np.testing.assert_array_equal(layer(x).flatten().tolist(), expected)
    assert layer.step.item() == 3
    np.testing.assert_allclose(
        layer.eval()(x).flatten().tolist(), naive.aid_evaluation(x.flatten().tolist(), p), rtol=1e-15
    )
    assert layer.step.item() == 3


def test_the_randomized_slope_is_drawn_within_its_bounds_and_averaged_in_evaluation() -> None:
    layer, x = RandomizedSmoothLeaky(0.2, 0.4), torch.randn(4, 6)
    for step in range(3):
        draws = rng.uniform(layer.seed, step, "smooth_leaky", torch.arange(4), 6).flatten().tolist()
        pairs = zip(x.flatten().tolist(), draws, strict=True)
        expected = [naive.smooth_leaky([v], 0.2 + 0.2 * u, 5.0, 3.0)[0] for v, u in pairs]
        np.testing.assert_allclose(layer(x).flatten().tolist(), expected, rtol=1e-14)
    torch.testing.assert_close(layer.eval()(x), SmoothLeaky(0.3)(x), rtol=1e-14, atol=1e-15)


def test_aid_with_p_1_is_relu_with_its_gradients() -> None:
    assert forward_and_backward(AID(1.0), ROW) == forward_and_backward(nn.ReLU(), ROW)


def test_layer_norm_comes_before_each_activation_and_is_the_naive_one() -> None:
    net = MLP(5, [6, 4], 2, normalization="layer")
    assert [name for name, _ in net.named_children()] == ["fc1", "norm1", "act1", "fc2", "norm2", "act2", "out"]
    norm = net.get_submodule("norm1")
    assert isinstance(norm, nn.LayerNorm)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(3, 6)
    expected = naive.layer_norm(x.numpy(), norm.weight.detach().numpy(), norm.bias.detach().numpy())
    np.testing.assert_allclose(norm(x).detach().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_layer_norm_behind_a_convolution_runs_over_channels_and_positions() -> None:
    net = ConvNet(filters=(4, 4, 4), units=6, normalization="layer")
    names = [name for name, _ in net.named_children()]
    assert names[:4] == ["conv1", "norm1", "act1", "pool1"]
    assert names[-7:] == ["fc1", "norm4", "act4", "fc2", "norm5", "act5", "out"]
    y = net.get_submodule("norm1")(torch.randn(3, 4, 5, 5) * 3 + 2)
    torch.testing.assert_close(y.mean((1, 2, 3)), torch.zeros(3), rtol=0, atol=1e-12)
    torch.testing.assert_close(y.var((1, 2, 3), unbiased=False), torch.ones(3), rtol=0, atol=1e-4)
    assert net.get_submodule("norm1").weight.shape == (4,)


def test_widths_with_pairs() -> None:
    def shapes(name: str) -> list[tuple[int, ...]]:
        return [tuple(p.shape) for p in MLP(7, [6, 4], 2, name).parameters() if p.dim() == 2]

    assert shapes("relu") == [(6, 7), (4, 6), (2, 4)]
    assert shapes("crelu") == [(6, 7), (4, 12), (2, 8)]
    assert shapes("fourier") == [(3, 7), (2, 6), (2, 4)]
    conv = [tuple(p.shape) for p in ConvNet(filters=(4, 6, 8), units=10, activation="fourier").parameters()]
    assert conv[::2] == [(2, 3, 5, 5), (3, 4, 3, 3), (4, 6, 3, 3), (5, 32), (5, 10), (2, 10)]


@pytest.mark.parametrize("name", ["relu", "crelu", "fourier", "aid", "smooth_leaky", "swish"])
def test_the_gain_keeps_the_size_of_a_signal(name: str) -> None:
    """A Kaiming-uniform layer has variance gain^2 / inputs; pre-activations stay near 1 with it."""
    torch.manual_seed(0)
    layer = make_activation(name)
    z = torch.randn(2000, 256) * (1.0 if name != "fourier" else 5.0)
    y = layer(z)
    assert y.shape[1] == 256 * features_per_unit(name)
    size = gain(name) * float(y.square().mean().sqrt())
    target = {"fourier": 1.0, "swish": 0.84, "smooth_leaky": 0.9}.get(name, 1.0)
    assert size == pytest.approx(target, rel=0.05)


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("normalization", [None, "layer"])
def test_a_network_trains_in_a_stack_as_alone(name: str, normalization: str | None) -> None:
    assert_stack_equals_alone(lambda: MLP(5, [6, 4], 3, name, normalization=normalization), steps=20)


@pytest.mark.parametrize("name", NEW)
def test_a_layer_goes_on_from_its_state_dict(name: str) -> None:
    layer, x = make_activation(name), torch.randn(4, 6)
    layer(x)
    resumed = make_activation(name)
    resumed.load_state_dict(copy.deepcopy(layer.state_dict()))
    for _ in range(3):
        assert torch.equal(layer(x), resumed(x))


@pytest.mark.parametrize("name", ["aid", "randomized_smooth_leaky"])
def test_two_layers_draw_apart_and_manual_seed_reproduces_them(name: str) -> None:
    def draws() -> list[Tensor]:
        torch.manual_seed(5)
        return [make_activation(name)(torch.full((20, 20), -1.0)) for _ in range(2)]

    first, second = draws()
    assert torch.equal(draws()[0], first)
    assert not torch.equal(first, second)


def test_half_precision_stays_half_precision() -> None:
    for name in NEW:
        assert make_activation(name)(torch.randn(3, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smoth_leaky", "Did you mean 'smooth_leaky'?"),
        ("aid(q=0.9)", "has no option 'q'. Its options: p."),
        ("aid(p=2)", "AID: p must be a probability, from 0 to 1; got 2.0."),
        ("aid(p=x)", 'options are written as "aid(option=number)"'),
        ("aid(0.9)", 'options are written as "aid(option=number)"'),
        ("aid(p=0.9", 'options are written as "aid(option=number)"'),
        ("tanh(slope=1)", "Its options: none."),
        ("smooth_leaky(c=0)", "c must be a number above 0; got 0.0."),
        ("smooth_leaky(alpha=-1)", "alpha must be a number in [0, 1]; got -1.0."),
        ("randomized_smooth_leaky(lower=0.5, upper=0.1)", "lower must be at most upper; got 0.5 and 0.1."),
    ],
)
def test_a_wrong_name_or_option_is_explained(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        make_activation(name)
    assert message in str(error.value)


def test_wrong_shapes_and_widths_are_explained() -> None:
    with pytest.raises(ValueError, match="widths must be even; got 5"):
        MLP(4, [5], 2, "fourier")
    with pytest.raises(ValueError, match="not that of the examples; got 0"):
        CReLU(0)
    with pytest.raises(ValueError, match=r"x must have an axis of examples and axis 1 beside it; got \(4,\)"):
        CReLU()(torch.ones(4))
    with pytest.raises(ValueError, match=r"AID: x must have shape \(batch, features, ...\), got \(4,\)"):
        AID()(torch.ones(4))
    with pytest.raises(ValueError, match="normalization must be None or \"layer\", got 'online'"):
        ConvNet(normalization="online")
    with pytest.raises(ValueError, match='pooling must be "max" or "average", got \'mean\''):
        ConvNet(pooling="mean")


def test_average_pooling() -> None:
    net = ConvNet(filters=(2, 2, 2), units=4, activation="aid(p=0.9)", pooling="average")
    assert isinstance(net.get_submodule("pool2"), nn.AvgPool2d)
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, 2)


@pytest.mark.parametrize("name", REMEDIES)
def test_every_remedy_says_how_to_get_it(name: str) -> None:
    remedy = REMEDIES[name]
    net = eval(remedy.use.replace("...", "4, [6], 2"), {"MLP": MLP})
    made = {type(child).__name__: type(child) for child in net.modules()}
    assert name in made
    if name != "LayerNorm":
        assert (made[name].__doc__ or "").partition("\n")[0] == remedy.what
    assert remedy.card.family == "networks"
