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

import math
import zlib

import torch
from torch import Tensor

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
    words = _words(seeds, step, purpose, rows, columns)
    return ((words.to(torch.float64) + 0.5) * 2.0**-32).flatten(-2)[..., :columns]


def normal(seeds: Tensor, step: int | Tensor, purpose: str, rows: Tensor, columns: int) -> Tensor:
    """Standard normal numbers, float64; arguments and shape as `uniform`."""
    words = _words(seeds, step, purpose, rows, columns)
    unit = (words.to(torch.float64) + 0.5) * 2.0**-32  # (..., blocks, 4)
    radius = torch.sqrt(-2.0 * torch.log(unit[..., 0::2]))
    angle = (2.0 * math.pi) * unit[..., 1::2]
    pairs = torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), dim=-1)  # (..., blocks, 2, 2)
    return pairs.flatten(-3)[..., :columns]


def _words(seeds: Tensor, step: int | Tensor, purpose: str, rows: Tensor, columns: int) -> Tensor:
    """The output words (..., ceil(columns / 4), 4) of every row."""
    device = rows.device
    step = torch.as_tensor(step, dtype=torch.int64, device=device)
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
