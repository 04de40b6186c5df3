"""What the dense kernels cover, that they are chosen for it, and that existing runs keep their identity."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from neoteny.backends.backend import make_backend
from neoteny.backends.kernel.backend import KernelBackend
from neoteny.backends.kernel.coverage import batch_of, why_not_covered, why_not_sparse
from neoteny.methods import (
    L2,
    SGD,
    UPGD,
    Adam,
    AdamW,
    ContinualBackprop,
    HareAndTortoise,
    L2Init,
    Method,
    ReDo,
    ReGraMa,
    SelectiveWeightReinit,
    SelfNormalizedResets,
    Spectral,
    WeightClipping,
)
from neoteny.nets import MLP
from neoteny.problems import PermutedMNIST, SlowlyChangingRegression
from neoteny.problems.problem import Stream
from neoteny.suite.configuration import canonical, choose_backend
from neoteny.suite.sweep import Setting, network
from support.dense_cases import SEEDS, Learner, build

ONE = PermutedMNIST(tasks=2, examples_per_task=64, source="synthetic")
MANY = replace(ONE, batch_size=16)


@pytest.mark.parametrize(
    ("problem", "options", "methods", "beyond"),
    [
        (MANY, {}, (SGD(0.1),), "16 examples per update are not covered"),
        (ONE, {}, (SGD(0.1), L2Init(0.1)), "a pull to initial weights is not covered"),
        (ONE, {}, (SGD(0.1), ReDo()), "resets by a score are not covered"),
        (ONE, {}, (SGD(0.1), ReGraMa()), "resets by a score are not covered"),
        (ONE, {}, (SGD(0.1), SelfNormalizedResets()), "resets by a score are not covered"),
        (ONE, {}, (SGD(0.1), HareAndTortoise()), "slow weights are not covered"),
        (ONE, {}, (SGD(0.1), WeightClipping(1.0)), "clipping is not covered"),
        (ONE, {}, (SGD(0.1), SelectiveWeightReinit(9, 0.1)), "redrawn weights are not covered"),
        (ONE, {}, (Adam(0.1), SelectiveWeightReinit(9, 0.1)), "redrawn weights are not covered"),
        (ONE, {}, (AdamW(0.1),), "decoupled weight decay is not covered"),
        (ONE, {}, (UPGD(0.1),), "the optimizer 'upgd' is not covered"),
        (ONE, {"activation": "crelu"}, (SGD(0.1),), "the activation CReLU(dim=1) is not covered"),
        (ONE, {"normalization": "layer"}, (SGD(0.1),), "the norms of the MLP differ, or are not OnlineNorm"),
        (SlowlyChangingRegression(), {}, (Adam(0.1), L2Init(0.1)), "a pull to initial weights is not covered"),
    ],
    ids=str,
)
def test_it_is_chosen_for_what_the_kernels_for_one_example_do_not_cover(
    problem: Any, options: dict[str, Any], methods: tuple[Method, ...], beyond: str
) -> None:
    settings = {"hidden": (5,), **options}
    module = MLP(problem.input_shape[0], outputs=problem.outputs, **settings)
    assert why_not_sparse(module, methods, problem.loss, batch_of(problem)).startswith(beyond)
    assert why_not_covered(problem, MLP, settings, methods) == ""


@pytest.mark.parametrize(
    ("problem", "options", "methods", "words"),
    [
        (MANY, {"dropout": 0.1}, (SGD(0.1),), "dropout is not covered"),
        (MANY, {"normalization": "online"}, (SGD(0.1),), "not layer norms"),
        (MANY, {"activation": "aid"}, (SGD(0.1),), "the activation AID(p=0.9) is not covered"),
        (MANY, {"activation": "fourier"}, (SGD(0.1),), "DeepFourier"),
        (ONE, {}, (SGD(0.1), Spectral(0.1)), "Spectral is not covered"),
        (ONE, {}, (SGD(0.1), L2Init(0.1, norm="l1")), "L2Init with another norm"),
        (ONE, {}, (SGD(0.1), L2Init(0.1), L2Init(0.1)), "weights are pulled to initial ones twice"),
        (ONE, {}, (SGD(0.1), ReDo(schedule=100)), "ReDo with a schedule"),
        (ONE, {}, (SGD(0.1), ReDo(), ReGraMa()), "units are reset twice"),
        (ONE, {}, (SGD(0.1), ReGraMa(score="activations")), "ReGraMa(score='activations')"),
        (ONE, {}, (SGD(0.1), HareAndTortoise(clear_optimizer=True)), "clear_optimizer"),
        (ONE, {}, (SGD(0.1), WeightClipping(1.0), WeightClipping(1.0)), "weights are clipped twice"),
        (MANY, {}, (SGD(0.1), ContinualBackprop(utility="gxd")), "'gxd'"),
        (ONE, {}, (UPGD(0.1), SelectiveWeightReinit(9, 0.1)), "redrawn weights under UPGD"),
        (ONE, {}, (Adam(0.1, (0.9, 0.99999)), SelectiveWeightReinit(9, 0.1)), "betas above 0.9999"),
        (ONE, {}, (SGD(0.1), SelectiveWeightReinit(9, 0.1), ReDo()), "redrawn weights beside new units"),
        (MANY, {}, (L2(0.1), SGD(0.1)), "one optimizer must come first"),
    ],
    ids=str,
)
def test_what_it_does_not_cover_is_left_to_the_library_with_the_reason(
    problem: Any, options: dict[str, Any], methods: tuple[Method, ...], words: str
) -> None:
    assert words in why_not_covered(problem, MLP, {"hidden": (6,), **options}, methods)


def test_a_subclass_declares_for_itself() -> None:
    class Mine(ReDo):
        """It may choose other units."""

    assert why_not_covered(ONE, MLP, {"hidden": (5,)}, (SGD(0.1), Mine())) == "Mine is not covered"


def test_the_sparse_kernels_keep_what_they_cover() -> None:
    pytest.importorskip("numba")
    for batch, kind in ((1, "KernelBackend"), (4, "DenseBackend")):
        learner = Learner((SGD(0.1), L2(1e-3)), batch=batch)
        stack, stream = build(learner), learner.problem.open()
        assert isinstance(stream, Stream)
        backend = make_backend("cpu", stack, stream, SEEDS, learner.problem, torch.float64)
        assert type(backend).__name__ == kind
        setting = Setting("one", network(MLP, hidden=learner.hidden), learner.methods)
        assert choose_backend("cpu", learner.problem, setting) == ("cpu", "")
    stack = build(Learner((SGD(0.1),)))
    sparse = KernelBackend(stack, MANY.open(), SEEDS, "cross_entropy", lambda *_: None)  # pyright: ignore
    sparse.plan(0)
    with pytest.raises(ValueError, match="one example per update; the plan has 16"):
        sparse.advance(0, 1)


def test_one_image_per_update_leaves_the_identity_of_runs_as_it_was() -> None:
    assert canonical(ONE) == {
        "type": "PermutedMNIST", "tasks": 2, "examples_per_task": 64, "replacement": False, "source": "synthetic",
    }  # fmt: skip
    assert canonical(MANY) == {**canonical(ONE), "batch_size": 16}
