"""What continual backpropagation costs on a GPU: a whole training step with `attach` over the same step without.

Both sides train in alternating blocks in one run, with units being replaced; the ratio is between the medians of the
block means. Also: host and device time of one tick, its launches, what `attach` adds to the peak of memory, and the
same comparison where both sides' whole update is captured in a CUDA graph.

    python benchmarks/attach_gpu.py [--quick] [--only GPT]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import neoteny
from neoteny.text import render
from neoteny.units.device_tick import why_not_fused


class Basic(nn.Module):
    """Two convolutions with norms and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.way = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.way(x))


def resnet18() -> nn.Module:
    """ResNet-18 in its form for images of 32 x 32."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inputs = 64
    for outputs, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        layers.append(Basic(inputs, outputs, stride))
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Block(nn.Module):
    """One layer of a GPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A GPT of 124 million parameters: 12 layers of 768, feed-forward 3,072."""

    def __init__(self, words: int = 50257, width: int = 768, layers: int = 12) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(1024, width)
        self.blocks = nn.Sequential(*(Block(width, 12) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.blocks(h)))


def mlp(*widths: int) -> Callable[[], nn.Module]:
    """A builder of a network of linear layers."""

    def build() -> nn.Module:
        layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*layers[:-1])

    return build


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    classes: int
    optimizer: Callable[..., Optimizer]
    autocast: bool
    updates: int
    bar: float
    stretch: float


def _images() -> Tensor:
    return torch.randn(128, 3, 32, 32, device="cuda")


def _words() -> Tensor:
    return torch.randint(0, 50257, (8, 512), device="cuda")


def _rows(count: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(count, 784, device="cuda")


def _sgd(parameters: Any, **options: Any) -> Optimizer:
    return torch.optim.SGD(parameters, 1e-3, **options)


def _adam(parameters: Any, **options: Any) -> Optimizer:
    return torch.optim.Adam(parameters, 1e-4, **options)


def _ours(parameters: Any, **options: Any) -> Optimizer:
    return neoteny.optim.Adam(parameters, 1e-4, **options)


NARROW, WIDE, BATCH = mlp(784, 100, 100, 100, 10), mlp(784, 2000, 2000, 2000, 10), mlp(784, 512, 512, 512, 10)
CASES = [
    Case("MLP 784-100x3-10, batch 1, SGD", NARROW, _rows(1), 10, _sgd, False, 300, 1.35, 1.2),
    Case("MLP 784-2000x3-10, batch 1, SGD", WIDE, _rows(1), 10, _sgd, False, 300, 1.35, 1.2),
    Case("MLP 784-512x3-10, batch 256, Adam", BATCH, _rows(256), 10, _adam, False, 300, 1.25, 1.15),
    Case("ResNet-18, batch 128, SGD, bfloat16", resnet18, _images, 10, _sgd, True, 60, 1.08, 1.04),
    Case("GPT of 124M, 8 x 512, Adam, bfloat16", GPT, _words, 50257, _adam, True, 20, 1.05, 1.02),
    Case("the same, neoteny.optim.Adam", GPT, _words, 50257, _ours, True, 20, 1.05, 1.02),
]


class Side:
    """A training loop with or without continual backpropagation."""

    def __init__(self, case: Case, plastic: bool, captured: bool = False) -> None:
        torch.manual_seed(0)
        self.case = case
        self.model = case.build().cuda()
        options = {"capturable": True} if captured and case.optimizer is not _sgd else {}
        self.optimizer = case.optimizer(self.model.parameters(), **options)
        self.inputs = [case.inputs() for _ in range(4)]
        shape = self.inputs[0].shape[: 2 if self.inputs[0].dtype == torch.int64 else 1]
        self.targets = torch.randint(0, case.classes, shape, device="cuda").flatten()
        self.plastic = None
        if plastic:
            method = neoteny.ContinualBackprop(1e-4, maturity_threshold=20)
            example = self.inputs[0][:1, :8] if self.inputs[0].dtype == torch.int64 else self.inputs[0][:2]
            attach = neoteny.attach
            self.plastic = attach(self.model, self.optimizer, method, example=example, seed=0, capturable=captured)
        self.graph: torch.cuda.CUDAGraph | None = None
        if captured:
            self._capture()

    def _capture(self) -> None:
        """Record an update on the first batch; the others are copied over it."""
        self.inputs = [self.inputs[0].clone(), *self.inputs[1:]]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.update(0)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.update(0)
        self.graph = graph

    def update(self, number: int, tick: bool = True) -> None:
        """One update."""
        if self.graph is not None:
            self.inputs[0].copy_(self.inputs[1 + number % 3])
            self.graph.replay()
            return
        with torch.autocast("cuda", torch.bfloat16, enabled=self.case.autocast):
            outputs = self.model(self.inputs[number % 4])
            loss = nn.functional.cross_entropy(outputs.flatten(0, -2), self.targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.plastic is not None and tick:
            self.plastic.step()

    def run(self, updates: int) -> float:
        """Seconds per update."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        for number in range(updates):
            self.update(number)
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / updates


def compare(case: Case, blocks: int, captured: bool = False) -> tuple[dict[str, Side], float, float]:
    """Both sides after training in alternating blocks, and the milliseconds of an update of each."""
    sides = {name: Side(case, name == "with", captured) for name in ("plain", "with")}
    times: dict[str, list[float]] = {"plain": [], "with": []}
    for side in sides.values():
        side.run(max(30, case.updates // 2))
    for block in range(blocks):
        for name in ("plain", "with") if block % 2 else ("with", "plain"):
            times[name].append(sides[name].run(case.updates))
    plain, ours = (1e3 * statistics.median(times[name]) for name in ("plain", "with"))
    return sides, plain, ours


def replayed(case: Case, blocks: int) -> list[str]:
    """A row of the table of captured updates."""
    sides, plain, ours = compare(case, blocks, captured=True)
    plastic = sides["with"].plastic
    assert plastic is not None
    added = f"{1e3 * (ours - plain):.0f}"
    return [case.name, f"{plain:.3f}", f"{ours:.3f}", f"{ours / plain:.3f}", added, str(sum(plastic.replaced.values()))]


def tick_cost(side: Side, ticks: int) -> tuple[float, float, float]:
    """Host and device milliseconds of one tick, and launches of one without replacement."""
    assert side.plastic is not None
    host = device = 0.0
    for number in range(ticks):
        side.update(number, tick=False)
        torch.cuda.synchronize()
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        start = time.perf_counter()
        side.plastic.step()
        host += time.perf_counter() - start
        last.record()
        torch.cuda.synchronize()
        device += first.elapsed_time(last)
    side.update(0, tick=False)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        side.plastic.step()
        torch.cuda.synchronize()
    launches = sum(event.count for event in profile.key_averages() if event.device_time_total > 0)
    return 1e3 * host / ticks, device / ticks, launches


def peak(case: Case, plastic: bool) -> float:
    """Peak of allocated memory in MiB over some updates."""
    torch.cuda.empty_cache()
    side = Side(case, plastic)
    side.run(3)
    torch.cuda.reset_peak_memory_stats()
    side.run(3)
    return torch.cuda.max_memory_allocated() / 2**20


def adam_itself(repeats: int) -> None:
    """Time of `neoteny.optim.Adam` over torch's fused Adam, on the parameters of the GPT."""
    times: dict[str, list[float]] = {"torch": [], "neoteny": []}
    made: dict[str, Optimizer] = {}
    for name in times:
        model = GPT().cuda()
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        parameters = list(model.parameters())
        made[name] = _ours(parameters) if name == "neoteny" else torch.optim.Adam(parameters, 1e-4, fused=True)
    for _ in range(repeats):
        for name, optimizer in made.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(10):
                optimizer.step()
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - start) / 10)
    ours, theirs = (1e3 * statistics.median(times[name][1:]) for name in ("neoteny", "torch"))
    both = f"neoteny.optim.Adam {ours:.3f} ms, torch's fused Adam {theirs:.3f} ms"
    print(f"{both}: {ours / theirs:.2f} (bar 1.2, stretch 1.05)")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer blocks")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("attach_gpu needs a CUDA device.")
    rows, memory, captured = [], [], []
    for case in [case for case in CASES if options.only in case.name]:
        sides, plain, ours = compare(case, 5 if options.quick else 11)
        plastic = sides["with"].plastic
        assert plastic is not None
        host, device, launches = tick_cost(sides["with"], 20)
        why = why_not_fused(plastic.view) or "fused"
        verdict = "stretch" if ours / plain <= case.stretch else "met" if ours / plain <= case.bar else "MISSED"
        step = (f"{plain:.2f}", f"{ours:.2f}", f"{ours / plain:.3f}", f"{case.bar} / {case.stretch}", verdict)
        tick = (f"{host:.3f}", f"{device:.3f}", f"{launches:.0f}", str(sum(plastic.replaced.values())), why)
        rows.append([case.name, *step, *tick])
        print(rows[-1], flush=True)
        if case.autocast:
            memory.append([case.name, *(peak(case, plastic) for plastic in (False, True))])
        del sides, plastic
        captured.append(replayed(case, 5 if options.quick else 11))
    head = ["model", "plain ms", "with ms", "ratio", "bar / stretch", "", "tick: host ms", "device ms", "launches"]
    print(render([*head, "replaced", "path"], rows))
    print()
    added = [[name, f"{plain:.0f}", f"{ours:.0f}", f"{ours - plain:.0f}"] for name, plain, ours in memory]
    print(render(["model", "peak MiB, plain", "with", "added"], added))
    print()
    head = ["update captured in a CUDA graph", "plain ms", "with ms", "ratio", "added us", "replaced"]
    print(render(head, captured))
    if "Adam" in options.only or not options.only:
        adam_itself(3 if options.quick else 9)


if __name__ == "__main__":
    main()
