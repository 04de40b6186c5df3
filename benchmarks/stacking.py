"""Updates per second of a stack of 100 networks over 100 separate loops, on the CPU, in one run.

A separate loop is what a competent user writes by hand: `nn.Sequential`, autograd, `torch.optim`, one network at a
time. Networks take turns in it, a few updates each, so that it meets 100 networks' worth of memory as the stack does.
Continual backpropagation is compared with the same loops with `neoteny.attach`.

    python benchmarks/stacking.py [--threads 1] [--runs 100]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from overhead import with_allocator_settings
from torch import nn

import neoteny
from neoteny.methods import SGD, ContinualBackprop

SIZES = ((22, 5, 1), (784, 100, 100, 100, 10))
BARS = {(22, 5, 1): 50.0, (784, 100, 100, 100, 10): 2.5}
TURN = 4  # updates a network makes before the next one's turn


def build(sizes: Sequence[int]) -> nn.Sequential:
    """A ReLU network with torch's own initial weights."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def separate(sizes: Sequence[int], runs: int, continual: bool) -> Callable[[int], None]:
    """Separate loops over `runs` networks; called with a number of rounds of TURN updates each."""
    parts = []
    criterion = nn.MSELoss()
    for _ in range(runs):
        model = build(sizes)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        example = torch.zeros(1, sizes[0])
        plastic = neoteny.attach(model, optimizer, ContinualBackprop(1e-4), example=example) if continual else None
        parts.append((model, optimizer, plastic))
    inputs, targets = torch.rand(runs, 1, sizes[0]), torch.rand(runs, 1, sizes[-1])

    def run(rounds: int) -> None:
        for _ in range(rounds):
            for (model, optimizer, plastic), x, y in zip(parts, inputs, targets, strict=True):
                for _ in range(TURN):
                    loss = criterion(model(x), y)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    if plastic is not None:
                        plastic.step()

    return run


def stacked(sizes: Sequence[int], runs: int, continual: bool) -> Callable[[int], None]:
    """The same updates by one stack."""
    methods = (SGD(1e-3), ContinualBackprop(1e-4)) if continual else (SGD(1e-3),)
    ensemble = neoteny.stack([build(sizes) for _ in range(runs)], *methods, example=torch.zeros(1, sizes[0]))
    inputs, targets = torch.rand(runs, 1, sizes[0]), torch.rand(runs, 1, sizes[-1])

    def run(rounds: int) -> None:
        for _ in range(rounds * TURN):
            ensemble.step(inputs, targets)

    return run


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="torch threads on both sides")
    parser.add_argument("--runs", type=int, default=100, help="networks")
    parser.add_argument("--blocks", type=int, default=5, help="alternating blocks a side")
    arguments = parser.parse_args()
    with_allocator_settings()
    torch.set_num_threads(arguments.threads)
    runs = arguments.runs
    print(f"torch {torch.__version__}, {arguments.threads} thread(s), {runs} networks, batch 1, SGD; us per run-update")
    print(f"{'network':24}{'method':>12}{'separate':>12}{'stacked':>12}{'ratio':>8}{'bar':>7}")
    for sizes in SIZES:
        for continual in (False, True):
            alone, together = separate(sizes, runs, continual), stacked(sizes, runs, continual)
            rounds = 40 if sizes[0] < 100 else 8
            # Past the maturity threshold on both sides, so that replacement is live.
            for run in (alone, together):
                run(28)
            times: dict[str, list[float]] = {"alone": [], "together": []}
            for _ in range(arguments.blocks):
                for name, run, number in (("alone", alone, 2), ("together", together, rounds)):
                    start = time.perf_counter()
                    run(number)
                    times[name].append((time.perf_counter() - start) / (number * TURN * runs))
            one, many = statistics.median(times["alone"]), statistics.median(times["together"])
            method = "continual" if continual else "plain"
            name = "-".join(map(str, sizes))
            print(
                f"{name:24}{method:>12}{one * 1e6:>12.1f}{many * 1e6:>12.2f}{one / many:>8.1f}{BARS[sizes]:>7.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
