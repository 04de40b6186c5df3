"""One update of the compiled dense kernels over the same update of the library: batches, and methods on all weights.

Both train stacks of the same runs on permuted MNIST (generated images where MNIST is not found), in blocks of updates
in one process, float32, past compilation. Numbers are medians over blocks: on the CPU, on one thread, of the process's
own time, so that other work on the machine counts less; on CUDA of the time that passes.

    python benchmarks/dense.py [--hidden 300 150] [--batches 1 16] [--runs 3] [--only TEXT]
    python benchmarks/dense.py --device cuda [--runs 30 132] [--threads 512] [--seconds 110]

On CUDA without --hidden: 784-300-150-10 and 784-100-100-100-10; what is not measured after `--seconds` is left out.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

import neoteny
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


NETWORKS = ([300, 150], [100, 100, 100])


@functools.cache
def open_digits(batch: int, examples: int) -> tuple[PermutedMNIST, Stream]:
    """Permuted MNIST, with generated images where MNIST is not found."""
    problem = PermutedMNIST(examples_per_task=examples, batch_size=batch)
    try:
        stream = problem.open()
    except DataError:
        problem = PermutedMNIST(examples_per_task=examples, source="synthetic", replacement=True, batch_size=batch)
        stream = problem.open()
    assert isinstance(stream, Stream)
    return problem, stream


def make_side(name: str, batch: int, hidden: list[int], runs: int, device: str, compiled: bool, threads: int) -> Any:
    """A stack of a learner in the hands of a kernel or of the library."""
    methods, options = LEARNERS[name]
    problem, stream = open_digits(batch, 60_000 if device == "cpu" else max(10_000, 4 * 40 * batch))
    seeds = range(runs)
    modules = [MLP(784, hidden, 10, **options).to(device) for _ in seeds]
    example = torch.zeros(1, 784, device=device)
    stack = neoteny.stack(modules, *methods, loss=problem.loss, example=example, seeds=seeds)
    if not compiled:
        return LibraryBackend(stack, stream, seeds, problem, torch.float32)
    if device == "cpu":
        from neoteny.backends.kernel.dense.kernel import DenseBackend

        return DenseBackend(stack, stream, seeds, problem.loss, batch)
    from neoteny.backends.kernel.dense_cuda.kernel import DenseCudaBackend

    return type("Benchmarked", (DenseCudaBackend,), {"threads": threads})(stack, stream, seeds, problem.loss, batch)


def measure(name: str, batch: int, hidden: list[int], runs: int, device: str, threads: int) -> list[str]:
    """Microseconds per run-update of both sides, and their ratio."""
    medians = []
    for compiled in (False, True):
        side, times = make_side(name, batch, hidden, runs, device, compiled, threads), []
        side.plan(0)
        updates = (40, 100)[batch == 1] if device == "cpu" or compiled else 4
        clock = time.process_time if device == "cpu" else time.perf_counter
        for block in range(6 if device == "cpu" else 4):
            start = clock()
            side.advance(block * updates, (block + 1) * updates)
            if device == "cuda":
                torch.cuda.synchronize()
            times.append((clock() - start) / updates / runs * 1e6)
        medians.append(statistics.median(times[1:]))  # the first block compiles
    library, kernel = medians
    return [f"{library:.3g}", f"{kernel:.3g}", f"{library / kernel:.1f}"]


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--hidden", type=int, nargs="*")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--runs", type=int, nargs="+", help="3 on the CPU, 30 and 132 on CUDA")
    parser.add_argument("--only", default="", help="only learners whose name contains this")
    parser.add_argument("--threads", type=int, default=512, help="of a block on CUDA")
    parser.add_argument("--seconds", type=float, default=110.0, help="on CUDA: no new row after this time")
    arguments = parser.parse_args()
    begin, device = time.perf_counter(), arguments.device
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    networks = NETWORKS if device == "cuda" else NETWORKS[:1]
    networks = networks if arguments.hidden is None else (arguments.hidden,)
    names = [name for name in LEARNERS if arguments.only in name]
    cases = [(hidden, name, batch) for hidden in networks for name in names for batch in arguments.batches]
    if device == "cuda":
        print(
            f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {arguments.threads} threads per run",
            flush=True,
        )
        with ThreadPoolExecutor(8) as pool:  # compilation takes longer than all else
            made = [
                pool.submit(make_side, name, batch, hidden, 1, device, True, arguments.threads)
                for hidden, name, batch in cases
            ]
            for each in made:
                each.result()
        print(f"compiled {len(cases)} kernels in {time.perf_counter() - begin:.1f} s", flush=True)
    else:
        print(f"torch {torch.__version__}, one thread")
    print("us per run-update, float32", flush=True)
    rows, left = [], 0
    for (hidden, name, batch), runs in itertools.product(
        cases, arguments.runs or ([30, 132] if device == "cuda" else [3])
    ):
        if device == "cuda" and time.perf_counter() - begin > arguments.seconds:
            left += 1
            continue
        widths = "-".join(map(str, [784, *hidden, 10]))
        rows.append(
            [widths, name, str(batch), str(runs), *measure(name, batch, hidden, runs, device, arguments.threads)]
        )
        if device == "cuda":
            print("  ".join(rows[-1]), flush=True)  # a run that is stopped has told what it knew
    print(render(["network", "learner", "batch", "runs", "library", "kernel", "library / kernel"], rows))
    if left:
        print(f"{left} rows were left out: {arguments.seconds:.0f} s had passed.")


if __name__ == "__main__":
    main()
