"""Hand-computed numbers of the regularisers, found by the library itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import L2ER, CChain, L2Init, Method, Parseval, Spectral, Wasserstein
from neoteny.methods.l2_er import effective_rank
from support.vectors import Vector

pytestmark = pytest.mark.usefixtures("double_precision")

Matrix = Sequence[Sequence[float]]
DIAGONAL = [[3.0, 0.0], [0.0, 1.0]]
SHEAR = [[1.0, 1.0], [0.0, 1.0]]


def tensor(values: Any) -> Tensor:
    """In double precision, also where the table is printed outside the tests."""
    return torch.tensor(values, dtype=torch.float64)


def layer(start: Matrix) -> nn.Linear:
    """A linear layer without bias that holds these weights."""
    made = nn.Linear(len(start[0]), len(start), bias=False, dtype=torch.float64)
    with torch.no_grad():
        made.weight.copy_(tensor(start))
    return made


class FlatLoss:
    """A method at work on one linear layer whose loss does not depend on the weights.

    Args:
        method: the regulariser.
        start: the weights when it is attached.
        now: the weights from then on, where they are others.
        step_size: of SGD.
    """

    def __init__(self, method: Method, start: Matrix, now: Matrix | None = None, step_size: float = 0.0) -> None:
        self.layer = layer(start)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=step_size)
        self.plastic = neoteny.attach(self.layer, self.optimizer, method, seed=1)
        if now is not None:
            with torch.no_grad():
                self.layer.weight.copy_(tensor(now))

    def update(self, times: int = 1) -> None:
        inputs = torch.zeros(1, self.layer.in_features, dtype=torch.float64)
        for _ in range(times):
            self.optimizer.zero_grad()
            self.layer(inputs).sum().backward()
            self.optimizer.step()
            self.plastic.step()

    def gradient(self) -> list[float]:
        """The term's gradient after some updates that do not move the weights."""
        self.update(25)
        assert self.layer.weight.grad is not None
        return self.layer.weight.grad.flatten().tolist()

    def weights_after(self, updates: int) -> list[float]:
        self.update(updates)
        return self.layer.weight.detach().flatten().tolist()


def penalty_of(method: Method, weights: Matrix) -> float:
    """The loss term itself."""
    made = FlatLoss(method, weights)
    made.update(25)
    view, state = made.plastic.view, made.plastic._chain.states[0]
    term = method.penalty(view, state)
    assert term is not None
    return float(term.detach())


def integral(method: Method, start: Matrix, end: Matrix) -> float:
    """The loss term at `end`, as the integral of its gradient from `start`, where it is known to be 0.

    Gauss's rule with two points, which is exact for terms of up to the fourth degree.
    """
    first, last = tensor(start), tensor(end)
    made = FlatLoss(method, start)
    total = 0.0
    for place in (0.5 - 12**-0.5, 0.5 + 12**-0.5):
        with torch.no_grad():
            made.layer.weight.copy_(first + (last - first) * place)
        made.update()
        assert made.layer.weight.grad is not None
        total += float((made.layer.weight.grad * (last - first)).sum()) / 2
    return total


def parseval_penalty(weights: Matrix, scale: float) -> float:
    """|W W' - s I|^2 as the integral of the gradient from an orthogonal start, where it is 0."""
    side = scale**0.5
    method = Parseval(1.0, scale=scale, reference_width=None, outputs=())
    return integral(method, [[side, 0.0], [0.0, side]], weights)


def rank_gradient(matrix: Tensor) -> list[float]:
    matrix.requires_grad_()
    effective_rank(matrix).backward()
    assert matrix.grad is not None
    return matrix.grad.flatten().tolist()


def adaptive_coefficient() -> float:
    """C-CHAIN's coefficient with a mean loss of 2 and a mean distance of one half."""
    method = CChain(50.0, beta=0.01, window=4, warmup=0)
    made = FlatLoss(method, DIAGONAL)
    view, state = made.plastic.view, made.plastic._chain.states[0]
    for loss, distance in ((1.0, 0.25), (-3.0, 0.75)):
        state["distance"], view.loss = tensor(distance), tensor(loss)
        method.step(view, state)
    return float(method._coefficient(view, state, tensor(0.0)))


def churn_gradient(method: CChain) -> list[float]:
    """The term's gradient where the network did not move since the old one."""
    made = FlatLoss(method, DIAGONAL)
    made.plastic.observe(tensor(1.0))
    optimizer, net = made.optimizer, made.layer
    for _ in range(4):  # from the third update there is a reference batch
        optimizer.zero_grad()
        (net(tensor([[1.0, 1.0]] * 3)) * 0.0).sum().backward()
        made.plastic.observe(tensor(1.0))
        optimizer.step()
        made.plastic.step()
    assert net.weight.grad is not None
    return net.weight.grad.flatten().tolist()


L2_INIT_START, L2_INIT_NOW = [[1.0, 2.0, 4.0]], [[3.0, 1.0, 2.0]]
VECTORS: list[Vector] = [
    Vector(
        "L2-init",
        "gradient is strength * (w - w0)",
        [0.6, -0.3, -0.6],
        lambda: FlatLoss(L2Init(0.3), L2_INIT_START, L2_INIT_NOW).gradient(),
    ),
    Vector(
        "L2-init",
        "sum of squared distances is 9",
        9.0,
        lambda: integral(L2Init(2.0), L2_INIT_START, L2_INIT_NOW),
    ),
    Vector(
        "L2-init",
        "goes home on a flat loss",
        [1.0, 2.0, 4.0],
        lambda: FlatLoss(L2Init(0.5), L2_INIT_START, L2_INIT_NOW, 0.1).weights_after(400),
    ),
    Vector(
        "L2-init",
        "L1 gradient is the sign",
        [0.3, -0.3, -0.3],
        lambda: FlatLoss(L2Init(0.3, norm="l1"), L2_INIT_START, L2_INIT_NOW).gradient(),
    ),
    Vector(
        "L2-init",
        "Huber gradient is clipped at 1",
        [0.3, -0.3, -0.15],
        lambda: FlatLoss(L2Init(0.3, norm="huber"), L2_INIT_START, [[3.0, 1.0, 3.5]]).gradient(),
    ),
    Vector(
        "L2-init",
        "decoupled: one update of step size 0.1",
        [2.94, 1.03, 2.06],
        lambda: FlatLoss(L2Init(0.3, decoupled=True), L2_INIT_START, L2_INIT_NOW, 0.1).weights_after(1),
    ),
    Vector(
        "Wasserstein",
        "penalty of [3, 1, 2] from [1, 2, 4] is 1",
        1.0,
        # From the sorted start no weight overtakes another, so the gradient's integral is the term.
        lambda: integral(Wasserstein(1.0), [[1.0, 2.0, 4.0]], [[1.0, 2.0, 3.0]]),
    ),
    Vector(
        "Wasserstein",
        "gradient of [3, 1, 2] from [1, 2, 4]",
        [-2.0, 0.0, 0.0],
        lambda: FlatLoss(Wasserstein(1.0), [[1.0, 2.0, 4.0]], [[3.0, 1.0, 2.0]]).gradient(),
    ),
    Vector(
        "Wasserstein",
        "a permuted w has the permuted gradient",
        [0.0, 0.0, -2.0],
        lambda: FlatLoss(Wasserstein(1.0), [[1.0, 2.0, 4.0]], [[2.0, 1.0, 3.0]]).gradient(),
    ),
    Vector(
        "Wasserstein",
        "divided by the number of weights",
        [-2.0 / 3.0, 0.0, 0.0],
        lambda: FlatLoss(Wasserstein(1.0, mean=True), [[1.0, 2.0, 4.0]], [[3.0, 1.0, 2.0]]).gradient(),
    ),
    Vector("Spectral", "penalty of diag(3, 1) is 64", 64.0, lambda: penalty_of(Spectral(1.0), DIAGONAL)),
    Vector(
        "Spectral",
        "gradient of diag(3, 1)",
        [96.0, 0.0, 0.0, 0.0],
        lambda: FlatLoss(Spectral(1.0), DIAGONAL).gradient(),
    ),
    Vector(
        "Spectral",
        "the largest singular value becomes 1, others stay",
        [1.0, 0.0, 0.0, 0.4],
        lambda: FlatLoss(Spectral(0.1, iterations=5), [[3.0, 0.0], [0.0, 0.4]], step_size=0.05).weights_after(400),
        1e-5,
    ),
    Vector(
        "Spectral",
        "with target 2 its square becomes 2",
        [2.0**0.5, 0.0, 0.0, 0.4],
        lambda: FlatLoss(
            Spectral(0.1, target=2.0, iterations=5), [[3.0, 0.0], [0.0, 0.4]], step_size=0.05
        ).weights_after(400),
        1e-5,
    ),
    Vector("Parseval", "penalty of [[1, 1], [0, 1]], s = 1, is 3", 3.0, lambda: parseval_penalty(SHEAR, 1.0)),
    Vector("Parseval", "penalty of [[1, 1], [0, 1]], s = 2, is 3", 3.0, lambda: parseval_penalty(SHEAR, 2.0)),
    Vector(
        "Parseval",
        "gradient of [[1, 1], [0, 1]], s = 1",
        [4.0, 8.0, 4.0, 4.0],
        lambda: FlatLoss(Parseval(1.0, scale=1.0, reference_width=None, outputs=()), SHEAR).gradient(),
    ),
    Vector(
        "Parseval",
        "gradient of [[1, 1], [0, 1]], s = 2",
        [0.0, 4.0, 4.0, 0.0],
        lambda: FlatLoss(Parseval(1.0, scale=2.0, reference_width=None, outputs=()), SHEAR).gradient(),
    ),
    Vector(
        "Parseval",
        "the factor (64 / 2)^2",
        [0.0, 4096.0, 4096.0, 0.0],
        lambda: FlatLoss(Parseval(1.0, outputs=()), SHEAR).gradient(),
    ),
    Vector(
        "L2-ER",
        "effective rank of diag(3, 1)",
        1.754765,
        lambda: float(effective_rank(tensor(DIAGONAL))),
    ),
    Vector(
        "L2-ER",
        "no gradient at equal singular values",
        [0.0] * 6,
        lambda: rank_gradient(tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 0.0]])),
    ),
    Vector("C-CHAIN", "coefficient for mean |loss| 2, mean D 0.5, beta 0.01", 0.04, adaptive_coefficient),
    Vector(
        "C-CHAIN",
        "no gradient where the network did not move (mse)",
        [0.0] * 4,
        lambda: churn_gradient(CChain(10.0, beta=None)),
    ),
    Vector(
        "C-CHAIN",
        "no gradient where the network did not move (cross-entropy)",
        [0.0] * 4,
        lambda: churn_gradient(CChain(10.0, beta=None, distance="cross_entropy")),
    ),
]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector.method}: {vector.what}")
def test_vector(vector: Vector) -> None:
    vector.check()


def rank_step(period: int) -> Callable[[Tensor], Tensor]:
    """The weights of a hidden layer after one rank step of L2-ER on these inputs, with nothing else at work."""

    def after(inputs: Tensor) -> Tensor:
        torch.manual_seed(2)
        net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 1, bias=False))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        method = L2ER(0.0, period=period, rank_step_size=0.1)
        plastic = neoteny.attach(net, optimizer, method, seed=1)
        for batch in inputs.chunk(period):
            optimizer.zero_grad()
            net(batch).sum().backward()
            optimizer.step()
            plastic.step()
        return net.get_parameter("0.weight").detach()

    return after


def test_the_rank_step_is_over_the_batches_of_all_its_updates() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(12, 3)
    torch.testing.assert_close(rank_step(4)(inputs), rank_step(1)(inputs), rtol=1e-10, atol=1e-12)
    assert not torch.equal(rank_step(1)(inputs), rank_step(1)(inputs[:3]))
