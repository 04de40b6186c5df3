"""What continual backpropagation adds to an update of DistributedDataParallel, on processes of one machine.

Plain and attached training alternate in blocks, in the same processes; times are medians over blocks of the mean
update, over all ranks. "clock" is what a user waits; "own" is the processor time of the process itself, which other
work on the machine changes less. After each case the hashes of weights and optimizer state of every rank are printed:
all must be equal.

    python benchmarks/ddp.py [--ranks 2] [--blocks 11] [--threads 1] [--cases 3]
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import neoteny
from neoteny.nets import MLP

WARM_UP = 120  # past the maturity threshold


@dataclass(frozen=True)
class Case:
    """One network to measure."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    rows: int
    updates: int
    replacement_rate: float = 1e-4


def conv_net() -> nn.Module:
    convs = (nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU())
    return nn.Sequential(*convs, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10))


CASES = (
    Case("MLP 784-100x3-10, 1 row per rank", lambda: MLP(784, [100] * 3, 10), (784,), 1, 40),
    Case("MLP 784-512x3-10, 64 rows per rank", lambda: MLP(784, [512] * 3, 10), (784,), 64, 10),
    Case("conv net, 32 x 32, 32 rows per rank", conv_net, (3, 32, 32), 32, 6, 1e-3),
)


class Loop:
    """One model that trains, with or without continual backpropagation."""

    def __init__(self, case: Case, method: neoteny.ContinualBackprop | None, ranks: Any = "all") -> None:
        torch.manual_seed(0)
        self.model = case.build()
        self.ddp = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.plastic = None
        if method is not None:
            example = torch.zeros(2, *case.shape)
            self.plastic = neoteny.attach(self.ddp, self.optimizer, method, example=example, seed=1, ranks=ranks)

    def run(self, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[float, float]:
        """Seconds per update, by the clock and of this process."""
        clock, own = time.perf_counter(), time.process_time()
        for x, y in batches:
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.ddp(x), y).backward()
            self.optimizer.step()
            if self.plastic is not None:
                self.plastic.step()
        return (time.perf_counter() - clock) / len(batches), (time.process_time() - own) / len(batches)

    def digest(self) -> str:
        """Of weights and optimizer state."""
        found = hashlib.sha256()
        for value in self.model.state_dict().values():
            found.update(value.numpy().tobytes())
        for state in self.optimizer.state_dict()["state"].values():
            for value in state.values():
                found.update(value.numpy().tobytes())
        return found.hexdigest()[:16]


def measure(rank: int, ranks: int, place: str, blocks: int, threads: int, cases: int) -> None:
    """Every case, on one rank."""
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=ranks)
    for case in CASES[:cases]:
        method = neoteny.ContinualBackprop(case.replacement_rate)
        loops = {"plain": Loop(case, None), "all ranks": Loop(case, method), "first rank": Loop(case, method, "first")}
        generator = torch.Generator().manual_seed(rank)
        rows = (case.rows, *case.shape)
        batches = [
            (torch.randn(rows, generator=generator), torch.randint(10, (case.rows,), generator=generator))
            for _ in range(case.updates)
        ]
        for loop in loops.values():
            for start in range(0, WARM_UP, case.updates):
                loop.run(batches[: WARM_UP - start])
        times: dict[str, list[torch.Tensor]] = {name: [] for name in loops}
        for _ in range(blocks):
            for name, loop in loops.items():
                found = torch.tensor(loop.run(batches), dtype=torch.float64)
                dist.all_reduce(found)
                found /= ranks
                times[name].append(found)
        digests: list[Any] = [None] * ranks
        dist.all_gather_object(digests, {name: loop.digest() for name, loop in loops.items()})
        if rank == 0:
            report(case, times, digests, loops)
    dist.destroy_process_group()


def report(
    case: Case, times: dict[str, list[torch.Tensor]], digests: list[dict[str, str]], loops: dict[str, Loop]
) -> None:
    """Print one case."""
    print(f"\n{case.name}")
    plain: list[float] = []
    for name, each in times.items():
        clock, own = (1e3 * statistics.median(float(block[i]) for block in each) for i in (0, 1))
        plain = plain or [clock, own]
        plastic = loops[name].plastic
        replaced = "" if plastic is None else f", {sum(plastic.replaced.values())} units replaced"
        ratios = f"ratio {clock / plain[0]:.2f} (clock) {own / plain[1]:.2f} (own)"
        print(f"  {name:11} {clock:7.2f} ms (clock) {own:7.2f} ms (own)  {ratios}{replaced}")
        print("    hashes " + "  ".join(f"rank {rank}: {found[name]}" for rank, found in enumerate(digests)))
        assert len({found[name] for found in digests}) == 1, "the ranks differ"


def main() -> None:
    """Start the processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="processes")
    parser.add_argument("--blocks", type=int, default=11, help="blocks of updates per side")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--cases", type=int, default=len(CASES), help="how many of the networks, the smallest first")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (options.ranks, f"{folder}/group", options.blocks, options.threads, options.cases)
        mp.spawn(measure, arguments, nprocs=options.ranks)  # pyright: ignore[reportPrivateImportUsage]


if __name__ == "__main__":
    main()
