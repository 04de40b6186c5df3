"""neoteny.optim.Adam is torch's Adam until something is reset, and then a naive Adam with a count for every element."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.layers.regions import Region
from neoteny.methods import SGD, Adam, Method

pytestmark = pytest.mark.usefixtures("double_precision")


def make_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def train(
    net: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 200, seed: int = 1, closure: bool = False
) -> list[float]:
    """Losses over some steps on random data."""
    data = torch.Generator().manual_seed(seed)
    dtype = next(net.parameters()).dtype
    losses: list[float] = []
    for _ in range(steps):
        x = torch.randn(3, 4, generator=data, dtype=torch.float64).to(dtype)
        y = torch.randn(3, 3, generator=data, dtype=torch.float64).to(dtype)

        def evaluate(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = (net(x) - y).square().mean()
            loss.backward()
            return loss

        if closure:
            losses.append(optimizer.step(evaluate).item())  # type: ignore[arg-type, union-attr]
        else:
            losses.append(evaluate().item())
            optimizer.step()
    return losses


# ---------------------------------------------------------------------------------------------- equal to torch's Adam


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, 200),
        ({"lr": 0.1, "betas": (0.5, 0.9), "eps": 1e-3}, 40),  # more than that, and it multiplies a rounding by 1e4
        ({"lr": 0.01, "weight_decay": 0.1}, 200),
        ({"lr": 0.01, "betas": (0.0, 0.99)}, 200),
        ({"lr": 0.01, "betas": (0.9, 0.0)}, 8),  # steps of gradient / |gradient|: chaotic
    ],
    ids=["default", "fast", "weight decay", "no first", "no second"],
)
@pytest.mark.parametrize("closure", [False, True], ids=["loop", "closure"])
def test_adam_equals_torchs_adam_in_float64_within_1e_12(options: dict[str, Any], steps: int, closure: bool) -> None:
    net = make_net()
    twin = copy.deepcopy(net)
    mine = train(net, neoteny.optim.Adam(net.parameters(), **options), steps, closure=closure)
    theirs = train(twin, torch.optim.Adam(twin.parameters(), **options), steps, closure=closure)
    np.testing.assert_allclose(mine, theirs, rtol=1e-12)
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_adam_equals_torchs_adam_in_float32_within_rounding() -> None:
    net = make_net().float()
    twin = copy.deepcopy(net)
    train(net, neoteny.optim.Adam(net.parameters(), lr=0.01))
    train(twin, torch.optim.Adam(twin.parameters(), lr=0.01, foreach=False))
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_several_parameter_groups_keep_their_own_options() -> None:
    net = make_net()
    twin = copy.deepcopy(net)

    def groups(one: nn.Sequential) -> list[dict[str, Any]]:
        return [
            {"params": one[0].parameters(), "lr": 0.1, "betas": (0.8, 0.9)},
            {"params": one[2].parameters(), "weight_decay": 0.1, "eps": 1e-4},
        ]

    train(net, neoteny.optim.Adam(groups(net), lr=0.01))
    train(twin, torch.optim.Adam(groups(twin), lr=0.01))
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_a_parameter_without_gradient_is_left_alone() -> None:
    net = make_net()
    before = net.get_parameter("0.weight").detach().clone()
    net[0].weight.requires_grad_(False)
    optimizer = neoteny.optim.Adam(net.parameters(), lr=0.1)
    train(net, optimizer, 3)
    assert torch.equal(net.get_parameter("0.weight"), before)
    assert net[0].weight not in optimizer.state


def test_a_learning_rate_scheduler_drives_it() -> None:
    nets = [make_net()]
    nets.append(copy.deepcopy(nets[0]))
    for net, kind in zip(nets, (neoteny.optim.Adam, torch.optim.Adam), strict=True):
        optimizer = kind(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        for seed in range(20):
            train(net, optimizer, 1, seed=seed)
            scheduler.step()
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr must be a number >= 0"),
        ({"eps": -1.0}, "eps must be a number >= 0"),
        ({"weight_decay": float("nan")}, "weight_decay must be a number >= 0"),
        ({"lr": "1e-3"}, "lr must be a number >= 0; got .1e-3."),
        ({"betas": 0.9}, "betas must be two numbers in"),
        ({"betas": (0.9, 1.0)}, "betas must be two numbers"),
        ({"betas": (0.9,)}, "betas must be two numbers"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        neoteny.optim.Adam(make_net().parameters(), **options)


# ------------------------------------------------------------------------------------------------- counts by element


class NaiveAdam:
    """Adam with moments and a time step for every element, in NumPy."""

    def __init__(self, value: np.ndarray, lr: float, betas: tuple[float, float], eps: float) -> None:
        self.value = value.astype(np.float64).copy()
        self.lr, self.betas, self.eps = lr, betas, eps
        self.first, self.second, self.time = (np.zeros_like(self.value) for _ in range(3))

    def update(self, gradient: np.ndarray) -> None:
        beta1, beta2 = self.betas
        self.time += 1
        self.first = beta1 * self.first + (1 - beta1) * gradient
        self.second = beta2 * self.second + (1 - beta2) * gradient**2
        corrected = self.second / (1 - beta2**self.time)
        self.value -= self.lr * self.first / (1 - beta1**self.time) / (np.sqrt(corrected) + self.eps)

    def clear(self, mask: np.ndarray) -> None:
        for state in (self.first, self.second, self.time):
            state[mask] = 0.0


def row_region(rows: list[int]) -> Region:
    return Region("w", (torch.tensor(rows).unsqueeze(-1),))


def column_region(columns: list[int], per_group: int, groups: int) -> Region:
    index = torch.tensor(columns).unsqueeze(-1)
    return Region("w", (index // per_group, index % per_group), groups)


def row_mask(shape: tuple[int, ...], rows: list[int]) -> np.ndarray:
    mask = np.zeros(shape, dtype=bool)
    mask[rows] = True
    return mask


def column_mask(shape: tuple[int, ...], columns: list[int], groups: int) -> np.ndarray:
    mask = np.zeros(shape, dtype=bool)
    outputs, per_group = shape[0] // groups, shape[1]
    for column in columns:
        group = column // per_group
        mask[group * outputs : (group + 1) * outputs, column % per_group] = True
    return mask


@pytest.mark.parametrize(
    ("shape", "groups"),
    [((6, 5), 1), ((6, 4, 3, 3), 1), ((6, 2, 3, 3), 3), ((4, 1, 3), 4), ((7,), 1)],
    ids=["linear", "conv", "grouped", "depthwise", "bias"],
)
def test_step_counts_of_reset_rows_and_columns_equal_a_naive_adam(shape: tuple[int, ...], groups: int) -> None:
    parameter = nn.Parameter(torch.randn(shape))
    options: dict[str, Any] = {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-6}
    optimizer = neoteny.optim.Adam([parameter], **options)
    naive = NaiveAdam(parameter.detach().numpy(), **options)
    draw = np.random.default_rng(0)
    for step in range(120):
        gradient = draw.normal(size=shape)
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
        naive.update(gradient)
        np.testing.assert_allclose(parameter.detach().numpy(), naive.value, rtol=1e-12, atol=1e-14)
        if step % 7 == 3:
            rows = draw.choice(len(gradient), size=2, replace=False).tolist()
            optimizer.clear_elements(parameter, row_region(rows))
            naive.clear(row_mask(shape, rows))
        if step % 5 == 2 and len(shape) > 1:
            width = shape[1] * groups
            columns = draw.choice(width, size=2, replace=False).tolist()
            optimizer.clear_elements(parameter, column_region(columns, shape[1], groups))
            naive.clear(column_mask(shape, columns, groups))
        np.testing.assert_allclose(optimizer.state[parameter]["exp_avg"].numpy(), naive.first, rtol=1e-12, atol=1e-16)


def test_a_reset_weights_first_step_is_as_long_as_a_new_networks() -> None:
    parameter = nn.Parameter(torch.zeros(3, 2))
    optimizer = neoteny.optim.Adam([parameter], lr=0.01, eps=0.0)
    for _ in range(1000):
        parameter.grad = torch.ones(3, 2)
        optimizer.step()
    optimizer.clear_elements(parameter, row_region([1]))
    before = parameter.detach().clone()
    parameter.grad = torch.full((3, 2), 7.0)
    optimizer.step()
    torch.testing.assert_close((before - parameter.detach())[1], torch.full((2,), 0.01))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_reset_weights_bias_correction_survives_low_precision(dtype: torch.dtype) -> None:
    # 0.999 rounds to 1 in bfloat16: a correction taken there would be zero, and a zero moment over it NaN.
    parameter = nn.Parameter(torch.zeros(4, 3, dtype=dtype))
    optimizer = neoteny.optim.Adam([parameter], lr=0.01)
    for _ in range(10):
        parameter.grad = torch.ones(4, 3, dtype=dtype)
        optimizer.step()
    optimizer.clear_elements(parameter, row_region([0, 1]))
    before = parameter.detach().double()
    parameter.grad = torch.ones(4, 3, dtype=dtype)
    parameter.grad[0] = 0.0  # a dead unit
    optimizer.step()
    change = before - parameter.detach().double()
    assert parameter.isfinite().all()
    assert not change[0].any()
    torch.testing.assert_close(
        change[1], torch.full((3,), 0.01).double(), rtol=0.2 if dtype != torch.float32 else 1e-4, atol=0
    )


def test_clearing_before_the_first_update_is_harmless() -> None:
    parameter = nn.Parameter(torch.zeros(3, 2))
    optimizer = neoteny.optim.Adam([parameter])
    optimizer.clear_elements(parameter, row_region([1]))
    assert parameter not in optimizer.state or not optimizer.state[parameter]


# -------------------------------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_restored_optimizer_keeps_its_integer_counts_and_continues_identically(dtype: torch.dtype) -> None:
    def advance(parameter: nn.Parameter, optimizer: torch.optim.Optimizer, seed: int) -> None:
        data = torch.Generator().manual_seed(seed)
        for _ in range(5):
            parameter.grad = torch.randn(6, 5, generator=data).to(dtype)
            optimizer.step()

    parameter = nn.Parameter(torch.randn(6, 5).to(dtype))
    optimizer = neoteny.optim.Adam([parameter], lr=0.01)
    advance(parameter, optimizer, 0)
    optimizer.clear_elements(parameter, row_region([1, 4]))
    advance(parameter, optimizer, 1)
    optimizer.clear_elements(parameter, column_region([2], 5, 1))

    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    twin = nn.Parameter(parameter.detach().clone())
    restored = neoteny.optim.Adam([twin], lr=0.5)
    restored.load_state_dict(torch.load(buffer, weights_only=True))
    state = restored.state[twin]
    assert state["step"].dtype == torch.int64
    assert state["resets"]["rows"]["step"].dtype == torch.int64
    assert state["resets"]["rows"]["step"].tolist() == [0, 5, 0, 0, 5, 0]
    assert state["resets"]["columns"]["step"].tolist() == [[0, 0, 10, 0, 0]]
    assert state["exp_avg"].dtype == dtype
    advance(parameter, optimizer, 2)
    advance(twin, restored, 2)
    assert torch.equal(parameter, twin)


# ------------------------------------------------------------------------------------- optimizers as methods of a stack


@pytest.mark.parametrize(
    ("method", "make"),
    [
        (SGD(0.05), lambda parameters: torch.optim.SGD(parameters, lr=0.05)),
        (SGD(0.05, momentum=0.9), lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9)),
        (Adam(0.01), lambda parameters: torch.optim.Adam(parameters, lr=0.01)),
        (
            Adam(0.01, (0.5, 0.9), 1e-3),
            lambda parameters: torch.optim.Adam(parameters, lr=0.01, betas=(0.5, 0.9), eps=1e-3),
        ),
    ],
    ids=["sgd", "momentum", "adam", "adam options"],
)
def test_optimizers_as_methods_equal_torchs(method: Method, make: Callable[[Any], torch.optim.Optimizer]) -> None:
    nets = [make_net() for _ in range(2)]
    stack = neoteny.stack(nets, method)
    optimizers = [make(net.parameters()) for net in nets]
    data = torch.Generator().manual_seed(1)
    for _ in range(200):
        x, y = torch.randn(2, 3, 4, generator=data), torch.randn(2, 3, 3, generator=data)
        losses = stack.step(x, y).losses
        for run, (net, optimizer) in enumerate(zip(nets, optimizers, strict=True)):
            optimizer.zero_grad()
            loss = (net(x[run]) - y[run]).square().mean()
            loss.backward()
            optimizer.step()
            assert loss.item() == pytest.approx(losses[run].item(), rel=1e-12)
    for run, net in enumerate(nets):
        for name, value in stack.module(run).state_dict().items():
            torch.testing.assert_close(value, net.state_dict()[name], rtol=1e-11, atol=1e-13)


def test_autograd_notices_an_update_after_the_forward_pass() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = neoteny.optim.Adam(net.parameters(), lr=0.1)
    loss = net(torch.ones(2, 3)).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3, 4), (2, 3, 2, 2)])
def test_adam_equals_torchs_adam_for_parameters_of_any_shape(shape: tuple[int, ...]) -> None:
    start = torch.randn(shape, dtype=torch.float64)
    mine, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizers = [neoteny.optim.Adam([mine], lr=0.1), torch.optim.Adam([theirs], lr=0.1)]
    for step in range(3):
        gradient = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        for parameter, optimizer in zip((mine, theirs), optimizers, strict=True):
            parameter.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)
