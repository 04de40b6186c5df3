"""Memory and accuracy of `attach(..., accumulate="sums")` with gradient accumulation, on the CPU.

Memory is the most that a process ever had, one process per row, less what it had before training: plain training, with
the inputs of all passes kept, and with sums. Accuracy: the running utilities of two trainings that differ in
`accumulate` alone and replace nothing, as the largest and the median relative difference over units.

    python benchmarks/accumulation.py [--passes 16] [--rows 1024] [--updates 3]
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from typing import Any

WAYS = ("plain", "inputs", "sums")


def build(width: int) -> Any:
    """Model and optimizer."""
    import torch

    from neoteny.nets import MLP

    torch.manual_seed(0)
    model = MLP(784, [width] * 3, 10)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def train(way: str, passes: int, rows: int, updates: int, width: int, rate: float = 1e-4) -> tuple[Any, float]:
    """The attachment and the processor seconds per update."""
    import torch
    from torch import nn

    import neoteny

    model, optimizer = build(width)
    plastic: Any = None
    if way != "plain":
        method = neoteny.ContinualBackprop(rate)
        accumulate: Any = way
        plastic = neoteny.attach(model, optimizer, method, example=torch.zeros(1, 784), seed=1, accumulate=accumulate)
    generator = torch.Generator().manual_seed(1)
    start = time.process_time()
    for _ in range(updates):
        optimizer.zero_grad()
        for _ in range(passes):
            x = torch.randn(rows, 784, generator=generator)
            y = torch.randint(10, (rows,), generator=generator)
            (nn.functional.cross_entropy(model(x), y) / passes).backward()
        optimizer.step()
        if plastic is not None:
            plastic.step()
    return plastic, (time.process_time() - start) / updates


def memory(way: str, passes: int, rows: int, updates: int, answer: Any) -> None:
    """Megabytes at most, over those before training, and seconds per update."""
    train(way, 1, 1, 1, 1024)  # what is loaded and compiled at the first update
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = train(way, passes, rows, updates, 1024)[1]
    answer.put(((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, seconds))


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=16, help="per update")
    parser.add_argument("--rows", type=int, default=1024, help="per pass")
    parser.add_argument("--updates", type=int, default=3, help="to measure")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    print(f"MLP 784-1024x3-10, {options.passes} passes of {options.rows} rows per update")
    for way in WAYS:
        answer = context.Queue()
        arguments = (way, options.passes, options.rows, options.updates, answer)
        process = context.Process(target=memory, args=arguments)
        process.start()
        megabytes, seconds = answer.get()
        process.join()
        print(f"  {way:7} {megabytes:7.1f} MB  {seconds:6.2f} s per update (processor)")
    import torch

    for passes, rows in ((2, 32), (8, 32), (8, 4)):
        states = [
            train(way, passes, rows, 300, 100, rate=0.0)[0].state_dict()["states"][0].values() for way in WAYS[1:]
        ]
        exact, found = (torch.cat([each["utility"] for each in state]) for state in states)
        off = ((found - exact).abs() / exact.abs().clamp_min(1e-12))[exact > 0]
        print(f"  utility, {passes} passes of {rows} rows: off by {off.median():.1e} (median), {off.max():.1e} (most)")


if __name__ == "__main__":
    main()
