"""What kernels are made of: the schedule ahead, the examples, the packed state and the draws."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from neoteny.backends.kernel.examples import SharedPlan, examples_of
from neoteny.backends.kernel.options import Numbers, Options, options_of
from neoteny.backends.kernel.pack import Packed, pack, unpack
from neoteny.backends.kernel.schedule import due_counts
from neoteny.draws import rng
from neoteny.units.utilities import UTILITIES
from reference import philox
from support.kernel_cases import PROBLEMS, SEEDS, TASK_STEPS, Case, build, covering_cases, stream_of
from support.kernel_comparison import flat_state, train_block
from support.schedules import Simulation, make

CPU = torch.device("cpu")

# ----------------------------------------------------------------------------------------------------------- schedule

RATES = st.one_of(st.sampled_from([0.0, 1e-4, 0.5, 1.0]), st.integers(0, 1000).map(lambda k: k / 1000), st.floats(0, 1))
RUNS = st.lists(st.tuples(RATES, st.integers(0, 40)), min_size=1, max_size=4)


@given(
    units=st.integers(1, 40),
    runs=RUNS,
    layer=st.booleans(),
    blocks=st.lists(st.integers(1, 90), min_size=1, max_size=5),
    order=st.randoms(use_true_random=False),
)
@example(units=34, runs=[(0.002, 35)], layer=True, blocks=[300], order=None)  # due at exactly 1: no fused rounding
@example(units=7, runs=[(0.01, 15)], layer=True, blocks=[250, 250], order=None)
@settings(max_examples=150, deadline=None)
def test_what_is_due_ahead_is_what_the_schedule_says_tick_by_tick(
    units: int, runs: list[tuple[float, int]], layer: bool, blocks: list[int], order: object
) -> None:
    rates, thresholds = [rate for rate, _ in runs], [threshold for _, threshold in runs]
    ranks = list(range(units))
    if order is not None:
        order.shuffle(ranks)  # type: ignore[attr-defined]
    simulation = Simulation(make(units, rates, thresholds, "layer" if layer else "eligible"), np.array(ranks))
    options = Options((3, units, 1), 0, 0, 0, utility=UTILITIES["overall"], count_layer=layer)
    packed = Packed.empty(options, len(runs), torch.float64, CPU)
    zeros = np.zeros(len(runs))
    numbers = Numbers(zeros, zeros, zeros, zeros, np.array(rates), np.array(thresholds, dtype=np.int64), zeros)
    for steps in blocks:
        counts = due_counts(packed, numbers, steps)
        assert counts.shape == (len(runs), 1, steps)
        for k in range(steps):
            assert counts[:, 0, k].tolist() == simulation.tick().tolist(), k
        assert packed.accumulator[:, 0].tolist() == simulation.schedule.accumulator.tolist()
        packed.born[:, :units] = torch.from_numpy(simulation.born)
        packed.step += steps


# ----------------------------------------------------------------------------------------------------------- examples


@pytest.mark.parametrize("task", [0, 3])
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("seeds", [SEEDS, (3,), (9, 9, 4, 9)])
def test_examples_hold_the_numbers_of_the_plans_batches(problem: str, task: int, seeds: Sequence[int]) -> None:
    stream = stream_of(problem)
    inputs, targets = stream.plan(seeds, task).batches(0, 60, CPU)
    shared = SharedPlan.of(stream, seeds, task)
    found = examples_of(shared)
    table = found.table
    assert found.steps == shared.steps == TASK_STEPS
    assert len(found.order) == len(found.place) == len(set(seeds))
    for run, k in np.ndindex(len(seeds), 60):
        own = found.stream[run]
        number = found.order[own, k]
        entries = slice(table.start[number], table.start[number + 1])
        dense = np.zeros(inputs.shape[-1], dtype=np.float32)
        rows = found.place[own, table.feature[entries]]
        assert len(set(rows.tolist())) == len(rows)
        dense[rows] = table.values[table.level[entries]]
        assert np.array_equal(dense, inputs[k, run, 0].numpy())
        assert (dense[rows] != 0).all()
        assert table.target[number] == targets[k, run].item()
    again, wanted = shared.batches(5, 20, CPU)
    assert torch.equal(again, inputs[5:20])
    assert torch.equal(wanted, targets[5:20])
    assert torch.equal(shared.probe(7, CPU), stream.plan(seeds, task).probe(7, CPU))


# ------------------------------------------------------------------------------------------------------------ packing

PACKED = covering_cases()[1::4]


@pytest.mark.parametrize("case", PACKED, ids=[case.name for case in PACKED])
def test_packing_and_unpacking_is_the_identity_on_a_trained_stack(case: Case) -> None:
    trained, fresh = build(case), build(case, seeds=(1, 2, 3))
    problem = PROBLEMS[case.problem]
    train_block(trained, stream_of(case.problem).plan(SEEDS, 0), 0, 90, problem.performance)
    before = flat_state(trained)
    options = options_of(trained.module(0), trained.methods, problem.loss)
    assert isinstance(options, Options)
    packed = Packed.empty(options, len(SEEDS), torch.float64, CPU)
    pack(trained, packed)
    assert all(torch.equal(value, before[name]) for name, value in flat_state(trained).items())
    unpack(packed, fresh)
    after = flat_state(fresh)
    for name, value in before.items():
        if name != "seeds":
            assert torch.equal(after[name], value), name
    assert packed.seeds.tolist() == list(SEEDS)
    real = sum(float(value.detach().abs().sum()) for value in trained.view.parameters.values())
    assert float(packed.parameters.abs().sum()) == pytest.approx(real, rel=1e-12)  # so that padding is zero


# -------------------------------------------------------------------------------------------------------------- draws

WORDS = st.one_of(st.integers(0, 2**20), st.integers(2**32 - 2, 2**32 + 2), st.integers(2**32, 2**63 - 1))


@given(seed=st.integers(-(2**63), 2**63 - 1), step=WORDS, row=st.integers(0, 2**31), block=st.integers(0, 2**20))
@settings(max_examples=150, deadline=None)
def test_the_cpu_kernels_words_are_the_references(seed: int, step: int, row: int, block: int) -> None:
    cpu_draws = pytest.importorskip("neoteny.draws.philox")
    code = rng.purpose_code("fc1.weight")
    arguments = (np.uint64(number % 2**64) for number in (seed, row, step, code, block))
    assert tuple(map(int, cpu_draws.philox(*arguments))) == philox.words(seed, step, code, row, block)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_cuda_kernels_words_are_the_references() -> None:
    cupy = pytest.importorskip("cupy")
    from neoteny.backends.kernel.cuda.plan import Plan, Team
    from neoteny.backends.kernel.cuda.source import source

    options = Options((22, 5, 1), 0, 0, 0)
    text = source(options, Plan.of(options, 8, False, Team.of(options)), 8, False, [0.0])
    text += """
    extern "C" __global__ void words(u64 seed, u32 row, int step, u32 purpose, u32 block, u32 *out) {
        Words found = philox(seed, row, step, purpose, block);
        for (int k = 0; k < 4; k++) out[k] = found.w[k];
    }
    """
    function = cupy.RawModule(code=text, options=("-std=c++17",), backend="nvrtc").get_function("words")
    out = cupy.zeros(4, dtype=np.uint32)
    for seed in (0, 11, -(2**40) - 3, 2**63 - 1, -1):
        for step, row, block in ((0, 0, 0), (1, 2**31, 5), (2**31 - 1, 2**32 - 1, 2**20)):
            code = rng.purpose_code(f"fc{row}.weight")
            arguments = (
                np.uint64(seed % 2**64),
                np.uint32(row),
                np.int32(step),
                np.uint32(code),
                np.uint32(block),
                out,
            )
            function((1,), (1,), arguments)
            assert tuple(map(int, out.get())) == philox.words(seed, step, code, row, block)


@pytest.mark.parametrize(
    ("chosen", "blocks_per_multiprocessor"),
    [
        ({"optimizer": 2}, 1),
        ({"optimizer": 1}, 1),
        ({"optimizer": 0, "noise": True}, 2),
        ({"optimizer": 2, "utility": UTILITIES["overall"]}, 1),
    ],
)
def test_a_cluster_has_room_for_all_weights_of_a_medium_network_that_changes_everywhere(
    chosen: dict[str, Any], blocks_per_multiprocessor: int
) -> None:
    from neoteny.backends.kernel.cuda.plan import HOPPER, Plan, Team

    options = Options((784, 100, 100, 100, 10), 0, 1, **chosen)
    team = Team.of(options)
    assert team.keeps
    assert team.blocks == 8
    cut = Plan.of(options, 4, True, team)
    assert all(place >= 0 for place in cut.workspace.offsets["MATRIX"][:-1])  # the last is shared by rows
    assert cut.shared_bytes * blocks_per_multiprocessor <= HOPPER.multiprocessor_bytes
    assert Team.of(Options((784, 100, 100, 100, 10), 0, 1, 0)).blocks == 1  # plain SGD touches little of it
    assert not Team.of(options, dataclasses.replace(HOPPER, clusters=False)).keeps


def test_noise_leaves_the_update_to_rows_with_inputs_where_weights_are_not_kept() -> None:
    from neoteny.backends.kernel.cuda.kernel import is_dense
    from neoteny.backends.kernel.cuda.plan import Team

    def dense(widths: tuple[int, ...], shrink: float = 0.1, **chosen: Any) -> bool:
        options = Options(widths, 0, 1, **{"optimizer": 0, "shrink": True, **chosen})
        numbers = cast(Any, SimpleNamespace(step_size=np.array([0.1, 0.2]), shrink=np.array([shrink, 0.0])))
        return is_dense(options, numbers, Team.of(options))

    large, medium = (784, 2000, 2000, 2000, 10), (784, 100, 100, 100, 10)
    assert not dense(large)
    assert not dense(large, noise=True)
    assert not dense(medium)
    assert dense(medium, noise=True)  # all weights are in shared memory
    assert dense(large, noise=True, utility=UTILITIES["overall"])  # sums of |w| are of all weights
    assert dense(large, optimizer=1)
    assert dense(large, shrink=9.9)


def test_words_become_shares_of_which_a_logarithm_exists_and_angles() -> None:
    """The arithmetic of `box_muller` in numbers.cu for float32: a share is never 0, and angles are those of doubles."""
    words = np.concatenate(
        [
            np.arange(2**16),
            *(np.arange(max(0, 2**k - 300), min(2**32, 2**k + 300)) for k in range(16, 33)),
            np.random.default_rng(0).integers(0, 2**32, 500_000),
        ]
    ).astype(np.uint32)
    exact = (words.astype(np.float64) + 0.5) * 2.0**-32
    share = (words.astype(np.float32).astype(np.float64) * 2.0**-32 + 2.0**-33).astype(np.float32)
    assert (share > 0).all()
    assert (share <= 1).all()
    assert np.abs(share / exact - 1).max() < 2.0**-23
    angle = words.view(np.int32).astype(np.float32) * np.float32(2 * np.pi * 2.0**-32)
    assert np.abs(angle).max() <= np.float32(np.pi)
    for function in (np.cos, np.sin):
        assert np.abs(function(angle.astype(np.float64)) - function(2 * np.pi * exact)).max() < 4e-7
