"""Regularisers against their naive references, update by update in float64, attached to a module and in a stack."""

from __future__ import annotations

from typing import Any

import pytest

from neoteny.methods import L2ER, CChain, L2Init, Parseval, Spectral, Wasserstein
from reference import c_chain, l2_er, l2_init, mlp, parseval, philox, spectral, wasserstein
from reference.learner import Learner
from support.method_agreement import (
    ACTIVATIONS,
    HIDDEN,
    INPUTS,
    NAMES,
    STEP_SIZE,
    Case,
    agree_attached,
    agree_in_a_stack,
    alternate,
    both_optimizers,
    reference_optimizer,
)

pytestmark = pytest.mark.usefixtures("double_precision")


def l2_init_case(strength: float, norm: l2_init.Norm, decoupled: bool) -> Case:
    def make(layers: mlp.Layers, seed: int, optimizer: str) -> Learner:
        return l2_init.NaiveL2Init(
            layers,
            ACTIVATIONS,
            reference_optimizer(optimizer),
            strength=strength,
            norm=norm,
            decoupled_step_size=STEP_SIZE[optimizer] if decoupled else None,
        )

    label = f"l2-init {norm}{' decoupled' if decoupled else ''}"
    return Case(label, L2Init(strength, norm=norm, decoupled=decoupled), make)


def wasserstein_case(strength: float, mean: bool) -> Case:
    def make(layers: mlp.Layers, seed: int, optimizer: str) -> Learner:
        return wasserstein.NaiveWasserstein(
            layers, ACTIVATIONS, reference_optimizer(optimizer), strength=strength, mean=mean
        )

    return Case(f"wasserstein{' mean' if mean else ''}", Wasserstein(strength, mean=mean), make)


def parseval_case(strength: float, scale: float, width: int | None, with_output: bool) -> Case:
    def make(layers: mlp.Layers, seed: int, optimizer: str) -> Learner:
        return parseval.NaiveParseval(
            layers,
            ACTIVATIONS,
            reference_optimizer(optimizer),
            strength=strength,
            scale=scale,
            reference_width=width,
            with_output=with_output,
        )

    method = Parseval(strength, scale=scale, reference_width=width, outputs=() if with_output else None)
    return Case(f"parseval {scale} {width}", method, make)


def spectral_case(strength: float, target: float, iterations: int) -> Case:
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
            target=target,
            iterations=iterations,
        )

    method = Spectral(strength, bias_power=1, target=target, iterations=iterations)
    return Case(f"spectral target {target}", method, make)


def rank_rises(reference: l2_er.NaiveL2ER, replaced: dict[str, int]) -> None:
    """The case tested something."""
    assert len(reference.ranks) >= 20


def l2_er_case(period: int, size: float, last_layers: int) -> Case:
    def make(layers: mlp.Layers, seed: int, optimizer: str) -> Learner:
        return l2_er.NaiveL2ER(
            layers,
            ACTIVATIONS,
            reference_optimizer(optimizer),
            strength=1e-3,
            period=period,
            size=size,
            last_layers=last_layers,
        )

    method = L2ER(1e-3, period=period, rank_step_size=size, last_layers=last_layers)
    return Case(f"l2-er {last_layers}", method, make, finish=rank_rises)


def coefficient_moves(reference: c_chain.NaiveCChain, replaced: dict[str, int]) -> None:
    """The case tested something: distances are seen, and an adaptive coefficient changes."""
    assert max(reference.distances) > 0.0
    if reference.beta is not None:
        assert len(set(reference.coefficients[-50:])) > 20


def c_chain_case(fixed: float, kind: c_chain.Distance, boundary: int = 0, **settings: Any) -> Case:
    def make(layers: mlp.Layers, seed: int, optimizer: str) -> Learner:
        return c_chain.NaiveCChain(
            layers, ACTIVATIONS, reference_optimizer(optimizer), fixed=fixed, kind=kind, **settings
        )

    names = {"age": "reference_age"}
    method = CChain(
        fixed, distance=kind, **{"beta": None, **{names.get(key, key): value for key, value in settings.items()}}
    )
    return Case(f"c-chain {kind} {settings.get('beta', 'fixed')}", method, make, boundary, finish=coefficient_moves)


CASES = [
    l2_init_case(0.1, "l1", False),
    l2_init_case(0.1, "huber", False),
    l2_init_case(0.5, "l2", True),
    wasserstein_case(0.05, False),
    wasserstein_case(0.5, True),
    parseval_case(1e-4, 2.0, 64, False),
    parseval_case(0.02, 1.0, None, True),
    spectral_case(0.02, 2.0, 3),
    l2_er_case(7, 0.01, 0),
    l2_er_case(5, 0.01, 1),
    c_chain_case(5.0, "mse"),
    c_chain_case(0.5, "cross_entropy", lag=2, age=4),
    c_chain_case(2.0, "mse", boundary=60, beta=5e-4, window=40, warmup=15, minimum=1.5, reset_at_boundary=True),
]


class TestARegulariserAndItsReference:
    @pytest.mark.parametrize(("case", "optimizer_name"), both_optimizers(CASES))
    def test_agree_at_every_update_attached(self, case: Case, optimizer_name: str) -> None:
        agree_attached(case, optimizer_name)

    @pytest.mark.parametrize(
        ("case", "optimizer_name"), alternate(CASES), ids=lambda value: getattr(value, "label", value)
    )
    def test_agree_at_every_update_in_a_stack(self, case: Case, optimizer_name: str) -> None:
        agree_in_a_stack(case, optimizer_name)
