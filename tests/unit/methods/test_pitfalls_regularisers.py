"""Pitfalls of other code in this field: regularisers. Each test fails on one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import L2, L2ER, SGD, CChain, ContinualBackprop, L2Init, Method, Parseval, Spectral, Wasserstein
from neoteny.methods.l2_er import effective_rank
from reference import l2_er, parseval

pytestmark = pytest.mark.usefixtures("double_precision")

REGULARISERS: list[Method] = [L2Init(0.1), L2Init(0.1, norm="l1"), Wasserstein(0.1), Parseval(0.1), Spectral(0.1)]


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))


class Training:
    """Methods attached to a network, with the usual loop."""

    def __init__(self, net: nn.Module, *methods: Method, optimizer: Any = None, step_size: float = 0.1) -> None:
        self.net = net
        self.optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=step_size)
        self.plastic = neoteny.attach(net, self.optimizer, *methods, example=None, seed=1)

    def update(self, x: Tensor, weight: float = 1.0) -> None:
        """One update; with weight 0 the loss has no gradient."""
        self.optimizer.zero_grad()
        loss = self.net(x).square().mean()
        (loss * weight).backward()
        self.plastic.observe(loss)
        self.optimizer.step()
        self.plastic.step()

    def gradients(self) -> dict[str, Tensor]:
        return {name: value.grad.clone() for name, value in self.net.named_parameters() if value.grad is not None}

    def weights(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.net.named_parameters()}


# --------------------------------------------------------------------- the anchor is captured after the first update


@pytest.mark.parametrize("method", [L2Init(0.5), Wasserstein(0.5)], ids=["L2-init", "Wasserstein"])
def test_the_anchor_is_from_before_the_first_update(method: Method) -> None:
    run = Training(mlp(), method, step_size=1.0)
    start = run.weights()
    run.update(torch.ones(4, 3))
    moved = run.weights()
    assert any(not torch.equal(start[name], moved[name]) for name in start)
    run.update(torch.ones(4, 3), weight=0.0)  # the second update sees the term alone
    for name, gradient in run.gradients().items():
        if isinstance(method, L2Init):
            expected = 0.5 * (moved[name] - start[name])
        else:
            order = moved[name].flatten().argsort(stable=True)
            expected = torch.empty(order.shape)
            expected[order] = moved[name].flatten()[order] - start[name].flatten().sort().values
            expected = expected.reshape(start[name].shape)
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-14)


# ---------------------------------------------------------------------------- a norm that is not squared; one tensor


@pytest.mark.parametrize("method", [L2Init(0.5), Wasserstein(0.5)], ids=["L2-init", "Wasserstein"])
def test_the_pull_grows_with_the_distance(method: Method) -> None:
    run = Training(mlp(), method, step_size=0.0)
    found: list[dict[str, Tensor]] = []
    for _ in range(2):
        with torch.no_grad():
            for parameter in run.net.parameters():
                parameter.add_(1.0)  # all by the same: the order stays
        run.update(torch.ones(4, 3), weight=0.0)
        found.append(run.gradients())
    for name in found[0]:
        torch.testing.assert_close(found[1][name], 2.0 * found[0][name])


@pytest.mark.parametrize("method", REGULARISERS, ids=repr)
def test_every_tensor_that_the_term_is_about_is_pulled(method: Method) -> None:
    """Not the last one alone, and not none because the term was computed without gradients."""
    run = Training(mlp(), method, step_size=0.0)
    with torch.no_grad():
        for parameter in run.net.parameters():
            parameter.add_(torch.randn(parameter.shape))
    run.update(torch.ones(4, 3), weight=0.0)
    pulled = {name for name, gradient in run.gradients().items() if bool(gradient.any())}
    everything = set(dict(run.net.named_parameters()))
    assert pulled == ({"0.weight", "2.weight"} if isinstance(method, Parseval) else everything)


# ------------------------------------------------------------------------------------- decoupled decay under Adam


@pytest.mark.parametrize("early", [False, True], ids=["in order", "gradients and schedule before the tick"])
def test_decoupled_the_pull_does_not_pass_through_adam(early: bool) -> None:
    net = mlp()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
    plastic = neoteny.attach(net, optimizer, L2Init(0.5, decoupled=True))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(2.0)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    (net(torch.ones(1, 3)).sum() * 0.0).backward()
    optimizer.step()
    if early:  # as frameworks do that call back after the whole step
        optimizer.zero_grad()
        schedule.step()
    plastic.step()
    for old, new in zip(before, net.parameters(), strict=True):
        torch.testing.assert_close(new.detach(), old - 0.01 * 0.5 * 2.0)
    assert not any(state["exp_avg"].any() for state in optimizer.state.values())


def test_decoupled_a_parameter_without_gradient_rests() -> None:
    net = mlp()
    run = Training(net, L2Init(0.5, decoupled=True))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(2.0)
    run.update(torch.ones(4, 3), weight=0.0)
    before = run.weights()
    run.optimizer.zero_grad()
    net[0](torch.ones(1, 3)).sum().mul(0.0).backward()  # a pass through the first layer alone
    run.optimizer.step()
    run.plastic.step()
    changed = {name for name, value in run.weights().items() if not torch.equal(value, before[name])}
    assert changed == {"0.weight", "0.bias"}


# ---------------------------------------------------------------------------------------------------- layers, heads


class Heads(nn.Module):
    """A body and two heads, the first of which is not the last module."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.policy = nn.Linear(4, 2)
        self.value = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.body(x))
        return torch.cat([self.policy(hidden), self.value(hidden)], -1)


def test_parseval_leaves_the_heads_alone_that_are_named() -> None:
    def pulled(method: Parseval) -> set[str]:
        run = Training(Heads(), method, step_size=0.0)
        run.update(torch.ones(4, 3), weight=0.0)
        return {name for name, gradient in run.gradients().items() if bool(gradient.any())}

    assert pulled(Parseval(0.1)) == {"body.weight", "policy.weight"}
    assert pulled(Parseval(0.1, outputs=("policy", "value"))) == {"body.weight"}
    assert pulled(Parseval(0.1, outputs=())) == {"body.weight", "policy.weight", "value.weight"}
    with pytest.raises(ValueError, match=r"outputs names 'polcy'.*Did you mean 'policy'"):
        Training(Heads(), Parseval(0.1, outputs=("polcy",)))


def as_rows(layer: nn.Module, weight: Tensor) -> list[tuple[Any, np.ndarray]]:
    """For each group of a layer, where its weights lie and what they are as a matrix (outputs, inputs * taps)."""
    groups = getattr(layer, "groups", 1)
    found: list[tuple[Any, np.ndarray]] = []
    for rows in np.split(np.arange(weight.shape[0]), groups):
        part = weight[rows].detach().numpy()
        part = part.swapaxes(0, 1) if getattr(layer, "transposed", False) else part
        found.append((rows, part.reshape(len(part), -1)))
    return found


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv2d(4, 6, 3),
        lambda: nn.Conv2d(4, 6, 3, groups=2),
        lambda: nn.Conv2d(4, 4, 3, groups=4),
        lambda: nn.ConvTranspose2d(4, 6, 3),
        lambda: nn.ConvTranspose2d(4, 6, 3, groups=2),
        lambda: nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last),  # pyright: ignore[reportCallIssue]
    ],
    ids=["plain", "groups", "depthwise", "transposed", "transposed groups", "channels last"],
)
def test_parseval_takes_a_convolution_by_output_channels_within_its_groups(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(make(), nn.Flatten(), nn.LazyLinear(2))
    x = torch.randn(2, 4, 5, 5)
    net(x)
    run = Training(net, Parseval(0.1), step_size=0.0)
    run.update(x, weight=0.0)
    weight, found = net.get_parameter("0.weight"), run.gradients()["0.weight"]
    outputs: Any = net[0].out_channels
    for (rows, matrix), (_, pull) in zip(as_rows(net[0], weight), as_rows(net[0], found), strict=True):
        expected = 0.1 * (64 / outputs) ** 2 * parseval.gradient(matrix, 2.0)
        np.testing.assert_allclose(pull, expected, rtol=1e-10, atol=1e-12, err_msg=str(rows))


# ------------------------------------------------------------------------------------------------------------ L2-ER


class ConvNet(nn.Module):
    """Two convolutions, a flatten and a linear layer: features of 2 channels at 9 positions, then 12 columns."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Conv2d(1, 2, 2)
        self.second = nn.Conv2d(2, 3, 2)
        self.out = nn.Linear(12, 2)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first = torch.tanh(self.first(x))
        return first, torch.tanh(self.second(first)).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.features(x)[1])


@pytest.mark.parametrize("last_layers", [0, 1])
def test_the_rank_step_follows_the_rank_of_channels_at_every_position(last_layers: int) -> None:
    x = torch.randn(5, 1, 4, 4)

    def mean_rank(net: ConvNet) -> float:
        with torch.no_grad():
            first, second = net.features(x)
        ranks = [
            l2_er.effective_rank(first.movedim(1, -1).reshape(-1, 2).numpy()),
            l2_er.effective_rank(second.numpy()),
        ][-last_layers:]
        return sum(ranks) / len(ranks)

    run = Training(ConvNet(), L2ER(0.0, period=1, rank_step_size=0.01, last_layers=last_layers), step_size=0.0)
    start = run.weights()
    run.update(x)
    twin = ConvNet()
    for name, parameter in twin.named_parameters():
        slope = torch.zeros_like(parameter)
        for index in np.ndindex(*parameter.shape):
            ends = []
            for move in (1e-6, -1e-6):
                with torch.no_grad():
                    parameter[index] += move
                    ends.append(mean_rank(twin))
                    parameter[index] -= move
            slope[index] = (ends[0] - ends[1]) / 2e-6
        torch.testing.assert_close((run.weights()[name] - start[name]) / 0.01, slope, rtol=1e-5, atol=1e-6)


def test_rank_steps_raise_the_rank_and_leave_the_optimizers_state_alone() -> None:
    net = mlp()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.0)
    run = Training(net, L2ER(0.0, period=1, rank_step_size=0.01), optimizer=optimizer)
    x = torch.randn(16, 3)

    def rank() -> float:
        return float(effective_rank(net[:4](x)).detach())

    before = rank()
    for _ in range(50):
        run.update(x, weight=0.0)
    assert rank() > before + 0.2
    assert not any(state["exp_avg"].any() for state in optimizer.state.values())


@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_the_gradient_of_the_rank_is_finite_for_zero_and_equal_singular_values(shape: tuple[int, int]) -> None:
    for matrix in (
        torch.zeros(shape),
        torch.eye(*shape),
        torch.ones(shape),
        torch.full(shape, torch.nan),
        torch.diag(torch.tensor([3.0, 3.0, 0.0, 1e-300]))[: shape[0], : shape[1]],
    ):
        matrix = matrix.clone().requires_grad_()
        rank = effective_rank(matrix)
        rank.backward()
        assert matrix.grad is not None
        assert bool(rank.isfinite())
        assert bool(matrix.grad.isfinite().all())
    drawn = torch.randn(shape, requires_grad=True)
    effective_rank(drawn).backward()
    assert drawn.grad is not None
    np.testing.assert_allclose(drawn.grad.numpy(), l2_er.gradient(drawn.detach().numpy()), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", [L2ER(period=2), CChain(0.1, beta=0.01, window=5, warmup=1)], ids=["ER", "CC"])
def test_a_run_that_diverges_leaves_the_others_as_they_are(method: Method) -> None:
    x, y = torch.randn(6, 2, 4, 3), torch.randn(6, 2, 4, 2)

    def train(wild: bool) -> Tensor:
        runs = neoteny.stack([mlp(0), mlp(1)], SGD((1e200 if wild else 0.1, 0.1)), method)
        return torch.stack([runs.step(*batch).losses for batch in zip(x, y, strict=True)])

    wild, tame = train(True), train(False)
    assert not bool(wild[-1, 0].isfinite())
    torch.testing.assert_close(wild[:, 1], tame[:, 1])


# ---------------------------------------------------------------------------------------------------------- C-CHAIN


def test_the_reference_batch_is_neither_the_present_one_nor_one_that_moved_the_old_network() -> None:
    net = nn.Linear(2, 1, bias=False)
    run = Training(net, CChain(3.0, beta=None, lag=2, reference_age=3), step_size=0.1)
    x = torch.randn(8, 5, 2)
    weights: list[Tensor] = []
    for update in range(8):
        weights.append(net.weight.detach().clone())
        run.update(x[update])
        plain = 2.0 * (x[update] @ weights[update].T).T @ x[update] / 5
        term = torch.zeros_like(plain)
        if update >= 3:
            reference, moved = x[update - 3], weights[update] - weights[update - 2]
            term = 3.0 * 2.0 * (reference @ moved.T).T @ reference / 5
        torch.testing.assert_close(run.gradients()["weight"], plain + term, rtol=1e-10, atol=1e-12)
    with pytest.raises(ValueError, match="reference_age must be above lag"):
        CChain(lag=2)


def test_the_old_network_is_a_copy_and_is_not_differentiated() -> None:
    run = Training(mlp(), CChain(1.0, beta=None))
    for _ in range(4):
        run.update(torch.randn(4, 3))
    live = {value.data_ptr() for value in run.net.parameters()}
    kept = run.plastic._chain.states[0]["parameters"]
    assert set(kept) == set(dict(run.net.named_parameters()))
    for copies in kept.values():
        assert not any(copy.requires_grad or copy.data_ptr() in live for copy in copies.values())


@pytest.mark.parametrize("method", [L2ER(period=3), CChain(1.0, beta=None)], ids=["ER", "CC"])
def test_a_loader_may_use_the_memory_of_a_batch_again(method: Method) -> None:
    x = torch.randn(8, 4, 3)
    fresh, reused = Training(mlp(), method), Training(mlp(), method)
    memory = torch.empty(4, 3)
    for batch in x:
        fresh.update(batch)
        memory.copy_(batch)
        reused.update(memory)
    for ours, theirs in zip(reused.weights().values(), fresh.weights().values(), strict=True):
        assert torch.equal(ours, theirs)


def test_churn_does_not_work_against_resets() -> None:
    """The old network takes a reset unit's new weights, so that they are not pulled back to the old ones."""
    net = mlp()
    method = CChain(1e4, beta=None)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    replacement = ContinualBackprop(0.5, 2, compensate=False)
    plastic = neoteny.attach(net, optimizer, replacement, method, example=torch.zeros(1, 3), seed=1)
    for _ in range(6):
        optimizer.zero_grad()
        (net(torch.randn(4, 3)).sum() * 0.0).backward()
        optimizer.step()
        plastic.step()
        # With a step size of 0 resets alone move the network, and so nothing is churn.
        assert all(not bool(value.grad.any()) for value in net.parameters() if value.grad is not None)
    assert sum(plastic.replaced.values()) > 3


def test_the_means_are_over_the_window_alone() -> None:
    method = CChain(0.1, beta=1.0, window=5, warmup=0)
    run = Training(mlp(), method)
    view, state = run.plastic.view, run.plastic._chain.states[0]
    losses, distances = [10.0**power for power in range(8, -4, -1)], [0.5, 0.25] * 6
    for update, (loss, distance) in enumerate(zip(losses, distances, strict=True), 1):
        state["distance"], view.loss = torch.tensor(distance), torch.tensor(-loss)
        method.step(view, state)
        recent = slice(max(0, update - 5), update)
        expected = sum(losses[recent]) / (sum(distances[recent]) + 1e-8 * min(update, 5))
        # A sum that once held 1e8 has lost digits until the window is full again.
        tolerance = 1e-12 if update % 5 == 0 else 1e-5
        assert float(method._coefficient(view, state, torch.zeros(()))) == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize(
    ("outputs", "works"),
    [
        (lambda y: (y, None), True),
        (lambda y: {"logits": y, "more": 1}, True),
        (lambda y: {"values": y}, False),
        (lambda y: y.sum(), False),
    ],
    ids=["tuple", "logits", "another mapping", "one number"],
)
def test_networks_that_return_more_than_a_tensor(outputs: Callable[[Tensor], Any], works: bool) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Tensor) -> Any:
            return outputs(self.inner(x))

    net = Wrapped()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    plastic = neoteny.attach(net, optimizer, CChain(1.0, beta=None), L2(1e-3), seed=1)

    def update() -> None:
        found = net(torch.ones(4, 3))
        first = found if isinstance(found, Tensor) else next(iter(found.values() if isinstance(found, dict) else found))
        optimizer.zero_grad()
        first.square().mean().backward()
        optimizer.step()
        plastic.step()

    for _ in range(2):
        update()
    if works:
        update()
    else:
        with pytest.raises(TypeError, match="CChain needs a network that returns a tensor"):
            update()


def test_cross_entropy_needs_an_axis_of_classes() -> None:
    run = Training(nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), CChain(1.0, beta=None, distance="cross_entropy"))
    for _ in range(2):
        run.update(torch.ones(4, 3))
    with pytest.raises(ValueError, match=r"cross_entropy needs outputs \(batch, ..., classes\); got shape \(4,\)"):
        run.update(torch.ones(4, 3))
