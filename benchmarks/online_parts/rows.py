"""Rows of `online.py`'s table that both devices have."""

from __future__ import annotations

import functools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from neoteny.experiments.mnist.settings import CORRELATES
from neoteny.methods import L2, SGD, Adam, ContinualBackprop, ShrinkAndPerturb
from neoteny.methods.method import Method
from neoteny.problems import PermutedMNIST, SlowlyChangingRegression
from neoteny.problems.data.files import DataError
from neoteny.suite.measures import MEASURES, begin_measure
from online_parts.sides import Engine, Side, Times, World, alternate, engine, plain_loop
from online_parts.table import Goal, Table
from online_parts.traffic import bytes_at_least, cpu_bandwidth, gpu_bandwidth

Part = tuple[str, Callable[[Table], None]]
"""The name of a part, and the function that prints it."""
CORES = os.cpu_count() or 1
BP = (SGD(0.003),)
CBP = (SGD(0.003), ContinualBackprop(1e-4))
_BLOCK_US = 0.3e6  # of a block when the number of runs grows
WIDTHS = (100, 300, 1000, 2000)
RUNS = (1, 3, 10, 30, 100, 300)
ACTIVATIONS = ("sigmoid", "tanh", "elu", "leaky_relu", "relu", "swish")
OTHERS: dict[str, tuple[tuple[Method, ...], dict[str, Any]]] = {
    "BP": (BP, {}),
    "L2": ((SGD(0.003), L2(1e-4)), {}),
    "momentum": ((SGD(0.003, 0.9),), {}),
    "Adam": ((Adam(1e-4),), {}),
    "shrink and perturb": ((SGD(0.003), ShrinkAndPerturb(1e-4, 1e-5)), {}),
    "dropout 0.1": (BP, {"dropout": 0.1}),
    "online norm": (BP, {"normalization": "online"}),
    "tanh": (BP, {"activation": "tanh"}),
}


@dataclass(frozen=True)
class Learner:
    """A kernel's side of a row, and what it is held against: a loop's time times a factor."""

    methods: tuple[Method, ...]
    goal: Goal | None = None
    factor: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def adam(self) -> bool:
        """Whether its optimizer is Adam."""
        return isinstance(self.methods[0], Adam)


@functools.cache
def bandwidth(device: str, threads: int = 1) -> float:
    """Bytes per second."""
    return gpu_bandwidth() if device == "cuda" else cpu_bandwidth(threads)


@functools.cache
def digits(device: str) -> World:
    """Permuted MNIST, with generated images where MNIST is not found."""
    problem = PermutedMNIST()
    try:
        stream, name = problem.open(), "MNIST"
    except DataError:
        problem = PermutedMNIST(source="synthetic", replacement=True)
        stream, name = problem.open(), "generated images"
    share = (stream.data.images != 0).double().mean().item()
    return World(problem, stream, f"{name}, {share:.1%} of pixels not zero", torch.device(device))


@functools.cache
def regression(device: str) -> World:
    """Slowly-changing regression."""
    problem = SlowlyChangingRegression()
    return World(problem, problem.open(), "22 inputs, 5 hidden units", torch.device(device))


def moved(side: Engine, hidden: Sequence[int], methods: Sequence[Method], world: World) -> float:
    """Bytes at least of one update."""
    kinds = [type(method) for method in methods]
    optimizer = "adam" if Adam in kinds else "perturbed" if ShrinkAndPerturb in kinds else "sgd"
    optimizer = "momentum" if methods[0].hyperparameters().get("momentum") else optimizer
    widths = (world.problem.input_shape[0], *hidden, world.problem.outputs)
    return bytes_at_least(widths, side.active(), optimizer, ContinualBackprop in kinds)


def compare(
    table: Table,
    world: World,
    hidden: Sequence[int],
    learners: Mapping[str, Learner],
    runs: int,
    loop_updates: int,
    blocks: int,
    **options: Any,
) -> dict[str, Times]:
    """Rows of kernels over the loop of the same optimizer, all measured in turn."""
    loops: dict[str, Side] = {}
    for adam in sorted({learner.adam for learner in learners.values()}):
        loops["Adam loop" if adam else "SGD loop"] = plain_loop(world, hidden, loop_updates, adam)
    sides = {
        name: engine(world, hidden, learner.methods, runs, **options, **learner.options)
        for name, learner in learners.items()
    }
    times = alternate({**loops, **sides}, blocks)
    for name, learner in learners.items():
        kernel, loop = times[name], times["Adam loop" if learner.adam else "SGD loop"]
        baseline = learner.factor * loop.median
        absolute = learner.goal is not None and learner.goal.unit == "us"
        table.row(
            name,
            kernel.median,
            kernel.best,
            baseline,
            kernel.median if absolute else baseline / kernel.median,
            learner.goal,
            moved(sides[name], hidden, learner.methods, world),
            bandwidth(world.device.type),
        )
    return times


def cost_row(table: Table, times: Mapping[str, Times], goal: Goal | None = None) -> None:
    """CBP over BP inside the kernel."""
    continual, plain = times["CBP"], times["BP"]
    ratio = continual.median / plain.median
    table.row("CBP over BP in the kernel", continual.median, continual.best, plain.median, ratio, goal)


def by_width(table: Table, world: World, runs: int, blocks: int, widths: Iterable[int]) -> None:
    """Time of an update as the network grows; the value is over the first width's."""
    first = 0.0
    for width in widths:
        hidden = (width,) * 3
        for name, methods in (("BP", BP), ("CBP", CBP)):
            side = engine(world, hidden, methods, runs)
            times = alternate({name: side}, blocks)[name]
            first = first or times.median
            moves = moved(side, hidden, methods, world)
            what = f"N={width}, {name}, {runs} run(s)"
            table.row(
                what, times.median, times.best, None, times.median / first, None, moves, bandwidth(world.device.type)
            )


def by_runs(
    table: Table, world: World, hidden: Sequence[int], blocks: int, counts: Iterable[int], threads: int
) -> None:
    """Time of an update as the number of runs grows; the value is over one run's."""
    first, updates = 0.0, None
    for runs in counts:
        side = engine(world, hidden, BP, runs, updates=updates, threads=threads)
        times = alternate({"BP": side}, blocks)["BP"]
        first = first or times.median
        what = f"{'-'.join(map(str, hidden))}, {runs} run(s)"
        table.row(what, times.median, times.best, None, times.median / first)
        updates = int(min(max(_BLOCK_US / (3 * times.median * runs), 60), side.path.block_updates))


def others(table: Table, world: World, width: int, runs: int, blocks: int) -> None:
    """Other methods and networks; the value is over BP's."""
    first = 0.0
    for name, (methods, options) in OTHERS.items():
        side = engine(world, (width,) * 3, methods, runs, **options)
        times = alternate({name: side}, blocks)[name]
        first = first or times.median
        moves = moved(side, (width,) * 3, methods, world)
        table.row(
            f"{name}, {runs} run(s)",
            times.median,
            times.best,
            None,
            times.median / first,
            None,
            moves,
            bandwidth(world.device.type),
        )


def whole_regression(table: Table, world: World, threads: int, goal: Goal, quick: bool) -> None:
    """All stacks of scr-activations for a task or two, planning included, times their 300 tasks."""
    seconds, stacks, sizes = 0.0, 0, (0.01, 0.003, 0.001)
    each = tuple(size for size in sizes for _ in range(100))
    for optimizer in (SGD, Adam):
        for activation in ("relu", "tanh") if quick else (*ACTIVATIONS, None):
            hidden: tuple[int, ...] = (5,) if activation else ()
            options: dict[str, Any] = {"activation": activation} if activation else {}
            side = engine(world, hidden, (optimizer(each),), 300, threads=threads, seeds=100, **options)
            side.prepare()
            best = float("inf")
            for _ in range(2):
                start = time.perf_counter()
                side.block()  # a whole task,
                side.prepare()  # and the plan of the next
                best = min(best, time.perf_counter() - start)
            table.row(f"{optimizer.__name__}, {activation or 'linear'}, 300 runs", 1e6 * best / side.run_updates)
            seconds, stacks = seconds + best, stacks + 1
    whole = seconds / stacks * 14 * world.problem.tasks
    value = whole / 60 if goal.unit == " min" else whole
    if quick:
        table.note("from 4 of its 14 stacks:")
    table.row(f"4,200 runs of 3M examples, {threads} thread(s)", 1e6 * whole / (4200 * 3e6), value=value, goal=goal)


def measures(table: Table, world: World, width: int, runs: int, goal: Goal) -> None:
    """What the measures at the start of a task add to it, as a share of the task: the paper's three, and all.

    On a GPU the decompositions go on while blocks of updates are trained, for at least as long as they take alone.
    """
    side = engine(world, (width,) * 3, BP, runs)
    times = alternate({"BP": side}, 4)["BP"]
    block, task = (1e-6 * each * side.run_updates for each in (times.median, times.median))
    task *= world.problem.steps_per_task / side.updates
    for names, bar in ((CORRELATES, goal), (tuple(MEASURES), None)):
        _measure(table, side, names, width, block, task, bar)


def _measure(
    table: Table, side: Engine, names: Sequence[str], width: int, block: float, task: float, goal: Goal | None
) -> None:
    """One row of `measures`; a block of updates and a task take so many seconds."""
    device = side.stack.view.seeds.device
    on_gpu = device.type == "cuda"
    begun, whole, added = [], [], []
    for number in range(1, 3 if width > 1000 else 6):
        side.path.write_back()
        probe = side.path.plan(number).probe(2000, device)
        _wait(on_gpu)
        start = time.perf_counter()
        later = begin_measure(names, side.stack, probe)
        _wait(on_gpu)
        begun.append(time.perf_counter() - start)
        later()
        whole.append(time.perf_counter() - start)
        if on_gpu:
            blocks = math.ceil(min(task, 1.5 * whole[-1]) / block)
            alone = _train(side, blocks, dict)
            added.append(_train(side, blocks, partial(begin_measure, names, side.stack, probe)) - alone)
    what, value = f"{len(names)} measures, share of a task, N={width}", 100 * statistics.median(added or whole) / task
    table.note(f"{what}: {min(whole):.3f} s of {task:.1f} s, {value:.1f}%; queued after {min(begun):.3f} s")
    if goal is not None:
        table.row(what, value=value, goal=goal)


def _train(side: Engine, blocks: int, begin: Callable[[], Any]) -> float:
    """Seconds of some blocks of updates; what is begun before them is waited for after them."""
    start = time.perf_counter()
    later = begin()
    for _ in range(blocks):
        side.prepare()
        side.block()
    if callable(later):
        later()
    return time.perf_counter() - start


def _wait(on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()


def perturbed(table: Table, world: World, width: int, runs: int, blocks: int, goal: Goal) -> None:
    """Shrink and perturb over backpropagation."""
    methods = {"BP": BP, "shrink and perturb": (SGD(0.003), ShrinkAndPerturb(1e-4, 1e-5))}
    sides = {name: engine(world, (width,) * 3, each, runs) for name, each in methods.items()}
    times = alternate(sides, blocks)
    for name, side in sides.items():
        moves = moved(side, (width,) * 3, methods[name], world)
        kernel = times[name]
        ratio = kernel.median / times["BP"].median
        last = goal if name != "BP" else None
        table.row(name, kernel.median, kernel.best, None, ratio, last, moves, bandwidth(world.device.type))
