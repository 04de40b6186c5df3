"""One update of the compiled dense kernel over the same update of the library: batches, and methods on all weights.

Both train stacks of the same runs on permuted MNIST (generated images where MNIST is not found), in alternating blocks
in one process on one thread, float32, past compilation. Numbers are medians over blocks of the process's own time, so
that other work on the machine counts less.

    python benchmarks/dense.py [--hidden 300 150] [--batches 1 16] [--runs 3] [--only TEXT]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

import neoteny
from neoteny.backends.kernel.dense.kernel import DenseBackend
from neoteny.backends.library import LibraryBackend
from neoteny.methods import (
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
    SelfNormalizedResets,
    WeightClipping,
)
from neoteny.nets import MLP
from neoteny.problems import PermutedMNIST
from neoteny.problems.data.files import DataError
from neoteny.problems.problem import Stream
from neoteny.text import render

LEARNERS: dict[str, tuple[tuple[Method, ...], dict[str, Any]]] = {
    "SGD, clipping": ((SGD(0.01), WeightClipping(1.0)), {}),
    "Adam": ((Adam(1e-3),), {}),
    "AdamW, layer norm": ((AdamW(1e-3),), {"normalization": "layer"}),
    "Adam, L2-init": ((Adam(1e-3), L2Init(1e-2)), {}),
    "Adam, CReLU": ((Adam(1e-3),), {"activation": "crelu"}),
    "UPGD": ((UPGD(0.01, 0.9999, 0.1, 0.01),), {}),
    "UPGD without noise": ((UPGD(0.01, 0.999, 0.0, 1e-4),), {}),
    "Adam, Hare and Tortoise": ((Adam(1e-3), HareAndTortoise()), {}),
    "Adam, ReDo": ((Adam(1e-3), ReDo(625, 0.1)), {}),
    "Adam, ReGraMa": ((Adam(1e-3), ReGraMa(100, 0.1)), {}),
    "Adam, SNR": ((Adam(1e-3), SelfNormalizedResets()), {}),
    "Adam, CBP": ((Adam(1e-3), ContinualBackprop(1e-4)), {}),
}


def open_digits(batch: int) -> tuple[PermutedMNIST, Stream]:
    """Permuted MNIST, with generated images where MNIST is not found."""
    problem = PermutedMNIST(batch_size=batch)
    try:
        stream = problem.open()
    except DataError:
        problem = PermutedMNIST(source="synthetic", replacement=True, batch_size=batch)
        stream = problem.open()
    assert isinstance(stream, Stream)
    return problem, stream


def measure(
    methods: tuple[Method, ...], options: dict[str, Any], batch: int, hidden: list[int], runs: int
) -> list[str]:
    """Microseconds per run-update of both sides, and their ratio."""
    problem, stream = open_digits(batch)
    seeds, sides = range(runs), []
    for compiled in (False, True):
        modules = [MLP(784, hidden, 10, **options) for _ in seeds]
        example = torch.zeros(1, 784)
        stack = neoteny.stack(modules, *methods, loss=problem.loss, example=example, seeds=seeds)
        if compiled:
            sides.append(DenseBackend(stack, stream, seeds, problem.loss, batch))
        else:
            sides.append(LibraryBackend(stack, stream, seeds, problem, torch.float32))
        sides[-1].plan(0)
    updates, times = (40, 100)[batch == 1], [[], []]
    for block in range(6):
        for side, taken in zip(sides, times, strict=True):
            start = time.process_time()
            side.advance(block * updates, (block + 1) * updates)
            taken.append((time.process_time() - start) / updates / runs * 1e6)
    library, kernel = (statistics.median(each[1:]) for each in times)  # the first block compiles
    return [f"{library:.0f}", f"{kernel:.0f}", f"{library / kernel:.1f}"]


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, nargs="*", default=[300, 150])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="", help="only learners whose name contains this")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    widths = "-".join(map(str, [784, *arguments.hidden, 10]))
    print(f"torch {torch.__version__}, {widths}, {arguments.runs} runs, one thread, float32; us per run-update")
    rows = [
        [name, str(batch), *measure(methods, options, batch, arguments.hidden, arguments.runs)]
        for name, (methods, options) in LEARNERS.items()
        for batch in arguments.batches
        if arguments.only in name
    ]
    print(render(["learner", "batch", "library", "kernel", "library / kernel"], rows))


if __name__ == "__main__":
    main()
