"""OnlineNorm: the naive loop, the same alone and inside a stack."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state

from neoteny.nets import OnlineNorm
from reference.online_norm import NaiveOnlineNorm
from support.stacked_nets import assert_stack_equals_alone

pytestmark = pytest.mark.usefixtures("double_precision")


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
