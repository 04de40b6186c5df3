"""Runs in the hands of a kernel, bit by bit: resumed, among neighbours, on several threads, beside a divergence."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import neoteny
from neoteny.backends.kernel.backend import KernelBackend, MakeKernel
from support.kernel_cases import PROBLEMS, SEEDS, Case, build, kernel_of, methods_of, select, stream_of
from support.kernel_comparison import flat_state, train_block

GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]
BLOCKS = [(0, 0, 130), (0, 130, 160), (1, 0, 33), (1, 33, 120)]
"""Task, first and last update of the blocks that are trained."""
WIDE = Case("digits", (34, 17, 20), "relu", "sgd", "l2", utility="overall")
NOISY = Case("regression", (7, 12), "tanh", "adam", "perturb last", dropout=0.2, utility="random", count="layer")
NARROW = Case("regression", (5,), "relu", "adam", "l2", utility="contribution")
NORMED = Case("digits with replacement", (7, 12), "swish", "momentum", "l2 and perturb", norm="online")
CASES = [WIDE, NOISY, NARROW, NORMED]


def names(cases: Sequence[Case]) -> list[str]:
    return [case.name for case in cases]


def train(
    case: Case,
    device: str,
    stack: neoteny.Stack,
    seeds: Sequence[int] = SEEDS,
    blocks: Sequence[tuple[int, int, int]] = BLOCKS,
    kernel: MakeKernel | None = None,
) -> tuple[Tensor, Tensor]:
    """Train a stack by a kernel; the sums of the performance and first broken updates of each block (blocks, n)."""
    path = KernelBackend(
        stack, stream_of(case.problem), seeds, PROBLEMS[case.problem].loss, kernel or kernel_of(device)
    )
    sums, broken = [], []
    for task, start, stop in blocks:
        path.plan(task)
        total, first = path.advance(start, stop)
        sums.append(total)
        broken.append(first)
    path.write_back()
    return torch.stack(sums), torch.stack(broken)


def assert_same(ours: neoteny.Stack, theirs: neoteny.Stack, runs: Sequence[int] | None = None) -> None:
    """All state is the same, bit by bit; `runs`: of `theirs` (and of `ours` too, if it has as many)."""
    mine, other = flat_state(ours), flat_state(theirs)
    assert mine.keys() == other.keys()
    many = len(other["seeds"])
    for name, expected in other.items():
        found = mine[name]
        if runs is not None and expected.dim() and len(expected) == many:
            expected = expected[list(runs)]
            found = found if len(mine["seeds"]) == len(runs) else found[list(runs)]
        assert torch.equal(found, expected), name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES, ids=names(CASES))
@pytest.mark.parametrize("cut", [1, 3])
def test_a_resumed_run_is_bit_identical(case: Case, device: str, cut: int) -> None:
    whole, killed, resumed = (build(case, dtype=torch.float32, device=device) for _ in range(3))
    sums, _ = train(case, device, whole)
    train(case, device, killed, blocks=BLOCKS[:cut])
    saved = killed.state_dict()
    train(case, device, killed, blocks=BLOCKS[cut:])  # what was saved must not move on
    resumed.load_state_dict(saved)
    rest, _ = train(case, device, resumed, blocks=BLOCKS[cut:])
    assert torch.equal(rest, sums[cut:])
    assert_same(resumed, whole)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES, ids=names(CASES))
def test_a_run_does_not_depend_on_its_neighbours(case: Case, device: str) -> None:
    many = [0, 1, 2] * 23  # more than fit in one group of vector registers
    seeds = [SEEDS[run] + 5 * place for place, run in enumerate(many)]
    methods = select(methods_of(case), many)
    together = build(case, methods, seeds, torch.float32, device)
    sums, _ = train(case, device, together, seeds)
    for runs in ([0], [67, 2]):
        some = [seeds[run] for run in runs]
        alone = build(case, select(methods, runs), some, torch.float32, device)
        mine, _ = train(case, device, alone, some)
        assert torch.equal(mine, sums[:, runs])
        assert_same(alone, together, runs)


@pytest.mark.parametrize("case", CASES, ids=names(CASES))
def test_the_number_of_threads_does_not_matter(case: Case) -> None:
    kernel = kernel_of("cpu")
    many = [0, 1, 2] * (25 if case is NARROW else 3)  # more than one group of lanes, or there is nothing to share out
    seeds, methods = [SEEDS[run] for run in many], select(methods_of(case), many)
    stacks = [build(case, methods, seeds, torch.float32) for _ in range(3)]
    sums = [
        train(case, "cpu", stack, seeds, kernel=functools.partial(kernel, threads=threads))[0]  # type: ignore[call-arg]
        for stack, threads in zip(stacks, (1, 2, 5), strict=True)
    ]
    for stack, total in zip(stacks[1:], sums[1:], strict=True):
        assert torch.equal(total, sums[0])
        assert_same(stack, stacks[0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", [WIDE, NARROW, NOISY], ids=names([WIDE, NARROW, NOISY]))
def test_a_diverging_run_does_not_disturb_its_neighbours(case: Case, device: str) -> None:
    methods = methods_of(case)
    size = methods[0].hyperparameters()["step_size"]
    wild = [replace(methods[0], step_size=(size[0], 1e20, size[2])), *methods[1:]]  # type: ignore[type-var]
    broken, calm, library = (build(case, each, SEEDS, torch.float32, device) for each in (wild, methods, wild))
    sums, first = train(case, device, broken)
    expected, _ = train(case, device, calm)
    assert torch.equal(sums[:, [0, 2]], expected[:, [0, 2]])
    assert (first[:, [0, 2]] == -1).all()
    assert_same(broken, calm, [0, 2])
    problem = PROBLEMS[case.problem]
    plan = stream_of(case.problem).plan(SEEDS, 0)
    _, wanted = train_block(library, plan, 0, 130, problem.performance)
    assert 0 <= wanted[1] < 130
    assert first[0].tolist() == wanted.tolist()
