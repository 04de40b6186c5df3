"""The Triton kernels run by Triton's interpreter on the CPU: what they compute, not how fast.

    python -m support.interpreted NET    (from tests/; NET as in `device_ticks`, or "adam" or "pool")

Compares as the tests on a GPU do, with fresh memory full of nan, and prints a line per case. A process of its own,
because Triton decides when it is imported whether it compiles or interprets.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch.nn.functional import conv2d, max_pool2d

import neoteny
from neoteny.backends.graphs.relu_pool import ConvolutionReluPool
from neoteny.layers.regions import Region
from neoteny.methods.device_adam import DeviceAdam
from neoteny.units import device_tick
from neoteny.units.device import measure_kernels, reset_kernels, tick
from neoteny.units.utilities import GRADIENT, UTILITIES
from support.device_ticks import NETS, OPTIMIZERS, Pair

TICKS = 10
BOUND = 1e-5
"""As on a GPU."""


class Functions:
    """What the interpreter does not have: the kernels' functions of CUDA's own library."""

    @staticmethod
    def div_rn(x: Any, y: Any) -> Any:
        """A division that is rounded to the nearest number, as this one is."""
        return x / y


def serve_the_cpu() -> None:
    """Let the fused tick serve the CPU, where memory is never pinned and nothing is captured or recorded."""
    device_tick.SERVED.add("cpu")
    setattr(tick, "_RECORD_AFTER", sys.maxsize)  # noqa: B010
    torch.cuda.is_current_stream_capturing = lambda: False
    setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)  # noqa: B010
    for module in (measure_kernels, reset_kernels):
        setattr(module, "libdevice", Functions)  # noqa: B010
        for name, value in list(vars(module).items()):
            if type(value).__name__ == "constexpr":  # an argument is a plain number here
                setattr(module, name, value.value)


def fill_fresh_memory() -> None:
    """Memory that nobody has written holds nan: a kernel that reads it is found."""
    for name in ("empty", "empty_like"):
        make = getattr(torch, name)

        def made(*arguments: Any, make: Any = make, **options: Any) -> torch.Tensor:
            found = make(*arguments, **options)
            return found.fill_(torch.nan) if found.is_floating_point() else found

        setattr(torch, name, made)


def compare(net: str, optimizer: str, **options: Any) -> bool:
    """Whether both ticks replace the same units and have the same numbers."""
    method = neoteny.ContinualBackprop(0.05, maturity_threshold=3, decay_rate=0.9, **options)
    pair = Pair(net, optimizer, method, device="cpu")
    pair.train()
    pair.worst = 0.0  # with one example the first deviation from the mean is rounding alone
    for _ in range(TICKS):
        pair.train()
    fused, general = pair.attached
    why = device_tick.why_not_fused(fused.view)
    equal = fused.replaced == general.replaced and min(fused.replaced.values()) > 0
    good = not why and equal and pair.worst < BOUND
    replaced = sum(fused.replaced.values())
    print(f"{net}, {optimizer}, {options}: {replaced} units, worst {pair.worst:.0e} {why} {'ok' if good else 'FAILED'}")
    return good


def compare_schedule(net: str) -> bool:
    """Whether the schedule that is counted on the device, as in a CUDA graph, is the host's on the general path."""
    build, shape = NETS[net]
    replaced, weights = [], []
    for on_device in (True, False):
        device_tick.SERVED.clear()
        device_tick.SERVED.update({"cpu"} if on_device else ())
        torch.manual_seed(1)
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        method = neoteny.ContinualBackprop(0.05, maturity_threshold=3, decay_rate=0.9)
        plastic = neoteny.attach(model, optimizer, method, example=torch.zeros(shape), seed=7, capturable=on_device)
        for _ in range(TICKS):
            optimizer.zero_grad()
            model(torch.randn(shape)).square().mean().backward()
            optimizer.step()
            plastic.step()
        replaced.append(plastic.replaced)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    worst = float((weights[0] - weights[1]).abs().max())
    good = replaced[0] == replaced[1] and min(replaced[0].values()) > 0 and worst < BOUND
    print(f"{net}, counted on the device: {replaced[0]}, worst {worst:.0e} {'ok' if good else 'FAILED'}")
    return good


def compare_adam() -> bool:
    """Whether the kernel's Adam is the library's, with elements that have counts of their own."""
    torch.manual_seed(0)
    sides = [[torch.nn.Parameter(torch.randn(shape)) for shape in ((70, 30), (40,), (6, 5, 3, 3))] for _ in range(2)]
    for mine, other in zip(*sides, strict=True):
        mine.data.copy_(other)
    ours, theirs = (neoteny.optim.Adam(side, 1e-2, weight_decay=0.1) for side in sides)
    worst, kernel = 0.0, None
    for number in range(12):
        if number == 5:
            for optimizer, side in ((ours, sides[0]), (theirs, sides[1])):
                optimizer.clear_elements(side[0], Region("x", (torch.tensor([[1], [3]]),)))
            kernel = None
        for mine, other in zip(*sides, strict=True):
            mine.grad = torch.randn_like(mine)
            other.grad = mine.grad.clone()
        theirs.step()
        if number == 0:  # makes the state
            ours.step()
            continue
        states = [ours.state[parameter] for parameter in sides[0]]
        kernel = kernel or DeviceAdam(sides[0], states)
        with torch.no_grad():
            done = kernel.update([p.grad for p in sides[0] if p.grad is not None], 1e-2, (0.9, 0.999), 1e-8, 0.1, False)
        assert done
        worst = max(worst, *(float((mine - other).detach().abs().max()) for mine, other in zip(*sides, strict=True)))
    print(f"adam: worst {worst:.0e} {'ok' if worst < BOUND else 'FAILED'}")
    return worst < BOUND


def compare_pool() -> bool:
    """Whether the pooled convolution of CUDA graphs, and its gradients, are torch's, in both layouts and odd sizes."""
    worst = 0.0
    for layout in (torch.contiguous_format, torch.channels_last):
        for side in (9, 10):
            torch.manual_seed(side)
            shapes = ((3, 4, side, side), (6, 4, 3, 3), (6,))
            first = [torch.randn(shape).requires_grad_() for shape in shapes]
            second = [tensor.detach().clone().requires_grad_() for tensor in first]
            x, weight, bias = first
            pooled = ConvolutionReluPool.apply(
                x.contiguous(memory_format=layout), weight, bias, ([1, 1], [1, 1], [1, 1], 1)
            )
            x, weight, bias = second
            plain = max_pool2d(torch.relu(conv2d(x, weight, bias, 1, 1)), 2)
            upper = torch.randn_like(plain)
            torch.autograd.backward([pooled, plain], [upper, upper])  # pyright: ignore[reportArgumentType]
            pairs = [(pooled, plain), *((mine.grad, other.grad) for mine, other in zip(first, second, strict=True))]
            worst = max(worst, *(float((mine - other).detach().abs().max()) for mine, other in pairs))
    print(f"pool: worst {worst:.0e} {'ok' if worst < BOUND else 'FAILED'}")
    return worst < BOUND


def main() -> int:
    """1 if a case failed."""
    torch.set_num_threads(1)
    net = sys.argv[1]
    serve_the_cpu()
    fill_fresh_memory()
    if net in OTHERS:
        return 0 if OTHERS[net]() else 1
    cases: list[dict[str, Any]] = [{"optimizer": "sgd"}]
    if net == "mlp":
        cases = [{"optimizer": name} for name in OPTIMIZERS]
        names = [name for name, terms in UTILITIES.items() if not terms & GRADIENT]
        cases += [{"optimizer": "momentum", "utility": name} for name in names]
        cases += [{"optimizer": "adam", "compensate": False}, {"optimizer": "adam", "count": "layer"}]
    failed = sum(not compare(net, **case) for case in cases) + (not compare_schedule(net))
    return 1 if failed else 0


OTHERS = {"adam": compare_adam, "pool": compare_pool}

if __name__ == "__main__":
    sys.exit(main())
