"""Methods against their naive references, update by update in float64, attached to a module and in a stack."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import UPGD, HareAndTortoise, L2Init, Method, ReDo, Spectral
from reference import cbp, hare_and_tortoise, l2_init, mlp, philox, redo, spectral, upgd
from reference.learner import Learner

pytestmark = pytest.mark.usefixtures("double_precision")

INPUTS, HIDDEN, OUTPUTS, BATCH = 3, (6, 4), 2, 3
NAMES = ("0", "2", "4")
ACTIVATIONS = ["relu", "tanh"]
SEEDS = (-77, 12)
STEPS = 260  # the inputs' scale goes once up and down
STEPS_IN_A_STACK = 150  # that a stack is the same as its runs alone is tested for every method
STEP_SIZE = {"sgd": 0.01, "adam": 0.003}


def make_network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    first, second = HIDDEN
    return nn.Sequential(
        nn.Linear(INPUTS, first), nn.ReLU(), nn.Linear(first, second), nn.Tanh(), nn.Linear(second, OUTPUTS)
    )


def arrays(tensors: Mapping[str, Tensor]) -> mlp.Layers:
    """Weights and biases by name as the references take them."""
    return [(tensors[f"{name}.weight"].numpy(), tensors[f"{name}.bias"].numpy()) for name in NAMES]


def live(net: nn.Module) -> mlp.Layers:
    """A network's weights and biases as they are now."""
    return arrays({name: value.detach() for name, value in net.named_parameters()})


def live_run(runs: neoteny.Stack, run: int) -> mlp.Layers:
    """The weights and biases of one run of a stack as they are now."""
    return arrays({name: value[run].detach() for name, value in runs.view.tensors.items()})


def batches(steps: int) -> list[tuple[Tensor, Tensor]]:
    """Inputs (runs, B, in) whose scale changes, and targets (runs, B, out)."""
    generator = torch.Generator().manual_seed(3)
    found: list[tuple[Tensor, Tensor]] = []
    for step in range(steps):
        x = torch.randn(len(SEEDS), BATCH, INPUTS, generator=generator) + math.sin(step / 40)
        found.append((x, torch.randn(len(SEEDS), BATCH, OUTPUTS, generator=generator)))
    return found


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().sum(-1).mean()


def fresh_rows(seed: int) -> Callable[[int, int, int], np.ndarray]:
    """torch's default law for a Linear's weights, drawn as the library draws it."""

    def draw(update: int, layer: int, unit: int) -> np.ndarray:
        fan_in = (INPUTS, *HIDDEN)[layer]
        return cbp.draw_incoming(seed, update, NAMES[layer], unit, fan_in, 1 / math.sqrt(fan_in), "uniform")

    return draw


def reference_optimizer(name: str) -> cbp.Optimizer:
    return cbp.Adam(STEP_SIZE[name]) if name == "adam" else cbp.SGD(STEP_SIZE[name])


@dataclass(frozen=True)
class Case:
    """A method with settings, and how its reference is made from (layers, seed, optimizer's name)."""

    label: str
    method: Method
    reference: Callable[[mlp.Layers, int, str], Any]


def redo_case(period: int, threshold: float) -> Case:
    def make(layers: mlp.Layers, seed: int, optimizer: str) -> Learner:
        return redo.NaiveReDo(
            layers,
            ACTIVATIONS,
            reference_optimizer(optimizer),
            fresh=fresh_rows(seed),
            period=period,
            threshold=threshold,
            shared_weights="zero",
        )

    return Case(f"redo {period} {threshold}", ReDo(period=period, threshold=threshold), make)


def l2_init_case(strength: float) -> Case:
    def make(layers: mlp.Layers, seed: int, optimizer: str) -> Learner:
        return l2_init.NaiveL2Init(layers, ACTIVATIONS, reference_optimizer(optimizer), strength=strength)

    return Case(f"l2-init {strength}", L2Init(strength), make)


def spectral_case(strength: float, power: int, bias_term: spectral.BiasTerm) -> Case:
    def make(layers: mlp.Layers, seed: int, optimizer: str) -> Learner:
        widths = (INPUTS, *HIDDEN)
        start = [
            philox.normal(seed, 0, f"{name}.weight/spectral", 0, width)
            for name, width in zip(NAMES, widths, strict=True)
        ]
        return spectral.NaiveSpectral(
            layers,
            ACTIVATIONS,
            reference_optimizer(optimizer),
            start=start,
            strength=strength,
            exponent=power,
            bias_term=bias_term,
        )

    method = Spectral(strength, power=power, bias_power=power if bias_term == "power" else 1)
    return Case(f"spectral {power} {bias_term}", method, make)


def hare_and_tortoise_case(decay: float, period: int) -> Case:
    def make(layers: mlp.Layers, seed: int, optimizer: str) -> Learner:
        return hare_and_tortoise.NaiveHareAndTortoise(
            layers, ACTIVATIONS, reference_optimizer(optimizer), decay_rate=decay, period=period
        )

    return Case(f"hare and tortoise {period}", HareAndTortoise(decay, period), make)


CASES = [
    redo_case(7, 0.3),
    redo_case(1, 0.02),
    l2_init_case(0.1),
    spectral_case(0.02, 2, "power"),
    spectral_case(0.02, 3, "squared_norm"),
    hare_and_tortoise_case(0.99, 30),
]


def check_end(case: Case, reference: Any, replaced: dict[str, int]) -> None:
    """What the method counted, and that the case tested something."""
    if isinstance(reference, redo.NaiveReDo):
        units = [pair for update in reference.reset for pair in update]
        assert replaced == {name: sum(layer == number for layer, _ in units) for number, name in enumerate(NAMES[:-1])}
        assert len(units) >= 20, case.label


def flat(layers: mlp.Layers) -> np.ndarray:
    return np.concatenate([part.ravel() for pair in layers for part in pair])


def assert_same(ours: mlp.Layers, theirs: mlp.Layers, place: Any) -> None:
    """Equal to 1e-10 of each weight."""
    mine, other = flat(ours), flat(theirs)
    worst = np.max(np.abs(mine - other) - 1e-10 * np.abs(other))
    assert worst <= 1e-13, (place, worst)


class TestAMethodAndItsReference:
    @pytest.mark.parametrize("optimizer_name", ["sgd", "adam"])
    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
    def test_agree_at_every_update_attached(self, case: Case, optimizer_name: str) -> None:
        net = make_network(0)
        reference = case.reference(live(net), SEEDS[0], optimizer_name)
        make_optimizer = neoteny.optim.Adam if optimizer_name == "adam" else torch.optim.SGD
        optimizer = make_optimizer(net.parameters(), lr=STEP_SIZE[optimizer_name])
        plastic = neoteny.attach(net, optimizer, case.method, example=torch.zeros(1, INPUTS), seed=SEEDS[0])
        for step, (x, y) in enumerate(batches(STEPS)):
            optimizer.zero_grad()
            loss = squared_error(net(x[0]), y[0])
            loss.backward()
            optimizer.step()
            trained = [net.get_parameter(name).detach().clone() for name in ("0.weight", "2.weight")]
            plastic.step()
            expected = reference.step(x[0].numpy(), y[0].numpy())
            assert loss.item() == pytest.approx(expected, rel=1e-10), step
            assert_same(live(net), reference.layers, step)
            if isinstance(reference, redo.NaiveReDo):
                now = [net.get_parameter(name).detach() for name in ("0.weight", "2.weight")]
                # Only a unit's own reset writes anything but zeros into its incoming weights.
                drawn = [((new != old) & (new != 0)).any(-1) for new, old in zip(now, trained, strict=True)]
                units = [(layer, int(unit)) for layer, rows in enumerate(drawn) for unit in rows.nonzero()]
                assert units == reference.reset[-1], step
        check_end(case, reference, plastic.replaced)

    @pytest.mark.parametrize(
        ("case", "optimizer_name"),
        [(case, ("adam", "sgd")[number % 2]) for number, case in enumerate(CASES)],
        ids=lambda value: value if isinstance(value, str) else value.label,
    )
    def test_agree_at_every_update_in_a_stack(self, case: Case, optimizer_name: str) -> None:
        nets = [make_network(run) for run in range(len(SEEDS))]
        references = [case.reference(live(net), seed, optimizer_name) for net, seed in zip(nets, SEEDS, strict=True)]
        make_optimizer = neoteny.methods.Adam if optimizer_name == "adam" else neoteny.methods.SGD
        runs = neoteny.stack(
            nets,
            make_optimizer(STEP_SIZE[optimizer_name]),
            case.method,
            loss=squared_error,
            example=torch.zeros(1, INPUTS),
            seeds=SEEDS,
        )
        for step, (x, y) in enumerate(batches(STEPS_IN_A_STACK)):
            losses = runs.step(x, y).losses
            for run, reference in enumerate(references):
                expected = reference.step(x[run].numpy(), y[run].numpy())
                assert float(losses[run]) == pytest.approx(expected, rel=1e-10), (run, step)
                assert_same(live_run(runs, run), reference.layers, (run, step))
        for run, reference in enumerate(references):
            check_end(case, reference, {name: int(count[run]) for name, count in runs.replaced.items()})


SCALES: dict[str, upgd.Scaling] = {"corrected": "paper", "raw": "code", "local": "local"}
UPGD_CASES = [
    UPGD(0.02, decay_rate=0.9, noise_std=0.05, weight_decay=0.01, scale="corrected"),
    UPGD(0.02, decay_rate=0.99, noise_std=0.0, factor=2.0, scale="raw"),
    UPGD(0.02, decay_rate=0.9, noise_std=0.01, scale="local"),
    UPGD(0.01, decay_rate=0.99, noise_std=0.05, weight_decay=0.01, protect=False),
]


def upgd_reference(method: UPGD, layers: mlp.Layers, seed: int) -> upgd.NaiveUPGD:
    settings: Any = method.hyperparameters()

    def noise(update: int, layer: int, part: int) -> np.ndarray:
        shape = layers[layer][part].shape
        purpose = f"{NAMES[layer]}.{('weight', 'bias')[part]}/upgd"
        rows = [philox.normal(seed, update, purpose, row, shape[-1]) for row in range(shape[0] if part == 0 else 1)]
        return np.stack(rows).reshape(shape)

    return upgd.NaiveUPGD(
        layers,
        ACTIVATIONS,
        step_size=settings["step_size"],
        decay_rate=settings["decay_rate"],
        noise_std=settings["noise_std"],
        weight_decay=settings["weight_decay"],
        step_factor=settings["factor"],
        scaling=SCALES[settings["scale"]],
        protecting=settings["protect"],
        noise=noise,
    )


@pytest.mark.parametrize("method", UPGD_CASES, ids=["corrected", "raw", "local", "unprotected"])
class TestUPGDAndItsReference:
    def test_agree_at_every_update_as_a_torch_optimizer(self, method: UPGD) -> None:
        net = make_network(0)
        reference = upgd_reference(method, live(net), SEEDS[0])
        optimizer = neoteny.optim.from_method(method, net.named_parameters(), seed=SEEDS[0])
        for step, (x, y) in enumerate(batches(STEPS)):
            optimizer.zero_grad()
            loss = squared_error(net(x[0]), y[0])
            loss.backward()
            optimizer.step()
            assert loss.item() == pytest.approx(reference.step(x[0].numpy(), y[0].numpy()), rel=1e-10), step
            assert_same(live(net), reference.layers, step)

    def test_agree_at_every_update_in_a_stack(self, method: UPGD) -> None:
        nets = [make_network(run) for run in range(len(SEEDS))]
        references = [upgd_reference(method, live(net), seed) for net, seed in zip(nets, SEEDS, strict=True)]
        runs = neoteny.stack(nets, method, loss=squared_error, seeds=SEEDS)
        for step, (x, y) in enumerate(batches(STEPS_IN_A_STACK)):
            losses = runs.step(x, y).losses
            for run, reference in enumerate(references):
                expected = reference.step(x[run].numpy(), y[run].numpy())
                assert float(losses[run]) == pytest.approx(expected, rel=1e-10), (run, step)
                assert_same(live_run(runs, run), reference.layers, (run, step))
