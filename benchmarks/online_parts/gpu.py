"""The parts of `online.py`'s table for a CUDA device. Bars are times of one H200; loops run on the same device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from neoteny.methods import SGD, Adam, ContinualBackprop
from neoteny.nets import ConvNet
from neoteny.problems import ContinualImageNet
from neoteny.problems.data.files import DataError
from online_parts.rows import (
    BP,
    CBP,
    CORES,
    RUNS,
    WIDTHS,
    Learner,
    Part,
    bandwidth,
    by_runs,
    by_width,
    compare,
    cost_row,
    digits,
    measures,
    others,
    perturbed,
    regression,
    whole_regression,
)
from online_parts.sides import Engine, World, alternate, convolution_loop
from online_parts.table import Goal, Table

CONV_RUNS = 30


def images() -> World:
    """Continual ImageNet, with generated images where it is not found."""
    problem = ContinualImageNet(train_images=450)
    try:
        stream, name = problem.open(), "imagenet200_32"
    except DataError:
        problem = ContinualImageNet(tasks=20, source="synthetic", train_images=50, test_images=10)
        stream, name = problem.open(), "generated images"
    return World(problem, stream, name, torch.device("cuda"))


def memory(table: Table) -> None:
    """The measured bandwidth, of which the table gives shares."""
    table.note(f"device copy: {bandwidth('cuda') / 1e12:.2f} TB/s")
    table.note(digits("cuda").says)


def wide(table: Table, blocks: int) -> None:
    """2,000 units, 30 runs."""
    learners = {
        "BP": Learner(BP, Goal(20, 12, False, "us")),
        "CBP": Learner(CBP, Goal(22, 13, False, "us"), 1.4),
        "Adam": Learner((Adam(1e-4),), Goal(110, 75, False, "us")),
    }
    times = compare(table, digits("cuda"), (2000,) * 3, learners, 30, 300, blocks)
    cost_row(table, times)
    table.note("the authors' code takes 1,179, 2,453 and 1,645 us")


def narrow(table: Table, counts: Iterable[int], blocks: int) -> None:
    """100 units, as many runs as there are multiprocessors and multiples of them."""
    for runs in counts:
        learners = {
            "BP": Learner(BP, Goal(0.15, 0.05, False, "us")),
            "CBP": Learner(CBP, Goal(0.2, 0.07, False, "us"), 1.6),
        }
        table.note(f"{runs} runs:")
        times = compare(table, digits("cuda"), (100,) * 3, learners, runs, 300, blocks)
        cost_row(table, times)
    table.note("the authors' code takes 1,045 and 2,470 us")


def small(table: Table, blocks: int) -> None:
    """Slowly-changing regression."""
    learners = {"BP": Learner(BP), "CBP": Learner(CBP, factor=1.6), "Adam": Learner((Adam(0.001),))}
    compare(table, regression("cuda"), (5,), learners, 1800, 300, blocks)


def convolutions(table: Table, blocks: int) -> None:
    """The network of Continual ImageNet under CUDA graphs over its plain loop."""
    world = images()
    table.note(f"{world.says}, batch 100, {CONV_RUNS} runs")
    torch.backends.cudnn.deterministic = True  # as the engine does
    loop = convolution_loop(world, 60)
    for name, methods in (
        ("SGD with momentum", (SGD(0.01, 0.9),)),
        ("the same with CBP", (SGD(0.01, 0.9), ContinualBackprop(3e-4))),
    ):
        torch.manual_seed(0)
        side = Engine(world, [ConvNet() for _ in range(CONV_RUNS)], methods, "graphs", updates=60)
        times = alternate({"loop": loop, name: side}, blocks)
        goal = Goal(6, 12) if name.startswith("SGD") else None
        kernel, baseline = times[name], times["loop"].median
        table.row(name, kernel.median, kernel.best, baseline, baseline / kernel.median, goal)
        if reason := getattr(side.path, "reason", ""):
            table.note(f"not replayed: {reason}")


def sweep_of_convolutions(table: Table, blocks: int) -> None:
    """CBP over BP in a stack of a sweep's settings, where units of some run are often due."""
    world = images()
    rates = tuple((3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)[run % 6] for run in range(CONV_RUNS))
    young = tuple((20, 50, 100)[run % 3] for run in range(CONV_RUNS))
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    learners = {"BP": (SGD(0.01, 0.9),), "CBP": (SGD(0.01, 0.9), ContinualBackprop(rates, young))}
    sides = {}
    for name, methods in learners.items():
        torch.manual_seed(0)
        sides[name] = Engine(world, [ConvNet() for _ in range(CONV_RUNS)], methods, "graphs", updates=60)
    replaced = sides["CBP"].path.replaced().sum()
    times = alternate(sides, blocks)
    replaced = int(sides["CBP"].path.replaced().sum() - replaced) / (60 * blocks)
    table.note(f"{world.says}, batch 100, {CONV_RUNS} runs of {len(set(rates))} rates; {replaced:.2f} units per update")
    for name, side in sides.items():
        goal = Goal(1.15, 1.08, higher=False) if name == "CBP" else None
        ratio = times[name].median / times["BP"].median
        table.row(f"graphs, {name}", times[name].median, times[name].best, times["BP"].median, ratio, goal)
        if reason := getattr(side.path, "reason", ""):
            table.note(f"{name}: {reason}")


def decompositions(table: Table) -> None:
    """Where eigenvalues of Gram matrices are best computed: small ones of a whole stack, and large ones."""
    for size, count, many in ((100, 792, 792), (1971, 16, 4)):
        matrices = torch.randn(count, size, size, dtype=torch.float64, device="cuda")
        matrices = matrices @ matrices.mT
        ways: dict[str, tuple[Callable[[], object], int]] = {
            "one on the GPU": (partial(torch.linalg.eigvalsh, matrices[0]), 1),
            f"{many} at once on the GPU": (partial(torch.linalg.eigvalsh, matrices[:many]), many),
            f"{CORES} threads of the CPU, copies included": (partial(_on_host, matrices), count),
            "the copies alone": (matrices.cpu, count),
        }
        for what, (run, each) in ways.items():
            seconds = []
            for _ in range(2):
                torch.cuda.synchronize()
                start = time.perf_counter()
                run()
                torch.cuda.synchronize()
                seconds.append(time.perf_counter() - start)
            table.note(f"eigenvalues, {size} x {size}, {what}: {1e3 * min(seconds) / each:.3f} ms per matrix")


def _on_host(matrices: torch.Tensor) -> None:
    with ThreadPoolExecutor(CORES) as pool:
        list(
            pool.map(
                lambda some: torch.linalg.eigvalsh(some.cpu()), matrices.split(max(1, len(matrices) // CORES // 2))
            )
        )


def gpu_parts(quick: bool) -> list[Part]:
    """The parts for a CUDA device."""
    blocks = 3 if quick else 7
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    counts = (processors, 2 * processors) if quick else (processors, 2 * processors, 4 * processors)
    world = digits("cuda")
    found: list[Part] = [
        ("memory", memory),
        ("permuted MNIST, N=2000, 30 runs", lambda table: wide(table, blocks)),
        ("permuted MNIST, N=100", lambda table: narrow(table, counts, blocks)),
        ("slowly-changing regression, 1800 runs", lambda table: small(table, blocks)),
        ("convolutions", lambda table: convolutions(table, blocks)),
        ("sweep of conv nets", lambda table: sweep_of_convolutions(table, blocks)),
        (
            "shrink and perturb, N=2000",
            lambda table: perturbed(table, world, 2000, 30, blocks, Goal(3, 2, higher=False)),
        ),
        (
            "whole scr-activations",
            lambda table: whole_regression(table, regression("cuda"), 1, Goal(60, 15, False, " s"), quick),
        ),
        ("measures, N=2000", lambda table: measures(table, world, 2000, 30, Goal(4, 2, False, "%"))),
        ("measures, N=100", lambda table: measures(table, world, 100, 264, Goal(10, 2, False, "%"))),
    ]
    if not quick:
        found += [
            ("cost by width, 30 runs", lambda table: by_width(table, world, 30, 3, WIDTHS)),
            ("cost by number of runs, N=100", lambda table: by_runs(table, world, (100,) * 3, 3, RUNS, 1)),
            ("cost by number of runs, N=2000", lambda table: by_runs(table, world, (2000,) * 3, 3, RUNS[:5], 1)),
            ("other methods, N=100", lambda table: others(table, world, 100, processors, 3)),
            ("other methods, N=2000", lambda table: others(table, world, 2000, 30, 3)),
            ("decompositions", decompositions),
        ]
    return found
