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
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neoteny.jit import compiler

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
CUDA_ROUNDS = """
    for (int round = 0; round < 10; ++round) {
        unsigned long long product0 = (unsigned long long)c0 * 0xD2511F53u;
        unsigned long long product1 = (unsigned long long)c2 * 0xCD9E8D57u;
        c0 = (unsigned)(product1 >> 32) ^ c1 ^ k0;
        c1 = (unsigned)product1;
        c2 = (unsigned)(product0 >> 32) ^ c3 ^ k1;
        c3 = (unsigned)product0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
"""
"""The ten rounds in CUDA C++ on the words c0 to c3 with the key k0, k1, all unsigned: part of `noise` and of the CUDA
kernel."""


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
    if _is_plain_cpu(seeds, step, rows) and (compiled := _compiled()) is not None:
        numbers = _unit(seeds, step, purpose, rows, columns)
        compiled.to_normal(numbers.view(-1).numpy())
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
    compiled = _compiled() if _is_plain_cpu(seeds, step, rows) and target.is_contiguous() else None
    if compiled is None or target.dtype not in (torch.float32, torch.float64):
        noise = normal(seeds.unsqueeze(-1), step, purpose, rows, target.shape[-1])
        factor = scale.reshape(*scale.shape, 1, 1) if isinstance(scale, Tensor) else scale
        target.add_((noise * factor).to(target.dtype))
        return
    scales = torch.as_tensor(scale, dtype=torch.float64).expand(seeds.shape).reshape(-1)
    blocks = target.view(-1, target.shape[-2], target.shape[-1])
    add = compiled.add_short_normal if target.dtype == torch.float32 else compiled.add_normal
    add(blocks.numpy(), seeds.reshape(-1).numpy(), step, purpose_code(purpose), scales.numpy())


def _unit(seeds: Tensor, step: int | Tensor, purpose: str, rows: Tensor, columns: int) -> Tensor:
    """Uniform numbers (..., ceil(columns / 4), 4), float64; one compiled pass on the CPU where that is possible."""
    compiled = _compiled() if _is_plain_cpu(seeds, step, rows) else None
    if compiled is None:
        return (_words(seeds, step, purpose, rows, columns).to(torch.float64) + 0.5) * 2.0**-32
    step_shape = step.shape if isinstance(step, Tensor) else ()
    shape = np.broadcast_shapes(seeds.shape, rows.shape, step_shape)
    numbers = torch.empty(*shape, (columns + 3) // 4, 4, dtype=torch.float64)
    steps = step if isinstance(step, Tensor) else torch.full((), step, dtype=torch.int64)
    flat = (value.expand(shape).reshape(-1).numpy() for value in (seeds, rows, steps))
    compiled.fill(*flat, purpose_code(purpose), numbers.reshape(-1, (columns + 3) // 4, 4).numpy())
    return numbers


def _is_plain_cpu(seeds: Tensor, step: int | Tensor, rows: Tensor) -> bool:
    """Whether the arguments are ordinary CPU tensors: inside vmap or a compiled graph they are not."""
    tensors = (seeds, rows, step) if isinstance(step, Tensor) else (seeds, rows)
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return False
    mapped = torch._C._functorch.maybe_current_level()  # pyright: ignore[reportAttributeAccessIssue]
    return mapped is None and not torch.compiler.is_compiling()


@functools.cache
def _compiled() -> Any:
    """The compiled passes (`draws.philox`), or None where numba is not installed."""
    if compiler() is None:
        return None
    from neoteny.draws import philox

    return philox


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
