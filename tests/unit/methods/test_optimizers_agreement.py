"""Optimizers, and methods that act around one, against their naive references, update by update in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import neoteny
from neoteny.methods import TRAC, AdamO, AdamRel, AdamW, AdaUPGD, FeatureUPGD, Method, Muon
from reference import ada_upgd, adam_decoupled, adam_rel, feature_upgd, mlp, muon, trac, upgd
from reference.learner import Learner
from support.method_agreement import (
    ACTIVATIONS,
    Case,
    agree_attached,
    agree_in_a_stack,
    alternate,
    both_optimizers,
    normal_draws,
    optimizer_agrees_as_torch_optimizer,
    optimizer_agrees_in_a_stack,
    reference_optimizer,
)

pytestmark = pytest.mark.usefixtures("double_precision")

SCALES: dict[str, upgd.Scaling] = {"corrected": "paper", "raw": "code", "local": "local"}


def upgd_settings(method: AdaUPGD | FeatureUPGD) -> dict[str, Any]:
    return {
        "decay_rate": method.decay_rate,
        "noise_std": method.noise_std,
        "weight_decay": method.weight_decay,
        "step_factor": method.factor,
        "scaling": SCALES[method.scale],
        "protecting": method.protect,
    }


def noise_of(layers: mlp.Layers, seed: int) -> upgd.Noise:
    def noise(update: int, layer: int, part: int) -> np.ndarray:
        return normal_draws(seed, "upgd", layers[layer][part].shape, update, layer, part)

    return noise


def feature_case(method: FeatureUPGD) -> Case:
    def make(layers: mlp.Layers, seed: int, optimizer: str) -> Learner:
        return feature_upgd.NaiveFeatureUPGD(
            layers,
            ACTIVATIONS,
            reference_optimizer(optimizer),
            noise=noise_of(layers, seed),
            **upgd_settings(method),
        )

    def finish(reference: feature_upgd.NaiveFeatureUPGD, replaced: dict[str, int]) -> None:
        assert reference.most > 0.7
        assert reference.least < 0.3
        assert replaced == {}

    return Case(f"feature-wise {method.scale} {method.protect}", method, make, finish=finish)


def trac_case(method: TRAC) -> Case:
    def make(layers: mlp.Layers, seed: int, optimizer: str) -> Learner:
        return trac.NaiveTRAC(
            layers,
            ACTIVATIONS,
            reference_optimizer(optimizer),
            s_0=float(method.initial_scale),  # pyright: ignore[reportArgumentType]
            eps=method.eps,
            betas=method.betas,
            start=float(method.initial_sigma),  # pyright: ignore[reportArgumentType]
        )

    def finish(reference: trac.NaiveTRAC, replaced: dict[str, int]) -> None:
        assert max(reference.totals) > 2.0 * min(reference.totals)

    return Case(f"trac {len(method.betas)}", method, make, finish=finish)


CASES = [
    feature_case(FeatureUPGD(decay_rate=0.9, noise_std=0.05, weight_decay=0.01)),
    feature_case(FeatureUPGD(decay_rate=0.99, noise_std=0.0, factor=2.0, scale="raw")),
    feature_case(FeatureUPGD(decay_rate=0.9, noise_std=0.02, weight_decay=0.02, scale="local", protect=False)),
    trac_case(TRAC(initial_scale=0.05, eps=0.1, initial_sigma=0.2)),
    trac_case(TRAC(initial_scale=0.05, eps=1e-3, initial_sigma=1e-3, betas=(0.9, 0.99))),
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


def adam_rel_case(period: int, boundary: int) -> Case:
    def make(layers: mlp.Layers, seed: int, optimizer: str) -> Learner:
        return adam_rel.NaiveAdamRel(layers, ACTIVATIONS, reference_optimizer(optimizer), period=period)

    def finish(reference: adam_rel.NaiveAdamRel, replaced: dict[str, int]) -> None:
        assert reference.restarts >= 3

    return Case(f"adam-rel {period} {boundary}", AdamRel(period), make, boundary=boundary, finish=finish)


@pytest.mark.parametrize("case", [adam_rel_case(0, 40), adam_rel_case(23, 60)], ids=lambda case: case.label)
class TestAdamRelAndItsReference:
    def test_agree_at_every_update_attached(self, case: Case) -> None:
        agree_attached(case, "adam")

    def test_agree_at_every_update_in_a_stack(self, case: Case) -> None:
        agree_in_a_stack(case, "adam")


OPTIMIZERS: list[Method] = [
    AdaUPGD(0.003, decay_rate=0.9, noise_std=0.02, weight_decay=0.01),
    AdaUPGD(0.003, decay_rate=0.99, noise_std=0.02, factor=1.0, scale="local", protect=False, betas=(0.8, 0.95)),
    AdamW(0.003, weight_decay=0.1),
    AdamO(0.003, strength=0.05, betas=(0.9, 0.99)),
    Muon(0.01, weight_decay=0.02),
]


def reference_of(method: Any, layers: mlp.Layers, seed: int) -> Any:
    if isinstance(method, AdaUPGD):
        return ada_upgd.NaiveAdaUPGD(
            layers,
            ACTIVATIONS,
            betas=method.betas,
            eps=method.eps,
            step_size=method.step_size,
            noise=noise_of(layers, seed),
            **upgd_settings(method),
        )
    if isinstance(method, Muon):
        settings = ("step_size", "momentum", "weight_decay", "adam_share", "betas", "eps")
        return muon.NaiveMuon(layers, ACTIVATIONS, **{name: getattr(method, name) for name in settings})
    return adam_decoupled.NaiveDecoupledAdam(
        layers,
        ACTIVATIONS,
        step_size=method.step_size,
        betas=method.betas,
        eps=method.eps,
        weight_decay=getattr(method, "weight_decay", 0.0),
        isometry=getattr(method, "strength", 0.0),
    )


@pytest.mark.parametrize("method", OPTIMIZERS, ids=["AdaUPGD", "AdaUPGD unprotected", "AdamW", "AdamO", "Muon"])
class TestAnOptimizerAndItsReference:
    def test_agree_at_every_update_as_a_torch_optimizer(self, method: Method) -> None:
        optimizer_agrees_as_torch_optimizer(method, lambda layers, seed: reference_of(method, layers, seed))

    def test_agree_at_every_update_in_a_stack(self, method: Method) -> None:
        optimizer_agrees_in_a_stack(method, lambda layers, seed: reference_of(method, layers, seed))


def test_the_public_names_are_the_methods() -> None:
    for name in ("AdaUPGD", "AdamO", "AdamRel", "FeatureUPGD", "Muon", "TRAC"):
        assert getattr(neoteny, name) is getattr(neoteny.methods, name)
