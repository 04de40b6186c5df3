"""Pitfalls of regularisers that run the network again, L2-ER and C-CHAIN. Each test fails on one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import L2, L2ER, SGD, CChain, ContinualBackprop, Method
from neoteny.methods.l2_er import Spectrum, effective_rank
from neoteny.units.calls import Call
from neoteny.units.view import View
from reference import l2_er
from support.regularised import Training, mlp

pytestmark = pytest.mark.usefixtures("double_precision")


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


class BothWays(L2ER):
    """L2-ER that computes every rank step of several passes in both ways."""

    compared: ClassVar[int] = 0

    def slopes_by_pass(self, view: View, calls: Sequence[Call]) -> dict[str, Tensor]:
        found, expected = super().slopes_by_pass(view, calls), self.slopes_at_once(view, calls)
        assert set(found) == set(expected)
        for name, gradient in expected.items():
            assert gradient.abs().max() > 0.0
            torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-12)
        BothWays.compared += 1
        return found


@pytest.mark.parametrize("last_layers", [0, 1])
@pytest.mark.parametrize("batch", [1, 6])
def test_a_rank_step_with_one_pass_in_memory_is_that_of_all_passes_together(last_layers: int, batch: int) -> None:
    before = BothWays.compared
    run = Training(ConvNet(), BothWays(1e-3, period=3, rank_step_size=0.01, last_layers=last_layers), step_size=0.1)
    for _ in range(9):
        run.update(torch.randn(batch, 1, 4, 4))
    assert BothWays.compared == before + 3


def test_matrices_that_come_in_parts_have_the_slope_of_the_whole() -> None:
    rows = torch.randn(2, 7, 4, requires_grad=True)
    bad = rows.detach().clone()
    bad[1, 5, 2] = float("inf")
    spectrum, spoilt = Spectrum(), Spectrum()
    for part, spoilt_part in zip(rows.detach().split(2, 1), bad.split(2, 1), strict=True):
        spectrum.add(part)
        spoilt.add(spoilt_part)
    (expected,) = torch.autograd.grad(effective_rank(rows).sum(), rows)
    torch.testing.assert_close(rows.detach() @ spectrum.slope(), expected, rtol=1e-9, atol=1e-12)
    found = spoilt.clean(bad) @ spoilt.slope()
    torch.testing.assert_close(found[0], expected[0], rtol=1e-9, atol=1e-12)
    assert torch.equal(found[1], torch.zeros_like(found[1]))


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
