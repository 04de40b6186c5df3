"""Counter-based random draws: a number depends on (run seed, step, purpose, row, column) and on nothing else.

The generator is Philox4x32-10 (Salmon et al. 2011). Because no state is carried from draw to draw, a run draws the
same numbers alone, inside a stack, on another device, or after it was resumed. Every backend uses this layout:

- key: the low and high 32 bits of the run seed;
- counter: (column // 4, row, low 32 bits of step, purpose ^ (high 32 bits of step * 0x9E3779B9));
- column % 4 chooses one of the four output words.

A word w becomes the uniform number (w + 0.5) / 2**32, computed in float64. Normal numbers come from the uniform pairs
(words 0 and 1, words 2 and 3) by the Box-Muller transform.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neoteny.jit import compiler

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def purpose_code(purpose: str) -> int:
    """The 32-bit number that stands for a purpose such as "fc1.weight"."""
    return zlib.crc32(purpose.encode())


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Philox4x32-10 on int64 tensors that hold 32-bit words and broadcast together.

    The 64-bit products wrap as two's complement, which leaves both 32-bit halves right.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0 = c0 * _MULTIPLIERS[0]
        product1 = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((product1 >> 32) & _MASK) ^ c1 ^ k0,
            product1 & _MASK,
            ((product0 >> 32) & _MASK) ^ c3 ^ k1,
            product0 & _MASK,
        )
        k0 = (k0 + _KEY_STEPS[0]) & _MASK
        k1 = (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seeds: Tensor, step: int | Tensor, purpose: str, rows: Tensor, columns: int) -> Tensor:
    """Uniform numbers in (0, 1), float64.

    Args:
        seeds: run seeds, int64, any shape that broadcasts with `rows`.
        step: the step of the draw, one for all or broadcasting with `rows`.
        purpose: what the numbers are for; draws of different purposes are independent.
        rows: row numbers, int64 (...).
        columns: how many numbers to draw for each row.

    Returns:
        Tensor (..., columns).
    """
    return _unit(seeds, step, purpose, rows, columns).flatten(-2)[..., :columns]


def normal(seeds: Tensor, step: int | Tensor, purpose: str, rows: Tensor, columns: int) -> Tensor:
    """Standard normal numbers, float64; arguments and shape as `uniform`."""
    if _is_plain_cpu(seeds, step, rows) and (transform := _compiled_box_muller()) is not None:
        numbers = _unit(seeds, step, purpose, rows, columns)
        transform(numbers.view(-1).numpy())
        return numbers.flatten(-2)[..., :columns]
    unit = _unit(seeds, step, purpose, rows, columns)  # (..., blocks, 4)
    radius = torch.sqrt(-2.0 * torch.log(unit[..., 0::2]))
    angle = (2.0 * math.pi) * unit[..., 1::2]
    pairs = torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), dim=-1)  # (..., blocks, 2, 2)
    return pairs.flatten(-3)[..., :columns]


def add_normal(target: Tensor, seeds: Tensor, step: int, purpose: str, scale: float | Tensor) -> None:
    """Add scale * `normal` to a tensor (*R, rows, columns) in place, drawn for its run (seeds (*R)) and row.

    The same as drawing and adding, in one compiled pass without temporary tensors where that is possible. To float32
    targets the noise is added with an error of about 1e-9 of itself, a fiftieth of what rounding it may cost.
    """
    rows = torch.arange(target.shape[-2], device=target.device).expand(target.shape[:-1])
    add = None
    if _is_plain_cpu(seeds, step, rows) and target.is_contiguous():
        add = _compiled_add_short() if target.dtype == torch.float32 else _compiled_add()
    if add is None or target.dtype not in (torch.float32, torch.float64):
        noise = normal(seeds.unsqueeze(-1), step, purpose, rows, target.shape[-1])
        factor = scale.reshape(*scale.shape, 1, 1) if isinstance(scale, Tensor) else scale
        target.add_((noise * factor).to(target.dtype))
        return
    scales = torch.as_tensor(scale, dtype=torch.float64).expand(seeds.shape).reshape(-1)
    blocks = target.view(-1, target.shape[-2], target.shape[-1])
    add(blocks.numpy(), seeds.reshape(-1).numpy(), step, purpose_code(purpose), scales.numpy())


def _unit(seeds: Tensor, step: int | Tensor, purpose: str, rows: Tensor, columns: int) -> Tensor:
    """Uniform numbers (..., ceil(columns / 4), 4), float64; one compiled pass on the CPU where that is possible."""
    fill = _compiled() if _is_plain_cpu(seeds, step, rows) else None
    if fill is None:
        return (_words(seeds, step, purpose, rows, columns).to(torch.float64) + 0.5) * 2.0**-32
    step_shape = step.shape if isinstance(step, Tensor) else ()
    shape = np.broadcast_shapes(seeds.shape, rows.shape, step_shape)
    numbers = torch.empty(*shape, (columns + 3) // 4, 4, dtype=torch.float64)
    steps = step if isinstance(step, Tensor) else torch.full((), step, dtype=torch.int64)
    flat = (value.expand(shape).reshape(-1).numpy() for value in (seeds, rows, steps))
    fill(*flat, purpose_code(purpose), numbers.reshape(-1, (columns + 3) // 4, 4).numpy())
    return numbers


def _is_plain_cpu(seeds: Tensor, step: int | Tensor, rows: Tensor) -> bool:
    """Whether the arguments are ordinary CPU tensors: inside vmap or a compiled graph they are not."""
    tensors = (seeds, rows, step) if isinstance(step, Tensor) else (seeds, rows)
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return False
    mapped = torch._C._functorch.maybe_current_level()  # pyright: ignore[reportAttributeAccessIssue]
    return mapped is None and not torch.compiler.is_compiling()


@functools.cache
def _compiled() -> Callable[..., None] | None:
    """Philox in one compiled loop: (seeds, rows, steps, each (M,), purpose, numbers to fill (M, blocks, 4))."""
    compile_ = compiler()
    if compile_ is None:
        return None

    @compile_
    def fill(seeds, rows, steps, purpose, numbers):  # pragma: no cover - compiled
        low = np.uint64(0xFFFFFFFF)
        half = np.uint64(32)
        multiplier0, multiplier1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
        weyl0, weyl1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
        for m in range(len(rows)):
            seed, time = np.uint64(seeds[m]), np.uint64(steps[m])
            last = ((time >> half) * weyl0 & low) ^ np.uint64(purpose)
            for block in range(numbers.shape[1]):
                c0, c1, c2, c3 = np.uint64(block), np.uint64(rows[m]) & low, time & low, last
                k0, k1 = seed & low, seed >> half
                for _ in range(10):
                    product0, product1 = c0 * multiplier0, c2 * multiplier1
                    c0, c1 = (product1 >> half) ^ c1 ^ k0, product1 & low
                    c2, c3 = (product0 >> half) ^ c3 ^ k1, product0 & low
                    k0, k1 = (k0 + weyl0) & low, (k1 + weyl1) & low
                numbers[m, block, 0] = (np.float64(c0) + 0.5) * 2.0**-32
                numbers[m, block, 1] = (np.float64(c1) + 0.5) * 2.0**-32
                numbers[m, block, 2] = (np.float64(c2) + 0.5) * 2.0**-32
                numbers[m, block, 3] = (np.float64(c3) + 0.5) * 2.0**-32

    return fill


@functools.cache
def _compiled_box_muller() -> Callable[[np.ndarray], None] | None:
    """Turns pairs of uniform numbers into pairs of normal ones, in place."""
    compile_ = compiler()
    if compile_ is None:
        return None

    @compile_
    def transform(numbers):  # pragma: no cover - compiled
        for i in range(0, len(numbers), 2):
            radius = math.sqrt(-2.0 * math.log(numbers[i]))
            angle = (2.0 * math.pi) * numbers[i + 1]
            numbers[i], numbers[i + 1] = radius * math.cos(angle), radius * math.sin(angle)

    return transform


_fill: Any = None
_transform: Any = None


@functools.cache
def _compiled_add() -> Callable[..., None] | None:
    """`fill`, Box-Muller and the addition, row by row of a target (runs, rows, columns)."""
    global _fill, _transform  # not closed over: see `jit.compiler`
    compile_, _fill, _transform = compiler(), _compiled(), _compiled_box_muller()
    if compile_ is None:
        return None

    @compile_
    def add(target, seeds, step, purpose, scales):  # pragma: no cover - compiled
        runs, rows, columns = target.shape
        numbers = np.empty((1, (columns + 3) // 4, 4))
        noise = numbers.reshape(-1)
        seed, number, time = np.empty(1, np.int64), np.empty(1, np.int64), np.full(1, step, np.int64)
        rounded = np.empty(1, target.dtype)  # noise is rounded first, then added
        for run in range(runs):
            seed[0] = seeds[run]
            for row in range(rows):
                number[0] = row
                _fill(seed, number, time, purpose, numbers)
                _transform(noise)
                for column in range(columns):
                    rounded[0] = noise[column] * scales[run]
                    target[run, row, column] += rounded[0]

    return add


@functools.cache
def _compiled_add_short() -> Callable[..., None] | None:
    """`_compiled_add` for float32: logarithm and cosine as series, in operations that vector registers serve."""
    compile_ = compiler()
    if compile_ is None:
        return None

    @compile_
    def add(target, seeds, step, purpose, scales):  # pragma: no cover - compiled
        low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
        multiplier0, multiplier1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
        weyl0, weyl1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
        runs, rows, columns = target.shape
        blocks = np.uint64((columns + 3) // 4)
        unit = np.empty((4, blocks))
        time = np.uint64(step)
        last = ((time >> half) * weyl0 & low) ^ np.uint64(purpose)
        for run in range(runs):
            seed, scale = np.uint64(seeds[run]), scales[run]
            for row in range(rows):
                u0, u1, u2, u3 = unit[0], unit[1], unit[2], unit[3]
                for block in range(blocks):
                    c0, c1, c2, c3 = block, np.uint64(row) & low, time & low, last
                    k0, k1 = seed & low, seed >> half
                    for _ in range(10):
                        product0, product1 = c0 * multiplier0, c2 * multiplier1
                        c0, c1 = (product1 >> half) ^ c1 ^ k0, product1 & low
                        c2, c3 = (product0 >> half) ^ c3 ^ k1, product0 & low
                        k0, k1 = (k0 + weyl0) & low, (k1 + weyl1) & low
                    u0[block] = (np.float64(c0) + 0.5) * 2.0**-32
                    u1[block] = (np.float64(c1) + 0.5) * 2.0**-32
                    u2[block] = (np.float64(c2) + 0.5) * 2.0**-32
                    u3[block] = (np.float64(c3) + 0.5) * 2.0**-32
                for pair in range(2):
                    first, second = unit[2 * pair], unit[2 * pair + 1]
                    for block in range(blocks):
                        # log x: x = m * 2^k with m from sqrt(1/2) on, and log m by the series of artanh
                        bits = np.float64(first[block]).view(np.int64)
                        k = (bits - np.int64(0x3FE6A09E667F3BCD)) >> np.int64(52)
                        m = np.int64(bits - (k << np.int64(52))).view(np.float64)
                        s = (m - 1.0) / (m + 1.0)
                        q = s * s
                        series = 1.0 / 7.0 + q * (1.0 / 9.0 + q * (1.0 / 11.0 + q * (1.0 / 13.0)))
                        series = 1.0 + q * (1.0 / 3.0 + q * (0.2 + q * series))
                        radius = math.sqrt(-2.0 * (2.0 * s * series + np.float64(k) * 0.6931471805599453)) * scale
                        # cos and sin of a turn: each as the sine of what is left to a quarter turn
                        turn = second[block]
                        x = (0.25 - abs(turn - np.floor(turn + 0.5))) * (2.0 * math.pi)
                        q = x * x
                        tail = 1.0 / 362880.0 + q * (-1.0 / 39916800.0 + q * (1.0 / 6227020800.0))
                        cosine = x * (1.0 + q * (-1.0 / 6.0 + q * (1.0 / 120.0 + q * (-1.0 / 5040.0 + q * tail))))
                        other = abs(turn - 0.25)
                        x = (0.25 - abs(other - np.floor(other + 0.5))) * (2.0 * math.pi)
                        q = x * x
                        tail = 1.0 / 362880.0 + q * (-1.0 / 39916800.0 + q * (1.0 / 6227020800.0))
                        sine = x * (1.0 + q * (-1.0 / 6.0 + q * (1.0 / 120.0 + q * (-1.0 / 5040.0 + q * tail))))
                        first[block], second[block] = radius * cosine, radius * sine
                out = target[run, row]
                for column in range(columns):
                    out[column] += np.float32(unit[column % 4, column // 4])

    return add


def _words(seeds: Tensor, step: int | Tensor, purpose: str, rows: Tensor, columns: int) -> Tensor:
    """The output words (..., ceil(columns / 4), 4) of every row."""
    device = rows.device
    if not isinstance(step, Tensor):  # filled on the device: a copy from the host would wait for it
        step = torch.full((), step, dtype=torch.int64, device=device)
    seeds = seeds.to(device)
    step_high = ((step >> 32) * _KEY_STEPS[0]) & _MASK
    blocks = torch.arange((columns + 3) // 4, dtype=torch.int64, device=device)
    counter = (
        blocks,
        rows.unsqueeze(-1) & _MASK,
        (step & _MASK).unsqueeze(-1),
        (step_high ^ purpose_code(purpose)).unsqueeze(-1),
    )
    key = ((seeds & _MASK).unsqueeze(-1), ((seeds >> 32) & _MASK).unsqueeze(-1))
    return torch.stack(torch.broadcast_tensors(*philox(counter, key)), dim=-1)
