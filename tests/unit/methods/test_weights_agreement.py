"""Resets and projections of weights against their naive references, update by update in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import (
    DASH,
    FIRE,
    SGD,
    Adam,
    HardReset,
    NormalizeAndProject,
    PlasticityInjection,
    SoftShrinkAndPerturb,
    WarmStartShrinkAndPerturb,
    WeightClipping,
)
from reference import dash, fire, hard_reset, mlp, philox, plasticity_injection, projections, shrink_and_perturb
from reference.learner import Learner
from support.method_agreement import (
    ACTIVATIONS,
    INPUTS,
    NAMES,
    SEEDS,
    STEP_SIZE,
    STEPS,
    STEPS_IN_A_STACK,
    Case,
    agree_attached,
    agree_in_a_stack,
    alternate,
    batches,
    both_optimizers,
    flat,
    live,
    make_network,
    reference_optimizer,
    squared_error,
)

pytestmark = pytest.mark.usefixtures("double_precision")


def fresh_network(seed: int, purpose: str, layers: mlp.Layers) -> shrink_and_perturb.FreshNetwork:
    """torch's law of a Linear's weights and biases, drawn as the library draws it: a row of draws per row."""

    def draw(number: int, layer: int, part: int) -> np.ndarray:
        weight = layers[layer][0]
        bound = 1.0 / math.sqrt(weight.shape[1])
        if part == 1:
            bias = philox.uniform(seed, number, f"{NAMES[layer]}.bias/{purpose}", 0, len(weight))
            return bound * (2.0 * bias - 1.0)
        rows = [
            philox.uniform(seed, number, f"{NAMES[layer]}.weight/{purpose}", row, weight.shape[1])
            for row in range(len(weight))
        ]
        return bound * (2.0 * np.stack(rows) - 1.0)

    return draw


def warm_start_case(method: WarmStartShrinkAndPerturb, label: str) -> Case:
    settings: Any = method.hyperparameters()

    def make(layers: mlp.Layers, seed: int, optimizer: str) -> Learner:
        drawn = fresh_network(seed, "shrink_and_perturb", layers) if method.towards == "fresh" else None
        return shrink_and_perturb.NaiveWarmStart(
            layers,
            ACTIVATIONS,
            reference_optimizer(optimizer),
            shrink=settings["shrink"],
            perturb=settings["perturb"],
            fresh=drawn,
            clear=settings["clear_optimizer"],
        )

    return Case(label, method, make, boundary=30)


def soft_case(rate: float) -> Case:
    def make(layers: mlp.Layers, seed: int, optimizer: str) -> Learner:
        return shrink_and_perturb.NaiveSoftShrinkAndPerturb(
            layers,
            ACTIVATIONS,
            reference_optimizer(optimizer),
            rate=rate,
            fresh=fresh_network(seed, "soft_shrink_and_perturb", layers),
        )

    return Case(f"soft shrink and perturb {rate}", SoftShrinkAndPerturb(rate), make)


def reset_case(method: HardReset, reset: list[int], label: str, boundary: int = 0) -> Case:
    def make(layers: mlp.Layers, seed: int, optimizer: str) -> Learner:
        settings: Any = method.hyperparameters()
        return hard_reset.NaiveHardReset(
            layers,
            ACTIVATIONS,
            reference_optimizer(optimizer),
            fresh=fresh_network(seed, "hard_reset", layers),
            reset=reset,
            period=settings["period"],
            share=settings["rest"],
        )

    def finish(reference: hard_reset.NaiveHardReset, replaced: dict[str, int]) -> None:
        assert reference.resets >= 3

    return Case(label, method, make, boundary=boundary, finish=finish)


def clipping_case(bound: float, spare_output: bool) -> Case:
    def make(layers: mlp.Layers, seed: int, optimizer: str) -> Learner:
        return projections.NaiveWeightClipping(
            layers, ACTIVATIONS, reference_optimizer(optimizer), bound=bound, spare_output=spare_output
        )

    def finish(reference: projections.NaiveWeightClipping, replaced: dict[str, int]) -> None:
        assert reference.touched > 50

    return Case(f"clipping {bound} {spare_output}", WeightClipping(bound, spare_output), make, finish=finish)


def projection_case(project_output: bool) -> Case:
    def make(layers: mlp.Layers, seed: int, optimizer: str) -> Learner:
        return projections.NaiveNormalizeAndProject(
            layers, ACTIVATIONS, reference_optimizer(optimizer), project_output=project_output
        )

    method = NormalizeAndProject(project_output=project_output, presume_norms=True)
    return Case(f"projection, output {project_output}", method, make)


def fire_case(iterations: int) -> Case:
    def make(layers: mlp.Layers, seed: int, optimizer: str) -> Learner:
        return fire.NaiveFIRE(layers, ACTIVATIONS, reference_optimizer(optimizer), iterations=iterations)

    return Case(f"fire {iterations}", FIRE(iterations), make, boundary=40)


CASES = [
    warm_start_case(WarmStartShrinkAndPerturb(), "warm start"),
    warm_start_case(WarmStartShrinkAndPerturb.towards_initial(0.8), "towards initial"),
    warm_start_case(WarmStartShrinkAndPerturb(0.7, 0.2, clear_optimizer=False), "warm start, optimizer kept"),
    soft_case(1e-2),
    reset_case(HardReset.head(period=31), [2], "head on a clock"),
    reset_case(HardReset.from_scratch(), [0, 1, 2], "from scratch", boundary=41),
    reset_case(HardReset(("2", "4"), period=40, rest=0.5), [1, 2], "bbf"),
    clipping_case(0.8, False),
    clipping_case(0.5, True),
    projection_case(False),
    projection_case(True),
    fire_case(10),
    fire_case(1),
]


class TestAMethodAndItsReference:
    @pytest.mark.parametrize(("case", "optimizer_name"), both_optimizers(CASES))
    def test_agree_at_every_update_attached(self, case: Case, optimizer_name: str) -> None:
        agree_attached(case, optimizer_name)

    @pytest.mark.parametrize(
        ("case", "optimizer_name"), alternate(CASES), ids=lambda value: getattr(value, "label", value)
    )
    def test_agree_at_every_update_in_a_stack(self, case: Case, optimizer_name: str) -> None:
        agree_in_a_stack(case, optimizer_name)


# ------------------------------------------------------------------------------------------------------------- DASH


@pytest.mark.parametrize("stacked", [False, True])
def test_dash_agrees_at_every_boundary(stacked: bool) -> None:
    rate, floor = 0.3, 0.2
    net = make_network(0)
    method = DASH(rate, floor)
    for boundary in range(4):
        pieces = [(x[0], y[0]) for x, y in batches(12)[3 * boundary : 3 * boundary + 3]]
        gradients: list[mlp.Layers] = []
        for x, y in pieces:
            net.zero_grad()
            squared_error(net(x), y).backward()
            gradients.append(
                [
                    (net.get_parameter(f"{name}.weight").grad.numpy(), net.get_parameter(f"{name}.bias").grad.numpy())  # pyright: ignore
                    for name in NAMES
                ]
            )
            gradients[-1] = [(weight.copy(), bias.copy()) for weight, bias in gradients[-1]]
        net.zero_grad()
        expected = [
            tuple(
                dash.shrunk(part.copy(), [given[layer][number] for given in gradients], rate, floor)
                for number, part in enumerate(pair)
            )
            for layer, pair in enumerate(live(net))
        ]
        if stacked:
            runs = neoteny.stack([net], SGD(0.01), method, loss=squared_error)
            runs.task_boundary([(x[None], y[None]) for x, y in pieces])
            net = runs.module(0)
        else:
            plastic = neoteny.attach(net, torch.optim.SGD(net.parameters(), 0.01), method)
            plastic.task_boundary(pieces, squared_error)
            plastic.detach()
        np.testing.assert_allclose(flat(live(net)), flat(expected), rtol=1e-12, atol=1e-15)  # pyright: ignore


# -------------------------------------------------------------------------------------------- plasticity injection


def injected_head(tensors: dict[str, Tensor], name: str) -> tuple[np.ndarray, np.ndarray]:
    """The head as one layer: what it computes is linear."""

    def total(prefix: str, key: str) -> np.ndarray:
        if f"{prefix}.{key}" in tensors:
            return tensors[f"{prefix}.{key}"].detach().numpy()
        parts = [total(f"{prefix}.{part}", key) for part in ("frozen", "trained", "anchor")]
        return parts[0] + parts[1] - parts[2]

    return total(name, "weight"), total(name, "bias")


def assert_same_network(tensors: dict[str, Tensor], reference: plasticity_injection.NaiveInjection, place: Any) -> None:
    for name, pair in zip(NAMES[:-1], reference.layers[:-1], strict=True):
        for key, array in zip(("weight", "bias"), pair, strict=True):
            np.testing.assert_allclose(tensors[f"{name}.{key}"].detach().numpy(), array, rtol=1e-9, atol=1e-12)
    for ours, trained, offset in zip(
        injected_head(tensors, NAMES[-1]), reference.layers[-1], reference.offset, strict=True
    ):
        np.testing.assert_allclose(ours, trained + offset, rtol=1e-9, atol=1e-12, err_msg=str(place))


def naive_injection(net: nn.Module, seed: int, optimizer: str, at: int) -> plasticity_injection.NaiveInjection:
    layers = live(net)
    drawn = fresh_network(seed, "plasticity_injection", layers)

    def fresh(number: int, layer: int, part: int) -> np.ndarray:
        if number == 1:
            return drawn(number, layer, part)
        weight = layers[layer][0]  # from the second on it is the trained part that is drawn again
        bound = 1.0 / math.sqrt(weight.shape[1])
        rows = len(weight) if part == 0 else 1
        columns = weight.shape[1] if part == 0 else len(weight)
        key = f"4.trained.{('weight', 'bias')[part]}/plasticity_injection"
        numbers = np.stack([philox.uniform(seed, number, key, row, columns) for row in range(rows)])
        return (bound * (2.0 * numbers - 1.0)).reshape(weight.shape if part == 0 else len(weight))

    return plasticity_injection.NaiveInjection(layers, ACTIVATIONS, reference_optimizer(optimizer), fresh=fresh, at=at)


@pytest.mark.parametrize("optimizer_name", [pytest.param("sgd", marks=pytest.mark.slow), "adam"])
def test_plasticity_injection_agrees_at_every_update_attached(optimizer_name: str) -> None:
    net = make_network(0)
    reference = naive_injection(net, SEEDS[0], optimizer_name, at=50)
    make_optimizer = neoteny.optim.Adam if optimizer_name == "adam" else torch.optim.SGD
    optimizer = make_optimizer(net.parameters(), lr=STEP_SIZE[optimizer_name])
    plastic = neoteny.attach(net, optimizer, PlasticityInjection(at=50, at_boundaries=True), seed=SEEDS[0])
    for step, (x, y) in enumerate(batches(STEPS)):
        if step == 200:
            plastic.task_boundary()
            reference.task_boundary()
        optimizer.zero_grad()
        loss = squared_error(net(x[0]), y[0])
        loss.backward()
        optimizer.step()
        plastic.step()
        assert loss.item() == pytest.approx(reference.step(x[0].numpy(), y[0].numpy()), rel=1e-9), step
        assert_same_network(net.state_dict(), reference, step)
    assert reference.injections == 2


def test_plasticity_injection_agrees_at_every_update_in_a_stack() -> None:
    nets = [make_network(run) for run in range(len(SEEDS))]
    references = [naive_injection(net, seed, "adam", at=40) for net, seed in zip(nets, SEEDS, strict=True)]
    method = PlasticityInjection(at=40, at_boundaries=True)
    runs = neoteny.stack(nets, Adam(STEP_SIZE["adam"]), method, loss=squared_error, seeds=SEEDS)
    for step, (x, y) in enumerate(batches(STEPS_IN_A_STACK)):
        if step == 90:
            runs.task_boundary()
        losses = runs.step(x, y).losses
        for run, reference in enumerate(references):
            if step == 90:
                reference.task_boundary()
            expected = reference.step(x[run].numpy(), y[run].numpy())
            assert float(losses[run]) == pytest.approx(expected, rel=1e-9), (run, step)
            tensors = {name: value[run] for name, value in runs.view.tensors.items()}
            assert_same_network(tensors, reference, (run, step))
    assert nets[0][0].in_features == INPUTS
