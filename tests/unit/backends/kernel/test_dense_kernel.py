"""The dense kernel equals the library in all state; runs are resumed, alone and on threads to the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("numba")

import neoteny
from neoteny.backends.library import LibraryBackend
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
    ShrinkAndPerturb,
    WeightClipping,
)
from neoteny.nets import MLP
from neoteny.problems import PermutedMNIST
from neoteny.problems.problem import Stream
from support.dense_cases import BLOCKS, SEEDS, Learner, build, dense, difference, stream_of
from support.kernel_cases import select
from support.kernel_comparison import flat_state

SIZES = (3e-3, 1e-3, 5e-3)
NORMED: dict[str, Any] = {"normalization": "layer"}
DOUBLED: dict[str, Any] = {"activation": "crelu"}
CBP = ContinualBackprop((0.02, 0.01, 0.05), (10, 5, 20), (0.9, 0.99, 0.5))
SNR = SelfNormalizedResets((0.05, 0.2, 0.0), first_threshold=16, longest=20, period=30)

LEARNERS = {
    "SGD": Learner((SGD(SIZES), L2((1e-2, 0.0, 1e-3)))),
    "SGD, linear": Learner((SGD(SIZES),), hidden=()),
    "momentum, one example": Learner((SGD(SIZES, (0.9, 0.0, 0.5)),), {"activation": "tanh"}, batch=1),
    "momentum, 16 examples": Learner((SGD(SIZES, 0.9),), {"activation": "swish"}, batch=16),
    "Adam, regression": Learner((Adam(SIZES),), {"activation": "elu"}, batch=0),
    "AdamW, clipping, layer norm": Learner(
        (AdamW(1e-3, weight_decay=(0.1, 0.0, 0.5)), WeightClipping((0.5, 0.2, 1.0))), NORMED
    ),
    "clipping without the output": Learner((SGD(1e-2), WeightClipping(0.5, spare_output=True)), batch=1),
    "L2-init": Learner((Adam(1e-3), L2Init((1e-2, 0.1, 0.0)))),
    "L2-init and L2, layer norm": Learner((SGD(SIZES, 0.9), L2(1e-3), L2Init(1e-2)), NORMED),
    "leaky ReLU": Learner((SGD(SIZES),), {"activation": "leaky_relu(negative_slope=0.2)"}),
    "Smooth-Leaky": Learner((SGD(SIZES),), {"activation": "smooth_leaky"}),
    "CReLU, layer norm": Learner((Adam(1e-3),), {**DOUBLED, **NORMED}),
    "shrink and perturb": Learner((SGD(SIZES), ShrinkAndPerturb(1e-3, (1e-3, 0.0, 1e-2))), NORMED),
    "UPGD": Learner((UPGD(SIZES, 0.9, (1e-2, 0.0, 1e-1), (1e-2, 0.0, 1e-1)),), batch=1),
    "UPGD, raw": Learner((UPGD(SIZES, 0.9, 1e-2, scale="raw", protect=False),), NORMED),
    "UPGD, local": Learner((UPGD(SIZES, 0.9, 1e-2, scale="local", factor=2.0),), {**DOUBLED, **NORMED}),
    "Hare and Tortoise": Learner((Adam(1e-3), HareAndTortoise((0.9, 0.99, 0.5), 13)), NORMED),
    "Hare and Tortoise, no copies": Learner((SGD(SIZES), HareAndTortoise(0.9, 0))),
    "ReDo, everything hears of it": Learner(
        (Adam(1e-3), L2Init(1e-2), ReDo(5, (0.1, 0.5, 0.3)), HareAndTortoise(0.9, 13)), NORMED
    ),
    "ReDo, CReLU, UPGD": Learner((UPGD(SIZES), ReDo(5, (0.5, 0.6, 0.7))), DOUBLED),
    "ReGraMa": Learner((Adam(1e-3), L2(1e-2), ReGraMa(5, (0.3, 0.5, 0.7))), NORMED),
    "SWR": Learner(
        (SGD(SIZES, 0.9), L2Init(1e-2), SelectiveWeightReinit(7, (0.003, 0.0, 0.1)), HareAndTortoise(0.9, 13)), NORMED
    ),
    "SWR by a threshold, averaged": Learner(
        (SGD(SIZES), SelectiveWeightReinit(7, (0.5, 0.0, 0.9), rule="threshold", decay_rate=(0.5, 0.0, 0.9))), DOUBLED
    ),
    "SWR, Adam": Learner((Adam(1e-3), L2Init(1e-2), SelectiveWeightReinit(7, (0.003, 0.0, 0.1))), NORMED),
    "SWR, AdamW, CReLU, averaged": Learner(
        (
            AdamW(1e-3, (0.9, 0.99), weight_decay=(0.1, 0.0, 0.5)),
            SelectiveWeightReinit(5, (0.5, 0.0, 0.9), rule="threshold", decay_rate=(0.5, 0.0, 0.9)),
            WeightClipping(2.0),
        ),
        DOUBLED,
        batch=16,
    ),
    "SWR by magnitude": Learner((SGD(SIZES), SelectiveWeightReinit(5, 0.01, "magnitude"), L2(1e-3)), batch=1),
    "SNR": Learner((SGD(SIZES, 0.9), SNR)),
    "CBP": Learner((Adam(1e-3), CBP)),
    "CBP, CReLU, layer norm": Learner((SGD(SIZES, 0.9), CBP), {**DOUBLED, **NORMED}),
    "CBP by contribution": Learner((Adam(1e-3), replace(CBP, utility="contribution", compensate=False))),
    "CBP after ReDo": Learner((Adam(1e-3), ReDo(7, 0.3), replace(CBP, utility="random", count="layer")), batch=1),
    "CBP before ReDo": Learner((Adam(1e-3), replace(CBP, utility="weight_magnitude"), ReDo(7, 0.3)), DOUBLED),
    "CBP and SNR": Learner((Adam(1e-3), SNR, replace(CBP, utility="adaptation"), L2Init(1e-3)), batch=1),
}
REWRITES = (ReDo, ReGraMa, SelfNormalizedResets, ContinualBackprop)
RESUMED = ["AdamW, clipping, layer norm", "ReDo, everything hears of it", "UPGD, local", "CBP and SNR", "ReGraMa"]
RESUMED += ["SWR by a threshold, averaged", "SWR, AdamW, CReLU, averaged"]
SOME_BATCHES = (("AdamW, clipping, layer norm", 32), ("L2-init", 16), ("UPGD", 16), ("ReGraMa", 16), ("SWR, Adam", 1))
"""Learners at other batches in the default suite; `-m slow` has all of them at 1, 16 and 32."""


@pytest.mark.parametrize("name", LEARNERS)
def test_the_dense_kernel_equals_the_library(name: str) -> None:
    learner = LEARNERS[name]
    failure, replaced = difference(learner)
    assert failure == ""
    assert (replaced >= 30) == any(isinstance(method, REWRITES) for method in learner.methods)


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        pytest.param(name, batch, marks=() if (name, batch) in SOME_BATCHES else pytest.mark.slow)
        for name, learner in LEARNERS.items()
        for batch in (1, 16, 32)
        if learner.batch not in (0, batch)
    ],
)
def test_the_dense_kernel_equals_the_library_at_every_batch_of_the_field(name: str, batch: int) -> None:
    assert difference(replace(LEARNERS[name], batch=batch), BLOCKS[:3])[0] == ""


@pytest.mark.parametrize("what", ["parameters", "first", "anchor", "slow", "since", "reset"])
def test_the_comparison_notices_a_kernel_that_is_a_little_wrong(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from neoteny.backends.kernel.dense.kernel import DenseBackend

    sound = DenseBackend.train

    def wrong(self: DenseBackend, *arguments: Any) -> Any:
        found = sound(self, *arguments)
        getattr(self._packed.state, what)[1, 0] += 1e-8 if what not in ("since", "reset") else 1
        return found

    monkeypatch.setattr(DenseBackend, "train", wrong)
    assert "task 0" in difference(LEARNERS["ReDo, everything hears of it"], BLOCKS[:1])[0]


def train(
    learner: Learner,
    stack: neoteny.Stack,
    seeds: Sequence[int] = SEEDS,
    blocks: slice = slice(None),
    threads: int = 1,
) -> torch.Tensor:
    """The sums of the performance in some blocks, (blocks, n)."""
    kernel, sums = dense(learner, stack, seeds, threads), []
    for task, first, last in BLOCKS[blocks]:
        kernel.plan(task)
        sums.append(kernel.advance(first, last)[0])
    kernel.write_back()
    return torch.stack(sums)


def assert_same(ours: neoteny.Stack, theirs: neoteny.Stack) -> None:
    mine, other = flat_state(ours), flat_state(theirs)
    assert mine.keys() == other.keys()
    for name, expected in other.items():
        assert torch.equal(mine[name], expected), name


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_is_bit_identical(name: str) -> None:
    learner = LEARNERS[name]
    whole, killed, resumed = (build(learner) for _ in range(3))
    sums = train(learner, whole)
    train(learner, killed, blocks=slice(2))
    saved = killed.state_dict()
    train(learner, killed, blocks=slice(2, None))  # what was saved must not move on
    resumed.load_state_dict(saved)
    assert torch.equal(train(learner, resumed, blocks=slice(2, None)), sums[2:])
    assert_same(resumed, whole)


@pytest.mark.parametrize("name", RESUMED)
def test_the_library_goes_on_from_what_the_kernel_has_written_and_the_other_way_round(name: str) -> None:
    learner = LEARNERS[name]
    first, second = build(learner), build(learner)
    train(learner, first, blocks=slice(2))
    library = LibraryBackend(second, stream_of(learner.problem), SEEDS, learner.problem, torch.float64)
    for task, start, stop in BLOCKS[:2]:
        library.plan(task)
        library.advance(start, stop)
    for stack in (first, second):
        going_on = LibraryBackend(stack, stream_of(learner.problem), SEEDS, learner.problem, torch.float64)
        going_on.plan(2)
        going_on.advance(0, 10)
        kernel = dense(learner, stack)
        kernel.plan(2)
        kernel.advance(10, 20)
        kernel.write_back()
    for name, mine in flat_state(first).items():
        torch.testing.assert_close(mine, flat_state(second)[name], rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.parametrize("name", ["UPGD, local", "CBP and SNR"])
def test_a_run_depends_neither_on_its_neighbours_nor_on_threads(name: str) -> None:
    learner = LEARNERS[name]
    together, threaded = build(learner), build(learner)
    sums = train(learner, together)
    assert torch.equal(train(learner, threaded, threads=2), sums)
    assert_same(threaded, together)
    for run in (0, 1):
        methods = select(learner.methods, [run])
        alone = build(learner, SEEDS[run : run + 1], methods=methods)
        assert torch.equal(train(replace(learner, methods=tuple(methods)), alone, SEEDS[run : run + 1]), sums[:, [run]])
        for key, value in alone.view.tensors.items():
            assert torch.equal(value[0], together.view.tensors[key][run]), key


def test_a_diverging_run_is_told_and_does_not_disturb_its_neighbours() -> None:
    learner = replace(LEARNERS["SGD"], methods=(SGD((3e-3, 1e20, 5e-3)), L2((1e-2, 1e3, 1e-3))))
    wild, calm = build(learner), build(LEARNERS["SGD"])
    kernel = dense(learner, wild)
    kernel.plan(0)
    total, broken = kernel.advance(0, 40)
    kernel.write_back()
    assert broken[[0, 2]].tolist() == [-1, -1]
    assert 0 <= broken[1] < 40
    assert torch.equal(train(LEARNERS["SGD"], calm, blocks=slice(1))[0][[0, 2]], total[[0, 2]])
    for key, value in calm.view.tensors.items():
        assert torch.equal(value[[0, 2]], wild.view.tensors[key][[0, 2]]), key


@pytest.mark.parametrize(
    "methods", [(AdamW(1e-3), WeightClipping(1.0)), (UPGD(1e-2), ReDo(50, 0.1))], ids=["AdamW", "UPGD"]
)
def test_accuracy_in_float32_is_the_librarys(methods: tuple[Method, ...]) -> None:
    problem, seeds, rows = PermutedMNIST(2, 1600, source="synthetic", batch_size=8), range(6), []
    learner = Learner(methods, NORMED, batch=8, hidden=(20, 20))
    stream = problem.open()
    assert isinstance(stream, Stream)
    for compiled in (True, False):
        stack = build(learner, seeds, torch.float32)
        backend: Any = LibraryBackend(stack, stream, seeds, problem, torch.float32)
        if compiled:
            backend = type(dense(learner, stack, seeds))(stack, stream, seeds, problem.loss, 8)
        for task in range(2):
            backend.plan(task)
            total, broken = backend.advance(0, 200)
            assert (broken < 0).all()
            rows.append(total / 2)
    fast, slow = torch.stack(rows[:2]), torch.stack(rows[2:])
    assert slow.mean() > 20.0  # percent; it learns: chance is 10
    torch.testing.assert_close(fast, slow, rtol=0, atol=1.0)


def test_a_stack_or_a_plan_that_does_not_fit_is_refused() -> None:
    learner = LEARNERS["SGD"]
    stack = build(learner)
    with pytest.raises(ValueError, match="the seeds must be the stack's own"):
        dense(learner, stack, (1, 2, 3))
    kernel = dense(replace(learner, batch=2), stack)
    kernel._stream = stream_of(learner.problem)
    kernel.plan(0)
    with pytest.raises(ValueError, match="made for 2 examples per update; the plan has 4"):
        kernel.advance(0, 3)
    with pytest.raises(ValueError, match="dropout is not covered"):
        dense(learner, build(replace(learner, network={"dropout": 0.1})))
    modules = [MLP(784, (5,), 10, init="default") for _ in range(2)]
    options: Any = {"loss": "cross_entropy", "example": torch.zeros(1, 784), "init": "kaiming_normal", "trained": True}
    normal = neoteny.stack(modules, SGD(0.1), ReDo(), seeds=[0, 1], **options)
    with pytest.raises(ValueError, match="uniform distribution"):
        dense(learner, normal, (0, 1))
