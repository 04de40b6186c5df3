"""attach(): parameter groups, precisions, inputs, compiled and orthogonal models."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny import ContinualBackprop
from support.loops import FAST, batches, mlp, train
from support.snapshots import assert_same, snapshot


def test_several_parameter_groups_with_frozen_and_foreign_parameters() -> None:
    model = mlp()
    model[4].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.01}], 0.05
    )
    before = model.get_parameter("4.weight").clone()
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
    assert list(plastic.replaced) == ["0"]  # units of layer 2 feed the frozen layer 4
    assert "4" in str(plastic)
    train(model, optimizer, plastic, batches(40))
    assert plastic.replaced["0"] > 5
    assert torch.equal(before, model.get_parameter("4.weight"))


def test_a_layer_the_optimizer_does_not_own_is_left_out_by_name() -> None:
    model = mlp()
    optimizer = torch.optim.SGD([*model[0].parameters(), *model[2].parameters()], 0.05)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
    assert list(plastic.replaced) == ["0"]
    assert "does not own 4.weight" in str(plastic)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_parameter_dtypes(dtype: torch.dtype) -> None:
    model = mlp(dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6, dtype=dtype), seed=1)
    train(model, optimizer, plastic, batches(60, dtype))
    assert min(plastic.replaced.values()) > 5
    assert all(bool(torch.isfinite(value).all()) and value.dtype == dtype for value in model.parameters())
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    assert plastic.state_dict()["states"][0]["0"]["utility"].dtype == expected


def test_autocast_statistics_stay_in_full_precision() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
    for x, y in batches(60):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        plastic.step()
    assert min(plastic.replaced.values()) > 5
    assert plastic.state_dict()["states"][0]["0"]["mean_activation"].dtype == torch.float32


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 8)
        self.b = nn.Linear(6, 8)
        self.head = nn.Linear(16, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.head(torch.cat([torch.relu(self.a(left)), torch.tanh(self.b(right))], dim=-1))


@pytest.mark.parametrize("as_dict", [False, True])
def test_an_example_is_a_tuple_or_a_dict(as_dict: bool) -> None:
    torch.manual_seed(0)
    model = TwoInputs()
    x = torch.randn(2, 6)
    example = {"left": x, "right": x} if as_dict else (x, x)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    plastic = neoteny.attach(model, optimizer, FAST, example=example, seed=1)
    for left, _ in batches(40):
        optimizer.zero_grad()
        model(left, right=left * 2).square().mean().backward()
        optimizer.step()
        plastic.step()
    assert min(plastic.replaced.values()) > 5


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_is_counted_once(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp()
            self.use = False

        def forward(self, x: Tensor) -> Tensor:
            if self.use:
                return checkpoint(self.body, x, use_reentrant=reentrant)
            return self.body(x)

    ends = []
    for use in (False, True):
        model = Checkpointed()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
        model.use = use
        train(model, optimizer, plastic, [(x.requires_grad_(), y) for x, y in batches(40)])
        assert sum(plastic.replaced.values()) > 10
        ends.append(torch.cat([value.flatten() for value in model.parameters()]).detach())
    assert torch.equal(ends[0], ends[1])


def test_a_compiled_model_attached_before_its_first_call_trains_like_an_eager_one() -> None:
    torch.compiler.reset()
    eager, inner = mlp(), mlp()
    compiled = cast(nn.Module, torch.compile(inner, backend="aot_eager"))
    pairs: list[tuple[nn.Module, nn.Module]] = [(eager, eager), (compiled, inner)]
    for model, module in pairs:
        optimizer = torch.optim.SGD(module.parameters(), 0.05)
        plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
        train(model, optimizer, plastic, batches(40))
    for ours, theirs in zip(eager.parameters(), inner.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    with pytest.raises(ValueError, match=r"before the first call, or put torch\.compiler\.reset\(\)"):
        neoteny.attach(
            compiled, torch.optim.SGD(inner.parameters(), 0.05), FAST, example=torch.zeros(1, 6), trained=True
        )
    torch.compiler.reset()


def test_attaching_to_a_trained_model_works_when_said() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with torch.no_grad():
        model.get_parameter("0.weight").mul_(3.0).pow_(9)  # a few huge weights: no distribution anybody draws from
    before = snapshot(model)
    with pytest.raises(ValueError, match=r"fit no initial distribution.*: 0 \(standard deviation.* trained=True"):
        neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6))
    assert_same(before, snapshot(model))
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), trained=True, seed=1)
    assert "already trained" in str(plastic)
    assert "new units of 0, 2: torch's own (reset_parameters); for want of another" in str(plastic)
    train(model, optimizer, plastic, batches(20))
    assert sum(plastic.replaced.values()) > 0


def test_a_declared_initial_distribution_is_drawn_from() -> None:
    model = mlp()
    for layer in (model[0], model[2], model[4]):
        assert isinstance(layer, nn.Linear)
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with pytest.raises(ValueError, match=r"init=\{'0': 'kaiming_uniform', '2': 'kaiming_uniform'\}"):
        neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), init="strict")
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), init="kaiming_uniform", seed=1)
    train(model, optimizer, plastic, batches(400))
    bound = 6**0.5 / 6**0.5  # sqrt(2) * sqrt(3 / fan in) with 6 inputs
    assert float(model.get_parameter("0.weight").detach().abs().max()) <= bound
    assert float(model.get_parameter("0.weight").detach().std()) == pytest.approx(bound / 3**0.5, rel=0.2)


def orthogonal_net() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 2))
    for layer in (net[0], net[2]):
        nn.init.orthogonal_(layer.weight, 2**0.5)  # type: ignore[arg-type]
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return net


def test_orthogonal_weights_are_found_and_refused_where_strictness_was_asked_for() -> None:
    torch.manual_seed(0)
    net = orthogonal_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"look like: orthogonal.*'2': neoteny.Initial\('orthogonal', scale=1.414\)"):
        neoteny.attach(net, optimizer, ContinualBackprop(), example=torch.zeros(2, 6), init="strict")
    plastic = neoteny.attach(net, optimizer, ContinualBackprop(), example=torch.zeros(2, 6))
    assert "new units of 0, 2: orthogonal, gain sqrt(2); as the weights were drawn" in str(plastic)


def test_a_new_unit_of_an_orthogonal_network_is_as_long_as_the_others_were() -> None:
    torch.manual_seed(0)
    net = orthogonal_net()
    before = [layer.weight.detach().std() for layer in (net[0], net[2])]  # type: ignore[union-attr]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    method = ContinualBackprop(replacement_rate=1.0, maturity_threshold=0)
    init = neoteny.Initial("orthogonal", scale=2**0.5)
    neoteny.attach(net, optimizer, method, example=torch.zeros(2, 6), init=init, seed=0, auto=True)
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.randn(4, 6)).sum().backward()
        optimizer.step()
    for layer, spread in zip((net[0], net[2]), before, strict=True):
        drawn = layer.weight.detach()[:, layer.weight.abs().sum(0) > 0]  # type: ignore[union-attr]
        assert drawn.std() == pytest.approx(float(spread), rel=0.15)


def test_an_orthogonal_distribution_needs_its_gain() -> None:
    with pytest.raises(ValueError, match=r"Initial\('orthogonal'\) needs scale > 0"):
        neoteny.Initial("orthogonal")
