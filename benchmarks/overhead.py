"""What a continual-backpropagation update costs over a plain one, with the same optimizer, in one run.

Both sides train the same network on the same inputs in alternating blocks; the ratio is between the medians of the
block means. Ages are past the maturity threshold before the first block, and a block is long enough to hold many
replacements. Utilities are exact. Both sides run under the same allocator settings: at 2,000 units glibc's defaults
alone double the plain update's time through page faults. On the CPU the time is the process's own, not the clock's, so
that other work on the machine counts less.

    python benchmarks/overhead.py [--threads 1] [--blocks 15] [--device cpu] [--models]

`--models` measures published models instead of the paper's networks; those of torchvision where it is installed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

ALLOCATOR = {
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "268435456",
}


def with_allocator_settings() -> None:
    """Start this program again with the settings, which glibc reads only at the start of a process."""
    if any(os.environ.get(key) != value for key, value in ALLOCATOR.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALLOCATOR})


@dataclass
class Case:
    """One network to measure."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    batch: int
    momentum: float
    replacement_rate: float
    updates: int
    bar: float
    maturity: int = 100
    tokens: int = 0  # inputs are numbers below this instead of images


def cases() -> list[Case]:
    """The networks of the paper's online and mini-batch problems."""
    from neoteny.nets import MLP, ConvNet

    return [
        Case("784-2000x3-10, batch 1", lambda: MLP(784, [2000] * 3, 10), (784,), 10, 1, 0.0, 1e-4, 60, 1.4),
        Case("784-100x3-10, batch 1", lambda: MLP(784, [100] * 3, 10), (784,), 10, 1, 0.0, 1e-4, 1000, 1.6),
        Case("conv net, batch 100", ConvNet, (3, 32, 32), 2, 100, 0.9, 3e-4, 30, 1.05),
    ]


def models() -> list[Case]:
    """Published models on small inputs, where a tick weighs most; those of torchvision only where it is there."""
    found: list[Case] = []
    try:
        import torchvision.models as zoo  # pyright: ignore[reportMissingImports]
    except Exception as error:  # its compiled part may not fit the installed torch
        print(f"skipped, torchvision does not load ({type(error).__name__}): DenseNet-121, ResNet-18, MobileNetV2, ViT")
    else:
        for name, build in (
            ("DenseNet-121, 32 x 32", lambda: zoo.densenet121(num_classes=10)),
            ("ResNet-18, 32 x 32", lambda: zoo.resnet18(num_classes=10)),
            ("MobileNetV2, 32 x 32", lambda: zoo.mobilenet_v2(num_classes=10)),
            ("ViT, 6 x 384, 64 x 64", lambda: zoo.VisionTransformer(64, 16, 6, 6, 384, 1536, num_classes=10)),
        ):
            size = 64 if name.startswith("ViT") else 32
            found.append(Case(name, build, (3, size, size), 10, 32, 0.9, 1e-4, 3, 1.15, 5))
    return [*found, Case("GPT, 4 x 256, 64 tokens", _gpt, (64,), 100, 8, 0.9, 1e-4, 3, 1.15, 5, tokens=100)]


def _gpt() -> nn.Module:
    """Four pre-norm blocks over 100 tokens; one class for the whole text."""
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.0, "gelu", batch_first=True, norm_first=True)
    parts = [nn.Embedding(100, 256), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(256, 100)]

    class Last(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, -1]

    return nn.Sequential(*parts[:2], Last(), parts[2])


def measure(case: Case, blocks: int, device: str) -> tuple[float, float, int]:
    """Plain and continual-backpropagation seconds per update, and units replaced while measuring."""
    import torch
    from torch import nn

    import neoteny

    def side(plastic: bool) -> tuple[Callable[[int], None], neoteny.Attachment | None]:
        torch.manual_seed(0)
        model = case.build().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=case.momentum)
        criterion = nn.CrossEntropyLoss()
        inputs = torch.rand(64, case.batch, *case.shape, device=device)
        if case.tokens:
            inputs = (inputs * case.tokens).long()
        targets = torch.randint(0, case.classes, (64, case.batch), device=device)
        method = neoteny.ContinualBackprop(case.replacement_rate, maturity_threshold=case.maturity)
        attached = neoteny.attach(model, optimizer, method, example=inputs[0][:2]) if plastic else None

        def run(updates: int) -> None:
            for number in range(updates):
                loss = criterion(model(inputs[number % 64]), targets[number % 64])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if attached is not None:
                    attached.step()
            if device == "cuda":
                torch.cuda.synchronize()

        return run, attached

    plain, _ = side(False)
    continual, attached = side(True)
    assert attached is not None
    for run in (plain, continual):
        run(case.maturity + min(case.maturity, 20))
    clock = time.process_time if device == "cpu" else time.perf_counter
    before = sum(attached.replaced.values())
    times: dict[str, list[float]] = {"plain": [], "continual": []}
    sides = [("plain", plain), ("continual", continual)]
    for block in range(blocks):
        for name, run in sides if block % 2 else reversed(sides):  # the side that goes first changes every time
            start = clock()
            run(case.updates)
            times[name].append((clock() - start) / case.updates)
    replaced = sum(attached.replaced.values()) - before
    return statistics.median(times["plain"]), statistics.median(times["continual"]), replaced


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="torch threads on both sides")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--blocks", type=int, default=15, help="blocks a side")
    parser.add_argument("--models", action="store_true", help="published models instead of the paper's networks")
    parser.add_argument("--only", default="", help="measure only networks whose name contains this")
    arguments = parser.parse_args()
    with_allocator_settings()
    import torch

    torch.set_num_threads(arguments.threads)
    setting = f"{arguments.device}, {arguments.threads} thread(s), {arguments.blocks} alternating blocks a side"
    print(f"torch {torch.__version__}, {setting}")
    print(f"{'network':26}{'plain':>12}{'continual':>12}{'ratio':>8}{'bar':>7}{'replaced':>10}")
    for case in models() if arguments.models else cases():
        if arguments.only in case.name:
            plain, continual, replaced = measure(case, arguments.blocks, arguments.device)
            print(
                f"{case.name:26}{plain * 1e6:>9.0f} us{continual * 1e6:>9.0f} us{continual / plain:>8.2f}"
                f"{case.bar:>7.2f}{replaced:>10}",
                flush=True,
            )


if __name__ == "__main__":
    main()
