"""What an update has to move through memory at least, and what the memory can move: the roofline of `online.py`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

NUMBER = 4  # bytes of a float32


def bytes_at_least(
    widths: Sequence[int], active: Sequence[float], optimizer: str = "sgd", replaces: bool = False
) -> float:
    """Bytes that one update of one run reads and writes, if every number is fetched once and stored once per pass.

    A row of weights whose input is zero is not needed. The others are read going forward, and read and written going
    back, where the gradient of the inputs and the update take one pass together. Momentum and Adam move every weight
    and their own numbers at every update, and noise every weight, for any inputs.

    Args:
        widths: inputs, hidden units of each layer, outputs.
        active: for each layer, how many of its inputs are not zero.
        optimizer: "sgd", "perturbed" (with noise on all weights), "momentum" or "adam".
        replaces: whether three numbers of each hidden unit are kept for continual backpropagation.
    """
    dense = {"sgd": 0, "perturbed": 1, "momentum": 2, "adam": 3}[optimizer]  # tensors that are read and written whole
    numbers = 0.0
    for inputs, outputs, rows in zip(widths, widths[1:], active, strict=False):
        numbers += rows * outputs
        numbers += 2 * dense * inputs * outputs if dense else 2 * rows * outputs
        numbers += 2 * outputs * max(dense, 1)  # the bias
    if replaces:
        numbers += 6 * sum(widths[1:-1])
    return numbers * NUMBER


def cpu_bandwidth(threads: int, megabytes: int = 96, repeats: int = 5) -> float:
    """Bytes per second of a = b + s * c over arrays larger than the caches, the best of some passes."""
    import numba

    @numba.njit(nogil=True, fastmath=True)
    def triad(a, b, c, s):  # pragma: no cover
        for i in range(len(a)):
            a[i] = b[i] + s * c[i]

    size = megabytes * 2**20 // 8
    parts = [np.ones((3, size // threads)) for _ in range(threads)]

    def work(part: np.ndarray) -> None:
        triad(part[0], part[1], part[2], 3.0)

    work(parts[0])
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeats + 1):
            start = time.perf_counter()
            list(pool.map(work, parts))
            best = min(best, time.perf_counter() - start)
    return 3 * 8 * (size // threads) * threads / best


def gpu_bandwidth(gigabytes: int = 2, repeats: int = 10) -> float:
    """Bytes per second of a copy inside the device's memory, read and written."""
    source = torch.ones(gigabytes * 2**30 // 4, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        target.copy_(source)
    torch.cuda.synchronize()
    return 2 * 4 * source.numel() * repeats / (time.perf_counter() - start)
