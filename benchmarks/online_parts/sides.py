"""What `online.py` compares: the loop that a competent user writes by hand, and the compiled engines.

Each side hands out blocks of updates; `alternate` times the blocks of several sides in turn, so that other work of the
machine slows all of them alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from neoteny.backends.backend import make_backend
from neoteny.methods.method import Method
from neoteny.nets import MLP, ConvNet
from neoteny.problems.problem import Problem, Stream
from neoteny.stacking.stack import stack

WARM_UPDATES = 300
"""Past the maturity threshold of 100, so that units are being replaced."""
SEEDS = 30
"""More runs than this share their streams, as the settings of a sweep do."""
_DISTINCT = 4  # initial networks; drawing them takes longer than measuring


@dataclass
class Times:
    """Seconds of one run-update, block by block."""

    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Microseconds."""
        return 1e6 * statistics.median(self.seconds)

    @property
    def best(self) -> float:
        """Microseconds of the fastest block."""
        return 1e6 * min(self.seconds)


class Side(Protocol):
    """Something that updates networks."""

    @property
    def run_updates(self) -> int:
        """Updates of a block, times runs."""
        ...

    def prepare(self) -> None:
        """What comes before the next block and is not timed."""
        ...

    def block(self) -> None:
        """One block; done when it returns."""
        ...


def alternate(sides: Mapping[str, Side], blocks: int) -> dict[str, Times]:
    """The times of `blocks` blocks of each side, in turn; the side that goes first changes every time."""
    times = {name: Times() for name in sides}
    for number in range(blocks):
        for name, side in list(sides.items())[:: 1 if number % 2 else -1]:
            side.prepare()
            start = time.perf_counter()
            side.block()
            times[name].seconds.append((time.perf_counter() - start) / side.run_updates)
    return times


@dataclass(frozen=True)
class World:
    """A problem with its opened data, and what the numbers were taken on, in words."""

    problem: Problem
    stream: Stream
    says: str
    device: torch.device


class Loop:
    """`nn.Sequential`, autograd and `torch.optim`, one example (or mini-batch) at a time, one run."""

    def __init__(self, world: World, module: nn.Module, optimizer: torch.optim.Optimizer, updates: int) -> None:
        self.run_updates = updates
        self._model, self._optimizer, self._device = module, optimizer, world.device
        self._criterion = nn.MSELoss() if world.problem.loss == "mse" else nn.CrossEntropyLoss()
        count = min(4 * updates, world.problem.steps_per_task)
        inputs, targets = world.stream.plan([0], 0).batches(0, count, world.device)
        self._examples = list(zip(inputs[:, 0], targets[:, 0], strict=True))
        self._at = 0
        self.block()

    def prepare(self) -> None:
        """Go round the examples."""
        if self._at + self.run_updates > len(self._examples):
            self._at = 0

    def block(self) -> None:
        """The loop."""
        model, optimizer, criterion = self._model, self._optimizer, self._criterion
        for inputs, target in self._examples[self._at : self._at + self.run_updates]:
            loss = criterion(model(inputs), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        self._at += self.run_updates


def plain_loop(world: World, hidden: Sequence[int], updates: int, adam: bool = False) -> Loop:
    """The loop for a ReLU network."""
    torch.manual_seed(0)
    model = nn.Sequential(*_make(world, hidden).children()).to(world.device)
    make: Callable[..., torch.optim.Optimizer] = torch.optim.Adam if adam else torch.optim.SGD
    return Loop(world, model, make(model.parameters(), lr=1e-4 if adam else 0.003), updates)


def convolution_loop(world: World, updates: int) -> Loop:
    """The loop for the network of Continual ImageNet, with momentum."""
    torch.manual_seed(0)
    model = ConvNet().to(world.device)
    return Loop(world, model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), updates)


class Engine:
    """A stack of runs on one of the engine's paths.

    Args:
        world: what is learned.
        modules: one per run.
        methods: of all of them.
        path: "cpu", "cuda" or "graphs".
        updates: of a block; what the engine takes by default.
        threads: of the CPU kernel.
        seeds: how many different ones the runs have.
    """

    def __init__(
        self,
        world: World,
        modules: Sequence[nn.Module],
        methods: Sequence[Method],
        path: str,
        updates: int | None = None,
        threads: int = 1,
        seeds: int = SEEDS,
    ) -> None:
        problem, self.runs = world.problem, len(modules)
        numbers = [run % seeds for run in range(self.runs)]
        example = torch.zeros(1, *problem.input_shape, device=world.device)
        modules = [module.to(world.device) for module in modules]
        self.stack = stack(modules, *methods, loss=problem.loss, example=example, seeds=numbers)
        self.path = make_backend(path, self.stack, world.stream, numbers, problem, torch.float32, threads)
        self._plan = self.path.plan(0)
        self.updates = min(updates or self.path.block_updates, self._plan.steps)
        self._world, self._task, self._at = world, 0, 0
        warm = 0
        while warm < WARM_UPDATES:
            self.prepare()
            self.block()
            warm += self.updates

    @property
    def run_updates(self) -> int:
        """Updates of a block, times runs."""
        return self.updates * self.runs

    def prepare(self) -> None:
        """Plan the next task when there is too little left of this one."""
        if self._at + self.updates > self._plan.steps:
            self._task, self._at = self._task + 1, 0
            self._plan = self.path.plan(self._task)

    def block(self) -> None:
        """One call."""
        self.path.advance(self._at, self._at + self.updates)
        self._at += self.updates

    def with_threads(self, threads: int) -> Side:
        """The same runs, advanced by another number of threads."""
        return _Threaded(self, threads)

    def active(self, examples: int = 200) -> list[float]:
        """For each linear layer, how many of its inputs are not zero, mean over some examples of the first run."""
        self.path.write_back()
        module = self.stack.module(0).eval()
        found: list[float] = []

        def count(_layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            found.append((arguments[0] != 0).sum(-1).double().mean().item())

        for layer in module.modules():
            if isinstance(layer, nn.Linear):
                layer.register_forward_pre_hook(count)
        with torch.no_grad():
            module(self._plan.probe(examples, self._world.device)[0])
        return found


@dataclass
class _Threaded:
    engine: Engine
    threads: int

    @property
    def run_updates(self) -> int:
        return self.engine.run_updates

    def prepare(self) -> None:
        kernel: Any = self.engine.path._kernel  # pyright: ignore[reportAttributeAccessIssue]
        kernel.threads = self.threads
        self.engine.prepare()

    def block(self) -> None:
        self.engine.block()


def engine(
    world: World,
    hidden: Sequence[int],
    methods: Sequence[Method],
    runs: int,
    updates: int | None = None,
    threads: int = 1,
    seeds: int = SEEDS,
    **options: Any,
) -> Engine:
    """The compiled kernel of the world's device for `MLP`s."""
    torch.manual_seed(0)
    distinct = [_make(world, hidden, **options) for _ in range(min(runs, _DISTINCT))]
    modules = [distinct[run % _DISTINCT] for run in range(runs)]
    return Engine(world, modules, methods, world.device.type, updates, threads, seeds)


def _make(world: World, hidden: Sequence[int], **options: Any) -> MLP:
    return MLP(world.problem.input_shape[0], list(hidden), world.problem.outputs, **options)
