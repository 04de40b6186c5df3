"""Methods against their naive references, update by update in float64, attached to a module and in a stack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from neoteny.methods import UPGD, HareAndTortoise, L2Init, ReDo, Spectral
from reference import hare_and_tortoise, l2_init, mlp, philox, redo, spectral, upgd
from reference.learner import Learner
from support.method_agreement import (
    ACTIVATIONS,
    HIDDEN,
    INPUTS,
    NAMES,
    Case,
    agree_attached,
    agree_in_a_stack,
    alternate,
    both_optimizers,
    fresh_rows,
    normal_draws,
    optimizer_agrees_as_torch_optimizer,
    optimizer_agrees_in_a_stack,
    reference_optimizer,
)

pytestmark = pytest.mark.usefixtures("double_precision")


def check_redo(reference: redo.NaiveReDo, replaced: dict[str, int]) -> None:
    """What the method counted, and that the case tested something."""
    units = [pair for update in reference.reset for pair in update]
    assert replaced == {name: sum(layer == number for layer, _ in units) for number, name in enumerate(NAMES[:-1])}
    assert len(units) >= 20


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

    return Case(f"redo {period} {threshold}", ReDo(period=period, threshold=threshold), make, finish=check_redo)


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


def resets_the_same_units(net: nn.Module, reference: Any, trained: list[Tensor]) -> None:
    """Only a unit's own reset writes anything but zeros into its incoming weights."""
    if not isinstance(reference, redo.NaiveReDo):
        return
    now, before = [net.get_parameter(name).detach() for name in ("0.weight", "2.weight")], trained[:4:2]
    drawn = [((new != old) & (new != 0)).any(-1) for new, old in zip(now, before, strict=True)]
    assert [(layer, int(unit)) for layer, rows in enumerate(drawn) for unit in rows.nonzero()] == reference.reset[-1]


class TestAMethodAndItsReference:
    @pytest.mark.parametrize(("case", "optimizer_name"), both_optimizers(CASES))
    def test_agree_at_every_update_attached(self, case: Case, optimizer_name: str) -> None:
        agree_attached(case, optimizer_name, resets_the_same_units)

    @pytest.mark.parametrize(
        ("case", "optimizer_name"), alternate(CASES), ids=lambda value: getattr(value, "label", value)
    )
    def test_agree_at_every_update_in_a_stack(self, case: Case, optimizer_name: str) -> None:
        agree_in_a_stack(case, optimizer_name)


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
        return normal_draws(seed, "upgd", layers[layer][part].shape, update, layer, part)

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
        optimizer_agrees_as_torch_optimizer(method, lambda layers, seed: upgd_reference(method, layers, seed))

    def test_agree_at_every_update_in_a_stack(self, method: UPGD) -> None:
        optimizer_agrees_in_a_stack(method, lambda layers, seed: upgd_reference(method, layers, seed))
