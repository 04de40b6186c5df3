"""What each method costs: its update over the plain update, what it does at times, and the memory it adds.

Every method is attached to the same network and optimizer (SGD, or Adam where it acts on Adam's step count; a method
that is an optimizer takes its place). Both sides train in alternating blocks in one run, and the ratio is between the
medians of the block means. What a method does every `period` updates or at a task boundary is measured apart, in plain
updates. Memory is what it keeps, in copies of the weights. On the CPU time is the process's own, so that other work on
the machine counts less.

    python benchmarks/methods.py [--device cpu] [--only ReDo,FIRE] [--networks MLP,ConvNet,ResNet] [--keep]

`--keep` writes evidence/methods/cost.json, which docs/methods.md shows.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from attach_gpu import resnet18
from methods_parts.settings import settings
from torch import Tensor, nn
from torch.optim import Optimizer

import neoteny
from neoteny.methods import Method
from neoteny.nets import MLP, ConvNet
from neoteny.publish.methods import COSTS, find_methods
from neoteny.text import render

BATCHES = 8


@dataclass(frozen=True)
class Network:
    """One network to measure on."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    batch: int
    updates: int


NETWORKS = {
    "MLP": Network("MLP 784-300-150-10, batch 32", lambda: MLP(784, [300, 150], 10), (784,), 10, 32, 40),
    "ConvNet": Network("conv net, batch 32", ConvNet, (3, 32, 32), 2, 32, 8),
    "ResNet": Network("ResNet-18, batch 8", resnet18, (3, 32, 32), 10, 8, 1),
}


class Side:
    """A network in training, with a method or without."""

    def __init__(self, network: Network, method: Method | None, device: str, adam: bool = False) -> None:
        torch.manual_seed(0)
        self.model = network.build().to(device)
        self.device = device
        self.inputs = torch.rand(BATCHES, network.batch, *network.shape, device=device)
        self.targets = torch.randint(0, network.classes, (BATCHES, network.batch), device=device)
        self.criterion = nn.CrossEntropyLoss()
        self.plastic: neoteny.Attachment | None = None
        kind = torch.optim.Adam if adam else torch.optim.SGD
        self.optimizer: Optimizer = kind(self.model.parameters(), lr=1e-3)
        if method is not None and method.is_optimizer:
            self.optimizer = neoteny.optim.from_method(method, self.model.named_parameters(), seed=0)
        elif method is not None:
            self.plastic = neoteny.attach(self.model, self.optimizer, method, example=self.inputs[0][:2], seed=0)
        self.needs_loss = method is not None and method.needs_loss
        self.needs_data = method is not None and method.needs_boundary_data

    def train(self, updates: int) -> None:
        """Some updates, to their end on the device."""
        for number in range(updates):
            loss = self.criterion(self.model(self.inputs[number % BATCHES]), self.targets[number % BATCHES])
            self.optimizer.zero_grad()
            loss.backward()
            if self.needs_loss and self.plastic is not None:
                self.plastic.observe(loss)
            self.optimizer.step()
            if self.plastic is not None:
                self.plastic.step()
        if self.device == "cuda":
            torch.cuda.synchronize()

    def begin_task(self) -> None:
        """A task boundary, with one batch of the new task for methods that need data."""
        assert self.plastic is not None
        data = [(self.inputs[0], self.targets[0])] if self.needs_data else None
        self.plastic.task_boundary(data=data, loss=self.criterion) if data else self.plastic.task_boundary()
        if self.device == "cuda":
            torch.cuda.synchronize()

    def memory(self) -> float:
        """What is kept beside the network, in copies of its weights."""
        kept = self.optimizer.state_dict()["state"] if self.plastic is None else self.plastic.state_dict()["states"]
        return _bytes(kept) / sum(each.nbytes for each in self.model.parameters())


@dataclass
class Cost:
    """What was measured of one method on one network."""

    ratio: float
    event: float | None
    memory: float

    def __str__(self) -> str:
        return f"{self.ratio:.2f}" + (f" + {self.event:.1f}" if self.event is not None else "")


def measure(network: Network, method: Method, device: str, blocks: int) -> Cost:
    """The cost of a method: its update over the plain one, an event in plain updates, and its memory."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    adam = method.needs_step_count
    plain, side = Side(network, None, device, adam), Side(network, method, device, adam)
    often = _at_every_update(method)
    eventful = Side(network, often, device, adam) if often is not None else None
    sides = [each for each in (plain, side, eventful) if each is not None]
    for each in sides:
        each.train(3)
    times: dict[int, list[float]] = {id(each): [] for each in sides}
    boundaries: list[float] = []
    at_boundaries = type(method).task_boundary is not Method.task_boundary
    for block in range(blocks):
        for each in sides if block % 2 else reversed(sides):
            start = clock()
            each.train(network.updates)
            times[id(each)].append((clock() - start) / network.updates)
        if at_boundaries and not method.is_optimizer:
            start = clock()
            side.begin_task()
            boundaries.append(clock() - start)
    update = {key: statistics.median(each) for key, each in times.items()}
    base = update[id(plain)]
    event = None
    if boundaries:
        event = statistics.median(boundaries) / base
    elif eventful is not None:
        event = max(0.0, (update[id(eventful)] - update[id(side)]) / base)
    return Cost(update[id(side)] / base, event, side.memory())


def _at_every_update(method: Method) -> Method | None:
    """The same method with a period of one update; None if it has no period."""
    if not method.hyperparameters().get("period"):
        return None
    options: Any = {"period": 1}
    return dataclasses.replace(method, **options)  # pyright: ignore[reportArgumentType, reportCallIssue]


def _bytes(state: Any) -> int:
    if isinstance(state, Tensor):
        return state.nbytes
    if isinstance(state, Mapping):
        return sum(map(_bytes, state.values()))
    return sum(map(_bytes, state)) if isinstance(state, (list, tuple)) else 0


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", default="", help="names of methods, separated by commas")
    parser.add_argument("--networks", default=",".join(NETWORKS), help="of MLP, ConvNet, ResNet")
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--keep", action="store_true", help="write evidence/methods/cost.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    networks = [NETWORKS[name] for name in options.networks.split(",")]
    wanted = set(filter(None, options.only.split(","))) or set(find_methods())
    rows: list[list[str]] = []
    kept: dict[str, str] = {}
    for method in settings():
        name = type(method).__name__
        if name not in wanted:
            continue
        costs: list[Cost | None] = []
        for network in networks:
            try:
                costs.append(measure(network, method, options.device, options.blocks))
            except ValueError as error:  # a method that does not fit this network says why
                print(f"{name} on {network.name}: {error}", flush=True)
                costs.append(None)
        found = [str(cost) if cost else "does not fit" for cost in costs]
        memory = next((f"{cost.memory:.2f}" for cost in costs if cost), "")
        rows.append([name, *found, memory])
        kept[name] = " / ".join(found)
        print(" | ".join(rows[-1]), flush=True)
    print()
    print(render(["method", *(network.name for network in networks), "memory (copies of the weights)"], rows))
    if options.keep:
        what = (
            f"an update over the plain one with SGD, on {options.device}, for "
            + ", ".join(network.name for network in networks)
            + '; "+ 3" is what acts every `period` updates or at a boundary, in plain updates'
        )
        path = Path(__file__).parents[1] / COSTS
        os.makedirs(path.parent, exist_ok=True)
        path.write_text(json.dumps({"what": what, "methods": kept}, indent=1) + "\n")
        print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
