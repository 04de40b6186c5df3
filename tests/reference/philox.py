"""Philox4x32-10 (Salmon et al. 2011) with plain Python integers, and the layout of the library's random draws.

Layout of one draw, a function of (seed, step, purpose, row, column) and of nothing else:

- key: (low 32 bits of the seed, high 32 bits of the seed);
- counter: (column // 4, row, low 32 bits of the step, purpose code ^ (high 32 bits of the step * 0x9E3779B9));
- the word is output number column % 4.

A word w is the uniform number (w + 0.5) / 2**32. Words (0, 1) and (2, 3) make pairs of normal numbers by Box-Muller.
"""

from __future__ import annotations

import math
import zlib

import numpy as np

WORD = 2**32  # all arithmetic on words is modulo this


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Ten rounds of the Philox bijection: four counter words and two key words to four output words."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * x0, WORD)
        high1, low1 = divmod(0xCD9E8D57 * x2, WORD)
        x0, x1, x2, x3 = high1 ^ x1 ^ k0, low1, high0 ^ x3 ^ k1, low0
        k0 = (k0 + 0x9E3779B9) % WORD  # golden ratio
        k1 = (k1 + 0xBB67AE85) % WORD  # sqrt(3) - 1
    return x0, x1, x2, x3


def words(seed: int, step: int, purpose_code: int, row: int, block: int) -> tuple[int, int, int, int]:
    """The four 32-bit words of columns 4 * block to 4 * block + 3."""
    seed_high, seed_low = divmod(seed % 2**64, WORD)
    step_high, step_low = divmod(step % 2**64, WORD)
    tag = purpose_code ^ (step_high * 0x9E3779B9 % WORD)
    return philox4x32((block, row, step_low, tag), (seed_low, seed_high))


def _blocks(seed: int, step: int, purpose: str, row: int, columns: int) -> list[list[float]]:
    """The uniform numbers of one row, four to a block, enough blocks for `columns` numbers."""
    code = zlib.crc32(purpose.encode())
    return [
        [(word + 0.5) / WORD for word in words(seed, step, code, row, block)] for block in range(math.ceil(columns / 4))
    ]


def uniform(seed: int, step: int, purpose: str, row: int, columns: int) -> np.ndarray:
    """Uniform numbers in (0, 1) for columns 0 to columns - 1 of one row, float64 (columns,)."""
    numbers: list[float] = []
    for block in _blocks(seed, step, purpose, row, columns):
        numbers.extend(block)
    return np.array(numbers[:columns], dtype=np.float64)


def normal(seed: int, step: int, purpose: str, row: int, columns: int) -> np.ndarray:
    """Standard normal numbers for columns 0 to columns - 1 of one row, float64 (columns,).

    Box-Muller on each pair (u, v): the radius sqrt(-2 log u), the angle 2 pi v; the cosine comes first, then the sine.
    """
    numbers: list[float] = []
    for block in _blocks(seed, step, purpose, row, columns):
        for u, v in ((block[0], block[1]), (block[2], block[3])):
            radius = math.sqrt(-2.0 * math.log(u))
            numbers.append(radius * math.cos(2.0 * math.pi * v))
            numbers.append(radius * math.sin(2.0 * math.pi * v))
    return np.array(numbers[:columns], dtype=np.float64)
