"""The library against the naive reference, step by step in float64: the same units at the same steps, same weights."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neoteny
from neoteny.nets.activations import make_activation
from reference import cbp
from reference.conv import NaiveConvCBP

INPUTS, HIDDEN, OUTPUTS = 4, (5, 4), 2
SEED = -77


pytestmark = pytest.mark.usefixtures("double_precision")


@dataclass(frozen=True)
class Case:
    """One combination of settings."""

    utility: str
    optimizer: str
    count: str = "eligible"
    compensate: bool = True
    activation: str = "relu"
    loss: str = "squared_error"
    batch: int = 1
    replacement_rate: float = 0.03
    maturity_threshold: int = 15
    decay_rate: float = 0.99
    l2: float = 0.0
    noise_std: float = 0.0
    init: str = "default"
    steps: int = 500
    passes: int = 1  # more than one: gradients are accumulated, and the tick takes the general path

    def __str__(self) -> str:
        flags = [
            name for name, on in (("plain", not self.compensate), ("l2", self.l2), ("noise", self.noise_std)) if on
        ]
        parts = [
            self.utility,
            self.optimizer,
            self.count,
            self.activation,
            self.loss,
            f"batch{self.batch}x{self.passes}",
            *flags,
        ]
        return "-".join(parts)


CASES = [
    Case("overall", "sgd", replacement_rate=8e-3, steps=1000),  # units are replaced one by one
    Case("overall", "adam", batch=4),
    Case("overall", "momentum", "layer", loss="cross_entropy"),
    Case("mean_corrected_contribution", "momentum", activation="tanh", batch=4, passes=2),
    Case("contribution", "sgd", "layer", activation="swish", batch=4, passes=2, l2=1e-3),
    Case("adaptation", "adam", loss="cross_entropy", maturity_threshold=0, decay_rate=0.0),
    Case("weight_magnitude", "adam", "layer", batch=4, passes=2, replacement_rate=0.3, maturity_threshold=40),
    Case("random", "momentum", activation="leaky_relu", loss="cross_entropy", batch=4, passes=2),
    Case("overall", "adam", "layer", False, "tanh", "cross_entropy", decay_rate=0.9, init="kaiming_normal"),
    Case("overall", "momentum", activation="elu", l2=1e-3, noise_std=1e-4, steps=300),
    Case("overall", "sgd", activation="tanh", batch=4, passes=4),
    Case("adaptation", "momentum", compensate=False, activation="sigmoid"),
    Case("weight_magnitude", "sgd", activation="tanh", loss="cross_entropy", replacement_rate=0.1),
    Case("random", "adam", "layer", activation="tanh", noise_std=1e-3, steps=300),
    Case("gxd", "momentum", batch=4, passes=2, loss="cross_entropy"),
    Case("gxd", "adam", "layer", False, "tanh", batch=2),
]


def statistics_of(plastic: neoteny.Attachment) -> dict[str, Any]:
    """The live statistics of every group."""
    return plastic.state_dict()["states"][-1]


def replaced_now(plastic: neoteny.Attachment) -> list[tuple[str, int]]:
    """(group, unit) of the units that the last tick replaced."""
    return [
        (name, int(unit))
        for name, values in statistics_of(plastic).items()
        for unit in (values["born"] == values["schedule"]["step"]).nonzero().flatten()
    ]


def make_mlp(case: Case) -> tuple[nn.Sequential, list[tuple[np.ndarray, np.ndarray]], list[float]]:
    """The network, its weights as arrays, and the scales of its hidden layers' initial distributions."""
    sizes = [INPUTS, *HIDDEN, OUTPUTS]
    linears = [nn.Linear(inputs, outputs) for inputs, outputs in itertools.pairwise(sizes)]
    scales = [1 / math.sqrt(inputs) for inputs in sizes[:-2]]
    if case.init == "kaiming_normal":
        scales = [math.sqrt(2.0 / inputs) for inputs in sizes[:-2]]
        for linear in linears:
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
    modules: list[nn.Module] = []
    for linear in linears[:-1]:
        modules += [linear, make_activation(case.activation)]
    net = nn.Sequential(*modules, linears[-1])
    return (
        net,
        [(linear.weight.detach().numpy().copy(), linear.bias.detach().numpy().copy()) for linear in linears],
        scales,
    )


def make_optimizers(name: str, net: nn.Module) -> tuple[torch.optim.Optimizer, cbp.Optimizer]:
    if name == "adam":
        return neoteny.optim.Adam(net.parameters(), lr=0.003), cbp.Adam(0.003)
    momentum = 0.9 if name == "momentum" else 0.0
    step_size = 0.005 if name == "momentum" else 0.02
    return torch.optim.SGD(net.parameters(), lr=step_size, momentum=momentum), cbp.SGD(step_size, momentum)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_library_and_naive_reference_replace_the_same_units_and_learn_the_same_weights(case: Case) -> None:
    net, layers, scales = make_mlp(case)
    optimizer, reference_optimizer = make_optimizers(case.optimizer, net)
    shared: dict[str, Any] = {
        "replacement_rate": case.replacement_rate,
        "maturity_threshold": case.maturity_threshold,
        "decay_rate": case.decay_rate,
        "utility": case.utility,
        "compensate": case.compensate,
        "count": case.count,
    }
    names = ["0", "2", "4"]
    reference = cbp.NaiveCBP(
        layers,
        case.activation,
        layer_names=names,
        optimizer=reference_optimizer,
        scales=scales,
        distribution="uniform" if case.init == "default" else "normal",
        loss=case.loss,
        seed=SEED,
        l2_strength=case.l2,
        noise_std=case.noise_std,
        **shared,
    )
    methods: list[neoteny.methods.Method] = [neoteny.ContinualBackprop(**shared)]
    if case.noise_std:
        methods.insert(0, neoteny.ShrinkAndPerturb(case.l2, case.noise_std))
    elif case.l2:
        methods.insert(0, neoteny.L2(case.l2))
    example = torch.zeros(1, INPUTS)
    plastic = neoteny.attach(net, optimizer, *methods, example=example, seed=SEED, init=case.init)

    data = torch.Generator().manual_seed(3)
    for step in range(case.steps):
        x = torch.randn(case.batch, INPUTS, generator=data)
        classes = case.loss == "cross_entropy"
        target = (
            torch.randint(OUTPUTS, (case.batch,), generator=data)
            if classes
            else torch.randn(case.batch, OUTPUTS, generator=data)
        )
        optimizer.zero_grad()
        whole = 0.0
        for some, wanted in zip(x.chunk(case.passes), target.chunk(case.passes), strict=True):
            output = net(some)
            each = F.cross_entropy(output, wanted) if classes else (output - wanted).square().sum(-1).mean()
            (each / case.passes).backward()
            whole += each.item() / case.passes
        optimizer.step()
        plastic.step()
        expected_loss = reference.step(x.numpy(), target.numpy())
        assert abs(whole - expected_loss) < 1e-9, step
        assert replaced_now(plastic) == sorted(reference.replaced[-1]), step

    for number, name in enumerate(names):
        weight, bias = net.get_parameter(f"{name}.weight"), net.get_parameter(f"{name}.bias")
        np.testing.assert_allclose(weight.detach().numpy(), reference.layers[number][0], rtol=0, atol=1e-9)
        np.testing.assert_allclose(bias.detach().numpy(), reference.layers[number][1], rtol=0, atol=1e-9)
    for number, name in enumerate(names[:-1]):
        values = statistics_of(plastic)[name]
        np.testing.assert_array_equal(values["schedule"]["step"] - values["born"], reference.age[number])
        np.testing.assert_allclose(values["mean_activation"], reference.mean[number], rtol=0, atol=1e-9)
        if case.utility != "random":
            np.testing.assert_allclose(values["utility"], reference.utility[number], rtol=1e-9, atol=1e-9)
        assert values["schedule"]["accumulator"] == [reference.accumulator[number]]
    counts = {name: sum(layer == name for tick in reference.replaced for layer, _ in tick) for name in names[:-1]}
    assert plastic.replaced == counts
    assert min(counts.values()) >= 20  # a run without replacements would prove nothing


class PooledConvNet(nn.Module):
    """conv, pool, flatten, linear, linear."""

    strides, paddings = (1, 1, 1), (0, 0, 0)
    layer_names = ("conv", "fc", "out")

    def __init__(self, pool: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 5, 3, padding=1)
        self.pool = nn.MaxPool2d(2) if pool == "max" else nn.AvgPool2d(2)
        self.fc = nn.Linear(5 * 4, 6)
        self.out = nn.Linear(6, 3)

    def hidden(self, x: Tensor) -> list[Tensor]:
        """Activations of each hidden layer as its consumer reads them."""
        pooled = self.pool(F.relu(self.conv(x)))
        return [pooled, torch.tanh(self.fc(pooled.flatten(1)))]

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(x)[-1])


class StridedConvNet(nn.Module):
    """conv, then a conv with stride and padding, flatten, linear."""

    strides, paddings = (1, 2, 1), (0, 1, 0)
    layer_names = ("first", "second", "out")

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 5, 2)
        self.second = nn.Conv2d(5, 4, 3, stride=2, padding=1)
        self.out = nn.Linear(4 * 4, 3)

    def hidden(self, x: Tensor) -> list[Tensor]:
        """Activations of each hidden layer as its consumer reads them."""
        first = F.relu(self.first(x))
        return [first, F.elu(self.second(first))]

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(x)[-1].flatten(1))


@pytest.mark.parametrize(
    ("kind", "utility", "compensate", "count"),
    [
        ("max", "overall", True, "eligible"),
        ("average", "contribution", True, "eligible"),
        ("strided", "overall", True, "eligible"),
        ("strided", "mean_corrected_contribution", True, "layer"),
        ("max", "weight_magnitude", False, "layer"),
    ],
)
def test_convolutions_agree_with_the_naive_reference(kind: str, utility: str, compensate: bool, count: str) -> None:
    net = StridedConvNet() if kind == "strided" else PooledConvNet(kind)
    shape = (2, 5, 5) if kind == "strided" else (2, 4, 4)
    twin = copy.deepcopy(net)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01, momentum=0.9) for one in (net, twin)]
    shared: dict[str, Any] = {
        "replacement_rate": 0.03,
        "maturity_threshold": 10,
        "decay_rate": 0.95,
        "utility": utility,
        "compensate": compensate,
        "count": count,
    }
    parameters = [
        (twin.get_parameter(f"{name}.weight"), twin.get_parameter(f"{name}.bias")) for name in twin.layer_names
    ]
    plastic = neoteny.attach(
        net, optimizers[0], neoteny.ContinualBackprop(**shared), example=torch.zeros(2, *shape), seed=5
    )
    reference = NaiveConvCBP(
        layer_names=twin.layer_names,
        scales=[1 / math.sqrt(weight[0].numel()) for weight, _ in parameters[:-1]],
        strides=twin.strides,
        paddings=twin.paddings,
        seed=5,
        **shared,
    )
    data = torch.Generator().manual_seed(3)
    for step in range(200):
        x = torch.randn(3, *shape, generator=data) + 0.3
        target = torch.randn(3, 3, generator=data)
        hidden: list[np.ndarray] = []
        for one, optimizer in zip((net, twin), optimizers, strict=True):
            optimizer.zero_grad()
            (one(x) - target).square().mean().backward()
            with torch.no_grad():
                hidden = [value.numpy() for value in one.hidden(x)]
            optimizer.step()
        plastic.step()
        velocity = optimizers[1].state
        # .numpy() shares memory, so the reference writes into the twin and into its optimizer
        layers = [(weight.detach().numpy(), bias.detach().numpy()) for weight, bias in parameters]
        moments = [tuple(velocity[p]["momentum_buffer"].numpy() for p in pair) for pair in parameters]
        expected = reference.tick(hidden, layers, [moments])
        assert replaced_now(plastic) == sorted(expected, key=lambda pair: (twin.layer_names.index(pair[0]), pair[1])), (
            step
        )

    for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)
        momenta = [optimizers[i].state[one]["momentum_buffer"] for i, one in enumerate((mine, theirs))]
        torch.testing.assert_close(momenta[0], momenta[1], rtol=0, atol=1e-9)
    assert reference.statistics is not None
    for name, expected in zip(net.layer_names, reference.statistics, strict=False):
        values = statistics_of(plastic)[name]
        np.testing.assert_allclose(values["mean_activation"], expected.mean, rtol=0, atol=1e-9)
        if utility != "random":
            np.testing.assert_allclose(values["utility"], expected.utility, rtol=0, atol=1e-9)
        assert plastic.replaced[name] >= 10
