"""Networks: shapes, initial distributions, and layers that behave alike alone and inside a stack."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state

from neoteny.draws import rng
from neoteny.nets import MLP, ConvNet, Dropout, OnlineNorm
from reference.online_norm import NaiveOnlineNorm

pytestmark = pytest.mark.usefixtures("double_precision")


def train_alone(net: nn.Module, inputs: Tensor, step_size: float) -> Tensor:
    """Plain SGD on sum(output^2 - output); the losses (steps,)."""
    losses = []
    for x in inputs:
        output = net(x)
        loss = (output.square() - output).mean()
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter.sub_(step_size * gradient)
        losses.append(loss.detach())
    return torch.stack(losses)


def train_stacked(nets: list[nn.Module], inputs: Tensor, step_size: float) -> tuple[Tensor, dict[str, Tensor]]:
    """The same for R networks under vmap with autograd outside; losses (steps, R) and the final stacked state."""
    parameters, buffers = stack_module_state(nets)
    skeleton = copy.deepcopy(nets[0]).to("meta")
    forward = torch.vmap(lambda p, b, x: functional_call(skeleton, (p, b), (x,)))
    losses = []
    for x in inputs:  # (R, B, F)
        output = forward(parameters, buffers, x)
        loss = (output.square() - output).mean((-2, -1))
        gradients = torch.autograd.grad(loss.sum(), list(parameters.values()))
        with torch.no_grad():
            for parameter, gradient in zip(parameters.values(), gradients, strict=True):
                parameter.sub_(step_size * gradient)
        losses.append(loss.detach())
    return torch.stack(losses), {**parameters, **buffers}


def assert_stack_equals_alone(make: Callable[[], nn.Module], steps: int = 50, batch: int = 4) -> None:
    """Three networks in a stack against the same three alone: losses, parameters, buffers."""
    nets = [make() for _ in range(3)]
    inputs = torch.randn(steps, 3, batch, 5)
    losses, state = train_stacked([copy.deepcopy(net) for net in nets], inputs, 0.05)
    for run, net in enumerate(nets):
        expected = train_alone(net, inputs[:, run], 0.05)
        torch.testing.assert_close(losses[:, run], expected, rtol=1e-12, atol=1e-12)
        for name, tensor in net.state_dict().items():
            torch.testing.assert_close(state[name][run], tensor, rtol=1e-12, atol=1e-12)


# MLP.


@pytest.mark.parametrize(
    ("activation", "gain"),
    [
        ("relu", math.sqrt(2)),
        ("leaky_relu", math.sqrt(2 / (1 + 0.01**2))),
        ("tanh", 5 / 3),
        ("sigmoid", 1.0),
        ("elu", math.sqrt(2)),
        ("swish", math.sqrt(2)),
    ],
)
def test_mlp_starts_from_the_papers_distribution(activation: str, gain: float) -> None:
    net = MLP(300, [200, 100], 50, activation)
    for name, layer_gain in (("fc1", gain), ("fc2", gain), ("out", 1.0)):
        layer = net.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        bound = layer_gain * math.sqrt(3 / layer.in_features)
        assert 0.999 * bound < layer.weight.abs().max().item() <= bound
        assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
        assert not layer.bias.any()
    assert net(torch.randn(7, 300)).shape == (7, 50)


def test_mlp_with_default_init_is_torchs_own() -> None:
    torch.manual_seed(3)
    net = MLP(4, [3], 2, init="default")
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_mlp_names_its_layers_in_order() -> None:
    net = MLP(4, [3, 3], 2, dropout=0.1, normalization="online")
    hidden = ["fc1", "norm1", "act1", "drop1", "fc2", "norm2", "act2", "drop2"]
    assert [name for name, _ in net.named_children()] == [*hidden, "out"]
    assert [name for name, _ in MLP(4, [], 2).named_children()] == ["out"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "rleu"}, "got 'rleu'; did you mean 'relu'?"),
        ({"activation": "rleu", "hidden": []}, "got 'rleu'; did you mean 'relu'?"),
        ({"dropout": 1.0}, "p must be at least 0 and below 1, got 1.0"),
        ({"normalization": "batch"}, "normalization must be None or \"online\", got 'batch'"),
        ({"init": "lecun"}, "got 'lecun'"),
        ({"hidden": [0]}, "at least 1, got [4, 0, 2]"),
        ({"inputs": 4.0}, "at least 1, got [4.0, 3, 2]"),
    ],
    ids=str,
)
def test_mlp_refuses_bad_arguments(options: dict[str, object], message: str) -> None:
    arguments = {"inputs": 4, "hidden": [3], "outputs": 2, **options}
    with pytest.raises(ValueError, match=r".") as error:
        MLP(**arguments)  # type: ignore[arg-type]
    assert message in str(error.value)


@pytest.mark.parametrize("batch", [1, 4])
def test_mlp_with_everything_trains_in_a_stack_as_alone(batch: int) -> None:
    assert_stack_equals_alone(lambda: MLP(5, [6, 4], 3, "tanh", dropout=0.2, normalization="online"), batch=batch)


def test_mlp_with_everything_under_vmap_of_grad_equals_alone() -> None:
    nets: list[nn.Module] = [MLP(5, [6], 3, dropout=0.2, normalization="online") for _ in range(3)]
    parameters, buffers = stack_module_state([copy.deepcopy(net) for net in nets])

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(nets[0], (p, b), (x,)).square().sum()

    for _ in range(10):
        x = torch.randn(3, 4, 5)
        stacked = torch.vmap(grad(loss))({name: p.detach() for name, p in parameters.items()}, buffers, x)
        for run, net in enumerate(nets):
            alone = torch.autograd.grad(net(x[run]).square().sum(), list(net.parameters()))
            for (name, _), gradient in zip(net.named_parameters(), alone, strict=True):
                torch.testing.assert_close(stacked[name][run], gradient, rtol=1e-12, atol=1e-12)
            for name, buffer in net.named_buffers():
                torch.testing.assert_close(buffers[name][run], buffer, rtol=1e-12, atol=1e-12)


# ConvNet.


@pytest.mark.parametrize(("pool_stride", "inputs"), [(2, 512), (1, 56_448)])
def test_convnet_has_the_papers_shapes(pool_stride: int, inputs: int) -> None:
    net = ConvNet(pool_stride=pool_stride)
    assert net.fc1.in_features == inputs
    shapes = [tuple(p.shape) for p in net.parameters() if p.dim() > 1]
    assert shapes == [(32, 3, 5, 5), (64, 32, 3, 3), (128, 64, 3, 3), (128, inputs), (128, 128), (2, 128)]
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, 2)


def test_convnet_kaiming_bounds_count_the_kernel() -> None:
    conv = ConvNet(init="kaiming_uniform").get_submodule("conv2")
    assert isinstance(conv, nn.Conv2d)
    bound = math.sqrt(2) * math.sqrt(3 / (32 * 9))
    assert 0.999 * bound < conv.weight.abs().max().item() <= bound
    assert conv.bias is not None
    assert not conv.bias.any()


@pytest.mark.parametrize("options", [{"pool_stride": 3}, {"outputs": 0}, {"init": "zeros"}], ids=str)
def test_convnet_refuses_bad_arguments(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"got {next(iter(options.values()))!r}"):
        ConvNet(**options)  # type: ignore[arg-type]


# Dropout.


def test_dropout_keeps_the_mean_and_the_share() -> None:
    y = Dropout(0.3)(torch.ones(200, 500))
    assert (y == 0).double().mean().item() == pytest.approx(0.3, abs=0.01)
    assert set(y.unique().tolist()) == {0.0, 1 / 0.7}


def test_dropout_masks_are_the_documented_draws() -> None:
    layer = Dropout(0.4)
    x = torch.randn(3, 2, 5, requires_grad=True)
    for step in range(3):
        draws = rng.uniform(layer.seed, step, "dropout", torch.arange(3), 10).reshape(3, 2, 5)
        scale = (draws > 0.4) / 0.6
        y = layer(x)
        torch.testing.assert_close(y, x * scale, rtol=1e-15, atol=0)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], scale, rtol=1e-15, atol=0)
    assert layer.step.item() == 3


def test_dropout_in_evaluation_is_the_identity_and_leaves_no_trace() -> None:
    layer = Dropout(0.5).eval()
    x = torch.randn(4, 4)
    assert layer(x) is x
    assert layer.step.item() == 0


def test_dropout_is_reproduced_by_manual_seed_and_layers_differ() -> None:
    x = torch.ones(20, 20)
    torch.manual_seed(5)
    first, second = Dropout(0.5)(x), Dropout(0.5)(x)
    torch.manual_seed(5)
    assert torch.equal(Dropout(0.5)(x), first)
    assert not torch.equal(first, second)


def test_dropout_resumes_from_its_state_dict() -> None:
    layer, x = Dropout(0.5), torch.ones(10, 10)
    layer(x)
    resumed = Dropout(0.5)
    resumed.load_state_dict(layer.state_dict())
    for _ in range(3):
        assert torch.equal(layer(x), resumed(x))


def test_dropout_draws_the_same_masks_in_a_stack_at_other_steps() -> None:
    layers: list[nn.Module] = [Dropout(0.5) for _ in range(3)]
    for run, layer in enumerate(layers):
        layer.get_buffer("step").fill_(7 * run)
    parameters, buffers = stack_module_state(layers)
    x = torch.ones(3, 6, 8)
    for _ in range(4):
        stacked = torch.vmap(lambda b, x: functional_call(layers[0], b, (x,)))(buffers, x)
        assert torch.equal(stacked, torch.stack([layer(x[0]) for layer in layers]))
    assert parameters == {}
    assert buffers["step"].tolist() == [4, 11, 18]


def test_dropout_trains_in_a_stack_as_alone() -> None:
    assert_stack_equals_alone(lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), Dropout(0.3), nn.Linear(8, 2)))


@pytest.mark.parametrize("p", [-0.1, 1.0, math.nan])
def test_dropout_refuses_an_impossible_probability(p: float) -> None:
    with pytest.raises(ValueError, match=f"got {p}"):
        Dropout(p)


def test_dropout_refuses_a_vector() -> None:
    with pytest.raises(ValueError, match=r"got \(4,\)"):
        Dropout(0.5)(torch.ones(4))


# OnlineNorm.


@pytest.mark.parametrize("batch", [1, 6])
@pytest.mark.parametrize("layer_scaling", [True, False])
def test_online_norm_matches_the_naive_loop(batch: int, layer_scaling: bool) -> None:
    features, decays = 4, (0.98, 0.9)
    layer = OnlineNorm(features, *decays, layer_scaling=layer_scaling)
    naive = NaiveOnlineNorm(features, *decays, layer_scaling=layer_scaling)
    assert layer.weight is not None
    assert layer.bias is not None
    generator = np.random.default_rng(0)
    for _ in range(300):
        x = 2.0 + 3.0 * generator.standard_normal((batch, features))
        gradient = generator.standard_normal((batch, features)) / batch
        tensor = torch.from_numpy(x).requires_grad_()
        y = layer(tensor)
        grads = torch.autograd.grad(y, (tensor, layer.weight, layer.bias), torch.from_numpy(gradient))
        np.testing.assert_allclose(y.detach().numpy(), naive.forward(x), rtol=1e-10, atol=1e-12)
        for ours, theirs in zip(grads, naive.backward(gradient), strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-10, atol=1e-12)
        with torch.no_grad():
            layer.weight.sub_(0.01 * grads[1])
            layer.bias.sub_(0.01 * grads[2])
        naive.weight = layer.weight.detach().numpy().copy()
        naive.bias = layer.bias.detach().numpy().copy()
        states = (naive.mean, naive.variance, naive.error_y, naive.error_1)
        for ours, theirs in zip((layer.mu, layer.var, layer.ey, layer.e1), states, strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-10, atol=1e-12)


def test_online_norm_first_step_by_hand() -> None:
    layer = OnlineNorm(2, 0.9, 0.5, layer_scaling=False, affine=False, eps=3.0)  # 1 / sqrt(1 + 3) = 1/2
    x = torch.tensor([[2.0, -4.0]], requires_grad=True)
    y = layer(x)
    assert y.tolist() == [[1.0, -2.0]]
    torch.testing.assert_close(layer.mu, torch.tensor([0.2, -0.4]))
    torch.testing.assert_close(layer.var, torch.tensor([0.9 + 0.09 * 4, 0.9 + 0.09 * 16]))
    (first,) = torch.autograd.grad(y, x, torch.tensor([[1.0, 1.0]]))
    assert first.tolist() == [[0.5, 0.5]]  # the errors were zero
    assert layer.ey.tolist() == [1.0, -2.0]
    assert layer.e1.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("batch", [1, 4])
def test_online_norm_trains_in_a_stack_as_alone(batch: int) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 6), OnlineNorm(6, 0.95, 0.9), nn.Tanh(), nn.Linear(6, 2))

    assert_stack_equals_alone(make, batch=batch)


def test_online_norm_over_two_run_axes_equals_alone() -> None:
    alone = [OnlineNorm(3, 0.9, 0.8) for _ in range(6)]
    stack = copy.deepcopy(alone[0])
    parameters, buffers = stack_module_state(alone)
    parameters = {name: p.detach().reshape(2, 3, 3).requires_grad_() for name, p in parameters.items()}
    buffers = {name: b.reshape(2, 3, 3) for name, b in buffers.items()}
    once = torch.vmap(lambda p, b, x: functional_call(stack, (p, b), (x,)))
    for _ in range(5):
        x, gradient = torch.randn(2, 3, 4, 3, requires_grad=True), torch.randn(2, 3, 4, 3)
        (stacked,) = torch.autograd.grad(torch.vmap(once)(parameters, buffers, x), x, gradient)
        for run, layer in enumerate(alone):
            index = divmod(run, 3)
            single = x[index].detach().requires_grad_()
            (expected,) = torch.autograd.grad(layer(single), single, gradient[index])
            torch.testing.assert_close(stacked[index], expected, rtol=1e-12, atol=1e-12)
            for name, buffer in layer.named_buffers():
                torch.testing.assert_close(buffers[name][index], buffer, rtol=1e-12, atol=1e-12)


def test_online_norm_approaches_batch_statistics() -> None:
    layer = OnlineNorm(3, 0.99, layer_scaling=False)
    for _ in range(2000):
        layer(torch.randn(8, 3) * 2.0 + 5.0)
    torch.testing.assert_close(layer.mu, torch.full((3,), 5.0), rtol=0.1, atol=0)
    torch.testing.assert_close(layer.var, torch.full((3,), 4.0), rtol=0.3, atol=0)


def test_online_norm_control_steers_gradients_to_be_orthogonal() -> None:
    layer = OnlineNorm(1, 0.9, 0.9, layer_scaling=False, affine=False)
    sums = torch.zeros(2)
    for _ in range(3000):
        x = torch.randn(1, 1, requires_grad=True)
        y = layer(x)
        (gradient,) = torch.autograd.grad(y, x, 1.0 + y.detach())  # a gradient along both forbidden directions
        sums += torch.stack([gradient.sum(), (gradient * y.detach()).sum()]).detach()
    assert (sums / 3000).abs().max().item() < 0.1  # without control both means are near 1


def test_online_norm_in_evaluation_has_frozen_statistics_and_the_plain_gradient() -> None:
    layer = OnlineNorm(3)
    for _ in range(5):
        layer(torch.randn(4, 3)).sum().backward()
    layer.eval()
    before = {name: b.clone() for name, b in layer.named_buffers()}
    x = torch.randn(2, 3, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))
    for name, buffer in layer.named_buffers():
        assert torch.equal(buffer, before[name])


def test_online_norm_takes_several_forwards_before_backward() -> None:
    layer = OnlineNorm(3)
    x = torch.randn(4, 3, requires_grad=True)
    (layer(x).square().sum() + layer(x + 1).sum()).backward()
    assert layer.ey.any()
    assert not any(b.requires_grad for b in layer.buffers())


# Dynamo looks at .grad of what crosses a graph break.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_online_norm_compiled_equals_eager() -> None:
    layer = OnlineNorm(3)
    twin = copy.deepcopy(layer)
    compiled = torch.compile(twin, backend="aot_eager")
    for _ in range(4):
        x = torch.randn(4, 3, requires_grad=True)
        for module in (layer, compiled):
            module(x).square().sum().backward()
    for ours, theirs in zip(layer.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    torch._dynamo.reset()


def test_online_norm_refuses_second_derivatives() -> None:
    layer, x = OnlineNorm(3), torch.randn(4, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_online_norm_under_vmap_refuses_shared_buffers() -> None:
    layer = OnlineNorm(3)
    with pytest.raises(ValueError, match="stack the buffers too"):
        torch.vmap(layer)(torch.randn(2, 4, 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"forward_decay": 1.0}, "forward_decay must be at least 0 and below 1, got 1.0"),
        ({"backward_decay": -0.1}, "backward_decay .* got -0.1"),
        ({"features": 0}, "features .* got 0"),
        ({"eps": 0.0}, "eps must be above 0, got 0.0"),
    ],
    ids=str,
)
def test_online_norm_refuses_bad_arguments(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OnlineNorm(**{"features": 3, **options})  # type: ignore[arg-type]


def test_online_norm_refuses_other_shapes() -> None:
    for shape in [(3,), (2, 4), (2, 3, 3)]:
        with pytest.raises(ValueError, match=r"x must have shape \(batch, 3\)"):
            OnlineNorm(3)(torch.zeros(shape))
