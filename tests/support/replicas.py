"""Training in several processes: scenarios of DistributedDataParallel, and the processes that run them.

A scenario is a function of (rank, size, folder) that returns plain values; `run` gives what every rank returned. With
size 1 the same function trains one process on the whole batch.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import neoteny
from neoteny.methods import Method
from neoteny.methods.method import BoundaryData, State
from neoteny.units.statistics import read
from neoteny.units.view import View, read_modules

SECONDS = 240
ROWS, FEATURES = 12, 6
CBP = neoteny.ContinualBackprop(0.02, maturity_threshold=5, decay_rate=0.9)
Scenario = Callable[[int, int, Path], Any]


def run(scenarios: Sequence[Scenario], size: int, folder: Path) -> list[list[Any]]:
    """For each scenario what every rank returned; the processes and their group are made once for all of them."""
    context = _context()
    processes = [context.Process(target=_work, args=(scenarios, rank, size, folder)) for rank in range(size)]
    for each in processes:
        each.start()
    until = time.monotonic() + SECONDS
    while any(each.is_alive() for each in processes) and time.monotonic() < until:
        time.sleep(0.02)
        if any(each.exitcode for each in processes):  # the others wait for this one in vain
            until = min(until, time.monotonic() + 2.0)
    for each in processes:
        if each.is_alive():
            each.kill()
        each.join()
    failures = [path.read_text() for path in sorted(folder.glob("failure-*"))]
    codes = [each.exitcode for each in processes]
    if failures or any(codes):
        raise RuntimeError("\n".join([f"exit codes {codes}", *failures]))
    found = [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(size)]
    return [list(each) for each in zip(*found, strict=True)]


def _context() -> Any:
    """Processes that are forked from one that has imported what they need, but never used it."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(neoteny.__file__).parents[1]), *sys.path])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo", "numba", "neoteny.attachment.attachment"])
    return context


def _work(scenarios: Sequence[Scenario], rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    place = f"file://{folder}/group"
    dist.init_process_group("gloo", place, rank=rank, world_size=size, timeout=timedelta(seconds=SECONDS))
    try:
        torch.save([scenario(rank, size, folder) for scenario in scenarios], folder / f"rank-{rank}.pt")
    except BaseException:
        (folder / f"failure-{rank}").write_text(f"rank {rank}\n{traceback.format_exc()}")
        os._exit(1)
    dist.destroy_process_group()


def digest(model: nn.Module, optimizer: torch.optim.Optimizer, plastic: Any = None) -> str:
    """Of all parameters, buffers and optimizer state, and of an attachment's."""
    found = hashlib.sha256()
    _add(found, [model.state_dict(), optimizer.state_dict(), {} if plastic is None else plastic.state_dict()])
    return found.hexdigest()


def _add(found: Any, value: Any) -> None:
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            found.update(str(key).encode())
            _add(found, value[key])
    elif isinstance(value, (list, tuple)):
        for each in value:
            _add(found, each)
    elif isinstance(value, Tensor):
        found.update(value.detach().cpu().contiguous().numpy().tobytes())
    else:
        found.update(repr(value).encode())


def small_net(dtype: torch.dtype = torch.float64) -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 12), nn.ReLU(), nn.LayerNorm(12), nn.Linear(12, 10), nn.Tanh(), nn.Linear(10, 1)
    ).to(dtype)


def plain_net() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 1)).double()


def image_net() -> nn.Module:
    layers = (nn.Conv2d(1, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 1))
    return nn.Sequential(nn.Unflatten(1, (1, 3, 2)), nn.ZeroPad2d((0, 1, 0, 0)), *layers).double()


def batch(step: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """The whole batch of an update; the task changes every 40 updates."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(ROWS, FEATURES, generator=generator, dtype=torch.float64).to(dtype)
    return x, x[:, step // 40 % FEATURES].unsqueeze(1).abs()


def share(step: int, rank: int, size: int, sizes: Sequence[int] | None = None) -> slice:
    """A rank's rows: even ones, or of the given sizes."""
    sizes = [ROWS // size] * size if sizes is None else sizes
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


@dataclass
class Trained:
    """What training left on one rank."""

    digest: str
    replaced: int
    weights: dict[str, Tensor]
    state: Any


def train(
    rank: int,
    size: int,
    *methods: Method,
    net: Callable[[], nn.Module] = small_net,
    steps: int = 60,
    sizes: Callable[[int], Sequence[int] | None] = lambda step: None,
    passes: int = 1,
    optimizer_kind: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    attach_inner: bool = False,
    **options: Any,
) -> Trained:
    """Train with one process per rank, or in one process on the whole batch.

    Args:
        rank, size: of this process.
        methods, options: as for `neoteny.attach`.
        net: makes the model.
        steps: updates.
        sizes: from an update to the rows of each rank.
        passes: in how many passes each rank goes through its rows; all but the last without synchronisation.
        optimizer_kind: of the model's parameters.
        attach_inner: before the model is wrapped, and with other weights on each rank.
    """
    torch.manual_seed(rank if attach_inner else 0)
    model = net()
    dtype = next(model.parameters()).dtype
    optimizer = optimizer_kind(model.parameters(), lr=0.01)
    options = {"seed": 1, **options}
    example = torch.randn(2, FEATURES, dtype=dtype)
    plastic = neoteny.attach(model, optimizer, *methods, example=example, **options) if attach_inner else None
    ddp = DistributedDataParallel(model) if size > 1 else model
    if plastic is None:
        plastic = neoteny.attach(ddp, optimizer, *methods, example=example, **options)
    for step in range(steps):
        x, y = batch(step, dtype)
        mine = share(step, rank, size, sizes(step) if size > 1 else None)
        optimizer.zero_grad()
        parts = list(zip(x[mine].tensor_split(passes), y[mine].tensor_split(passes), strict=True))
        if size == 1 and options.get("ranks") == "first":  # what two ranks would do: the first half is read
            halves = [*zip(x.chunk(2), y.chunk(2), strict=True)]
            (model(halves[0][0]) - halves[0][1]).square().sum().div(ROWS).backward()
            with plastic._recorder.paused():
                (model(halves[1][0]) - halves[1][1]).square().sum().div(ROWS).backward()
            parts = []
        for number, (inputs, targets) in enumerate(parts):
            last = number + 1 == len(parts)
            with ddp.no_sync() if isinstance(ddp, DistributedDataParallel) and not last else nullcontext():
                error = (ddp(inputs) - targets).square().sum() * (
                    size / ROWS
                )  # the mean over ranks is that of all rows
                error.backward()
        if any(method.needs_loss for method in methods):
            with torch.no_grad():
                model.eval()
                plastic.observe((model(x[mine]) - y[mine]).square().sum() * (size / ROWS))
                model.train()
        optimizer.step()
        plastic.step()
        if step == steps // 2:
            plastic.task_boundary([(x[mine], y[mine])], lambda out, goal: (out - goal).square().sum() * (size / ROWS))
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    state = plastic.state_dict()
    return Trained(digest(model, optimizer, plastic), sum(plastic.replaced.values()), weights, state["states"])


@dataclass(frozen=True)
class Watching(Method):
    """A method as a user may write it: keeps what it sees of activations, their gradients, the loss and a new task."""

    needs_units: ClassVar[bool] = True
    needs_loss: ClassVar[bool] = True
    needs_boundary_data: ClassVar[bool] = True

    def reads(self, view: View) -> list[str]:
        return read_modules(view)

    def reads_gradients(self, view: View) -> list[str]:
        return read_modules(view)

    def init(self, view: View) -> State:
        return {"seen": torch.zeros(4, dtype=torch.float64)}

    def step(self, view: View, state: State) -> None:
        assert view.loss is not None
        group = view.groups[0]
        reader = group.reading(view.activations)
        assert reader is not None
        values = torch.cat(read(view, reader, torch.float64))
        gradients = [each.abs().sum() for each in view.input_gradients[reader.key]]
        state["seen"] += torch.stack([view.loss, values.square().mean(), torch.stack(gradients).sum(), view.loss * 0])

    def task_boundary(self, view: View, state: State, data: BoundaryData | None = None) -> None:
        assert data is not None
        for gradients in data.gradients():
            state["seen"][3] += sum(float(each.square().sum()) for each in gradients.values())


def hundreds(rank: int, size: int, folder: Path) -> Trained:
    """500 updates with a drawn seed, attached to the inner module before it is wrapped."""
    method = neoteny.ContinualBackprop(0.05, maturity_threshold=5)
    net = lambda: small_net(torch.float32)  # noqa: E731
    return train(rank, size, method, net=net, steps=500, attach_inner=True, seed=None)


def utilities(rank: int, size: int, folder: Path) -> dict[str, Trained]:
    """Every utility, of linear layers and of images behind a flatten."""
    names = ("overall", "mean_corrected_contribution", "contribution", "adaptation", "weight_magnitude", "random")
    found: dict[str, Trained] = {}
    for name in names:
        method = neoteny.ContinualBackprop(0.1, maturity_threshold=5, decay_rate=0.9, utility=name)
        for net in (image_net, plain_net):
            found[f"{name}, {net.__name__}"] = train(rank, size, method, net=net, steps=20)
    return found


def uneven(rank: int, size: int, folder: Path) -> Trained:
    """Other batch sizes at every update, and sometimes a rank with an empty batch."""
    sizes = [_rows(step, size) for step in range(7)]
    return train(rank, size, CBP, sizes=lambda step: sizes[step % 7])


def _rows(step: int, size: int) -> list[int]:
    first = [5, 0, 7, 11, 1, 12, 3][step]
    return [first, *([0] * (size - 2)), ROWS - first]


def accumulated(rank: int, size: int, folder: Path) -> Trained:
    """Three passes per update, two of them inside of `no_sync`."""
    return train(rank, size, CBP, passes=3)


def summed(rank: int, size: int, folder: Path) -> Trained:
    """The same with sums instead of inputs."""
    return train(rank, size, CBP, passes=3, accumulate="sums")


def of_first(rank: int, size: int, folder: Path) -> Trained:
    """The statistics of the first rank's batch."""
    return train(rank, size, CBP, ranks="first")


def combined(rank: int, size: int, folder: Path) -> Trained:
    """Methods with draws, anchors and averages, attached to the inner module before it is wrapped."""
    methods = (CBP, neoteny.L2Init(0.01), neoteny.ShrinkAndPerturb(0.999, 1e-3), neoteny.HareAndTortoise(0.9))
    return train(rank, size, *methods, attach_inner=True, optimizer_kind=neoteny.optim.Adam)


def gathered(rank: int, size: int, folder: Path) -> Trained:
    """Methods that read activations, gradients, losses and data in their own way."""
    return train(rank, size, neoteny.ReDo(period=7, threshold=0.4), Watching())


def joined(rank: int, size: int, folder: Path) -> tuple[str, int]:
    """Three epochs in which ranks have different numbers of batches, one rank none at all in the first."""
    torch.manual_seed(0)
    model = small_net(torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ddp = DistributedDataParallel(model)
    plastic = neoteny.attach(ddp, optimizer, CBP, neoteny.ReDo(5, 0.3), example=torch.zeros(2, FEATURES), seed=rank)
    for epoch in range(3):
        with Join([ddp, plastic]):
            for step in range((20, 9)[(rank + epoch) % 2] if epoch or rank else 0):
                passes = 2 if epoch == 2 else 1
                x, y = batch(100 * epoch + 7 * rank + step, torch.float32)
                optimizer.zero_grad()
                for number in range(passes):
                    with ddp.no_sync() if number + 1 < passes else nullcontext():
                        (ddp(x) - y).square().mean().backward()
                optimizer.step()
                plastic.step()
    return digest(model, optimizer, plastic), sum(plastic.replaced.values())


def refused(rank: int, size: int, folder: Path) -> list[str]:
    """What is said of each mistake."""

    def message(act: Callable[[], Any]) -> str:
        try:
            act()
        except (ValueError, RuntimeError, TypeError) as error:
            return str(error)
        return "no error"

    def one(
        rate: float = 0.1,
        joins: Callable[[Any, Any], Any] | None = None,
        passes: int = 1,
        beside: tuple[Method, ...] = (),
    ) -> None:
        torch.manual_seed(0)
        ddp = DistributedDataParallel(small_net(torch.float32))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
        method = neoteny.ContinualBackprop(rate)
        plastic = neoteny.attach(ddp, optimizer, method, *beside, example=torch.zeros(2, FEATURES))
        with nullcontext() if joins is None else joins(ddp, plastic):
            for _ in range(passes):
                ddp(torch.ones(2, FEATURES)).sum().backward()
            optimizer.step()
            plastic.step()

    def captured(attach_inner: bool) -> None:
        model = small_net(torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        ddp = DistributedDataParallel(model)
        given = model if attach_inner else ddp
        plastic = neoteny.attach(given, optimizer, CBP, example=torch.zeros(2, FEATURES), capturable=True)
        ddp(torch.ones(2, FEATURES)).sum().backward()
        optimizer.step()
        plastic.step()

    holder = nn.Sequential(DistributedDataParallel(small_net(torch.float32)), nn.Linear(1, 1))
    return [
        message(lambda: one(rate=0.1 + 0.1 * rank)),
        message(lambda: one(joins=lambda ddp, plastic: ddp.join())),
        message(lambda: one(joins=lambda ddp, plastic: Join([plastic, ddp]))),
        message(lambda: one(joins=lambda ddp, plastic: Join([ddp, plastic]), passes=2)),
        message(lambda: neoteny.attach(holder, torch.optim.SGD(holder.parameters(), 0.1), CBP, example=torch.ones(1))),
        message(lambda: one(beside=(neoteny.CChain(1.0, beta=None),))),
        message(lambda: captured(attach_inner=False)),
        message(lambda: captured(attach_inner=True)),  # the wrapper is found at the first update
    ]


def interrupted(rank: int, size: int, folder: Path) -> str:
    """60 updates with checkpoints by rank 0; with a file "kill" rank 1 dies at update 35, with a checkpoint go on."""
    saved = folder.parent / "checkpoint.pt"
    torch.manual_seed(0)
    model = small_net()
    optimizer = neoteny.optim.Adam(model.parameters(), lr=0.01)
    ddp = DistributedDataParallel(model)
    plastic = neoteny.attach(ddp, optimizer, CBP, example=torch.zeros(2, FEATURES).double(), seed=None)
    first = 0
    if saved.exists() and not (folder / "kill").exists():
        kept = torch.load(saved, weights_only=False)
        first = kept["step"]
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        plastic.load_state_dict(kept["plastic"])
    for step in range(first, 60):
        if rank == 1 and step == 35 and (folder / "kill").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        x, y = batch(step)
        mine = share(step, rank, size)
        optimizer.zero_grad()
        (ddp(x[mine]) - y[mine]).square().mean().backward()
        optimizer.step()
        plastic.step()
        if rank == 0 and step == 19:
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "plastic": plastic.state_dict()}
            torch.save({"step": step + 1, **states}, saved)
    return digest(model, optimizer, plastic)
