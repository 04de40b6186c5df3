"""MLP: initial distribution, names, and training inside a stack."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state

from neoteny.nets import MLP
from support.stacked_nets import assert_stack_equals_alone

pytestmark = pytest.mark.usefixtures("double_precision")


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
        ({"activation": "rleu"}, "got 'rleu'. Did you mean 'relu'?"),
        ({"activation": "rleu", "hidden": []}, "got 'rleu'. Did you mean 'relu'?"),
        ({"dropout": 1.0}, "p must be at least 0 and below 1, got 1.0"),
        ({"normalization": "batch"}, 'normalization must be None, "layer" or "online", got \'batch\''),
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
