"""Resets of units and of single weights against their naive references, update by update in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from neoteny.methods import (
    CalibratedPartialResets,
    ReDo,
    ReGraMa,
    SelectiveWeightReinit,
    SelfNormalizedResets,
)
from reference import cpr, mlp, philox, redo, regrama, snr, swr
from support.method_agreement import (
    ACTIVATIONS,
    BATCH,
    HIDDEN,
    INPUTS,
    NAMES,
    Case,
    agree_attached,
    agree_in_a_stack,
    alternate,
    both_optimizers,
    fresh_rows,
    reference_optimizer,
)

pytestmark = pytest.mark.usefixtures("double_precision")


def check_units(reference: redo.NaiveReDo, replaced: dict[str, int]) -> None:
    """What the method counted, and that the case tested something."""
    units = [pair for update in reference.reset for pair in update]
    assert replaced == {name: sum(layer == number for layer, _ in units) for number, name in enumerate(NAMES[:-1])}
    assert len(units) >= 15


def scheduled_case(period: int, schedule: int, share: float) -> Case:
    def make(layers: mlp.Layers, seed: int, optimizer: str) -> redo.NaiveReDo:
        return redo.NaiveReDo(
            layers,
            ACTIVATIONS,
            reference_optimizer(optimizer),
            fresh=fresh_rows(seed),
            period=period,
            schedule=schedule,
            share=share,
        )

    method = ReDo(period=period, schedule=schedule, share=share)
    return Case(f"redo scheduled {schedule}", method, make, finish=check_units)


def regrama_case(period: int, threshold: float, score: regrama.Score) -> Case:
    def make(layers: mlp.Layers, seed: int, optimizer: str) -> regrama.NaiveReGraMa:
        return regrama.NaiveReGraMa(
            layers,
            ACTIVATIONS,
            reference_optimizer(optimizer),
            fresh=fresh_rows(seed),
            period=period,
            threshold=threshold,
            score=score,
        )

    return Case(f"regrama {score}", ReGraMa(period, threshold, score), make, finish=check_units)


def check_thresholds(reference: snr.NaiveSNR, replaced: dict[str, int]) -> None:
    check_units(reference, replaced)
    thresholds = {threshold for layer in reference.thresholds for threshold in layer}
    assert len(thresholds) > 1  # units have learned different ones


def snr_case(rejection: float, first: int, longest: int, period: int, clock: str, boundary: int = 0) -> Case:
    def make(layers: mlp.Layers, seed: int, optimizer: str) -> snr.NaiveSNR:
        return snr.NaiveSNR(
            layers,
            ACTIVATIONS,
            reference_optimizer(optimizer),
            fresh=fresh_rows(seed),
            rejection=rejection,
            first_threshold=first,
            longest=longest * BATCH,
            period=period if clock == "updates" else 0,
        )

    method = SelfNormalizedResets(rejection, first, longest, period, clock)
    return Case(f"snr {clock}", method, make, boundary=boundary, finish=check_thresholds)


def check_shares(reference: cpr.NaiveCPR, replaced: dict[str, int]) -> None:
    shares = np.array([r for layers in reference.shares for units in layers for r in units])
    assert replaced == {}
    assert shares.max() == reference.strength
    assert shares.min() < 0.1 * reference.strength


def cpr_case(period: int, strength: float, decay_rate: float) -> Case:
    def make(layers: mlp.Layers, seed: int, optimizer: str) -> cpr.NaiveCPR:
        def fresh(update: int, layer: int, unit: int) -> np.ndarray:
            fan_in = (INPUTS, *HIDDEN)[layer]
            draws = philox.uniform(seed, update, f"{NAMES[layer]}.weight/partial", unit, fan_in)
            return (2.0 * draws - 1.0) / math.sqrt(fan_in)

        return cpr.NaiveCPR(
            layers,
            ACTIVATIONS,
            reference_optimizer(optimizer),
            fresh=fresh,
            period=period,
            strength=strength,
            decay_rate=decay_rate,
        )

    method = CalibratedPartialResets(period, strength, decay_rate=decay_rate)
    return Case(f"cpr {strength}", method, make, finish=check_shares)


def check_redrawn(reference: swr.NaiveSWR, replaced: dict[str, int]) -> None:
    assert replaced == {}
    assert sum(map(len, reference.redrawn)) >= 15
    assert {layer for each in reference.redrawn for layer, _ in each} == {0, 1, 2}


def swr_case(period: int, amount: float, utility: swr.Utility, rule: swr.Rule, decay_rate: float) -> Case:
    def make(layers: mlp.Layers, seed: int, optimizer: str) -> swr.NaiveSWR:
        shapes = [weight.shape for weight, _ in layers]

        def fresh(update: int, layer: int) -> np.ndarray:
            rows, fan_in = shapes[layer]
            name = f"{NAMES[layer]}.weight/reinit"
            drawn = np.stack([philox.uniform(seed, update, name, row, fan_in) for row in range(rows)])
            return (2.0 * drawn - 1.0) / math.sqrt(fan_in)

        def draw(update: int, layer: int) -> float:
            return float(philox.uniform(seed, update, f"{NAMES[layer]}.weight/reinit_count", 0, 1)[0])

        return swr.NaiveSWR(
            layers,
            ACTIVATIONS,
            reference_optimizer(optimizer),
            fresh=fresh,
            draw=draw,
            period=period,
            amount=amount,
            utility=utility,
            rule=rule,
            decay_rate=decay_rate,
        )

    method = SelectiveWeightReinit(period, amount, utility, rule, decay_rate)
    return Case(f"swr {utility} {rule} {decay_rate}", method, make, finish=check_redrawn)


CASES = [
    scheduled_case(9, 300, 0.5),
    regrama_case(7, 0.3, "weights"),
    regrama_case(5, 0.3, "activations"),
    snr_case(0.1, 12, 12, 25, "updates"),
    snr_case(0.3, 9, 6, 1, "tasks", boundary=30),
    cpr_case(10, 0.1, 0.8),
    swr_case(10, 0.1, "gradient", "proportional", 0.0),
    swr_case(7, 0.4, "magnitude", "threshold", 0.5),
    swr_case(7, 0.1, "gradient", "threshold", 0.9),
    swr_case(10, 0.13, "magnitude", "proportional", 0.0),
]


def resets_the_same_units(net: nn.Module, reference: Any, trained: list[Tensor]) -> None:
    """Only a unit's own reset writes anything but zeros into its incoming weights."""
    if not isinstance(reference, redo.NaiveReDo):
        return
    now, before = [net.get_parameter(name).detach() for name in ("0.weight", "2.weight")], trained[:4:2]
    drawn = [((new != old) & (new != 0)).any(-1) for new, old in zip(now, before, strict=True)]
    found = [(layer, int(unit)) for layer, rows in enumerate(drawn) for unit in rows.nonzero()]
    assert found == sorted(reference.reset[-1])


class TestAMethodAndItsReference:
    @pytest.mark.parametrize(("case", "optimizer_name"), both_optimizers(CASES))
    def test_agree_at_every_update_attached(self, case: Case, optimizer_name: str) -> None:
        agree_attached(case, optimizer_name, resets_the_same_units)

    @pytest.mark.parametrize(
        ("case", "optimizer_name"), alternate(CASES), ids=lambda value: getattr(value, "label", value)
    )
    def test_agree_at_every_update_in_a_stack(self, case: Case, optimizer_name: str) -> None:
        agree_in_a_stack(case, optimizer_name)
