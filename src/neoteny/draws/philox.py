"""Philox and Box-Muller compiled by numba: the draws of `rng` on the CPU and those of the CPU kernel.

The layout of counters and keys is that of `rng`. Offsets are uint64, because a signed index may be negative and the
check for it keeps loops from being vectorised. Importing this file needs numba; `rng` works without it.

Functions called from other compiled files are not kept on disk (see `jit.compiler`); the last three, which `rng` calls
from Python, are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from neoteny.jit import compiler


def _compiler(cache: bool = False, inline: bool = False) -> Callable[..., Any]:
    found = compiler(cache=cache, inline=inline)
    if found is None:
        raise ImportError("The CPU kernel needs numba: pip install numba.")
    return found


compiled = _compiler()
inlined = _compiler(inline=True)
_entry = _compiler(cache=True)

_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_MULTIPLIER0, _MULTIPLIER1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL0, _WEYL1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ZERO, _ONE, _TWO, _THREE, _FOUR = (np.uint64(k) for k in range(5))


def _philox(seed, row, step, purpose, block):  # pragma: no cover - compiled
    """The four words of one counter; all arguments uint64."""
    c0, c1, c2 = block, row & _LOW, step & _LOW
    c3 = ((step >> _HALF) * _WEYL0 & _LOW) ^ purpose
    k0, k1 = seed & _LOW, seed >> _HALF
    for _ in range(10):
        product0, product1 = c0 * _MULTIPLIER0, c2 * _MULTIPLIER1
        c0, c1 = (product1 >> _HALF) ^ c1 ^ k0, product1 & _LOW
        c2, c3 = (product0 >> _HALF) ^ c3 ^ k1, product0 & _LOW
        k0, k1 = (k0 + _WEYL0) & _LOW, (k1 + _WEYL1) & _LOW
    return c0, c1, c2, c3


philox = compiled(_philox)
_philox_in_loop = inlined(_philox)  # a call would keep the loops of `fill` and `add_short_normal` from being vectorised


@compiled
def uniform(word):  # pragma: no cover - compiled
    """A word as a uniform number in (0, 1)."""
    return (np.float64(word) + 0.5) * 2.0**-32


@compiled
def uniforms(seed, row, step, purpose, count, out):  # pragma: no cover - compiled
    """out[0] to out[count - 1]: uniform numbers of one row, float64."""
    for block in range((count + _THREE) // _FOUR):
        words = philox(seed, row, step, purpose, block)
        at = block * _FOUR
        out[at], out[at + _ONE] = uniform(words[0]), uniform(words[1])
        out[at + _TWO], out[at + _THREE] = uniform(words[2]), uniform(words[3])


@compiled
def _polar(u, v):  # pragma: no cover - compiled
    """Radius and angle of a pair of normal numbers, from a pair of uniform ones."""
    return math.sqrt(-2.0 * math.log(u)), (2.0 * math.pi) * v


@compiled
def add_noise_to_vector(p, at, count, seed, step, purpose, scale, one):  # pragma: no cover - compiled
    """p[at + j] += scale * normal, row 0 of the draws; `one` is 1 in the parameters' type."""
    for block in range((count + _THREE) // _FOUR):
        words = philox(seed, _ZERO, step, purpose, block)
        for pair in range(2):
            u, v = (uniform(words[0]), uniform(words[1])) if pair == 0 else (uniform(words[2]), uniform(words[3]))
            radius, angle = _polar(u, v)
            j = block * _FOUR + np.uint64(2 * pair)
            if j < count:
                p[at + j] += one * (radius * math.cos(angle) * scale)
            if j + _ONE < count:
                p[at + j + _ONE] += one * (radius * math.sin(angle) * scale)


@compiled
def add_noise_to_matrix(
    p, at, inputs, outputs, stride, seed, step, purpose, scale, one, words
):  # pragma: no cover - compiled
    """p[i, j] += scale * normal for a matrix (inputs, stride); row j, column i of the draws.

    `words` (4, stride) float64 is scratch: one row of four inputs at a time, so that the generator runs over outputs.
    """
    for block in range((inputs + _THREE) // _FOUR):
        for j in range(outputs):
            w0, w1, w2, w3 = philox(seed, j, step, purpose, block)
            words[0, j], words[1, j], words[2, j], words[3, j] = uniform(w0), uniform(w1), uniform(w2), uniform(w3)
        for pair in range(2):
            first = np.uint64(2 * pair)
            _box_muller(words[first], words[first + _ONE], outputs, scale, p.itemsize == 8)
            for k in range(2):
                i = block * _FOUR + first + np.uint64(k)
                if i < inputs:
                    row = at + i * stride
                    for j in range(outputs):
                        p[row + j] += one * words[first + np.uint64(k), j]


@compiled
def _box_muller(first, second, count, scale, exact):  # pragma: no cover - compiled
    """Two rows of uniform numbers to normal ones times `scale`, in place.

    Where float32 will do, logarithm and cosine are series, in operations that vector registers serve.
    """
    if exact:
        for j in range(count):
            radius, angle = _polar(first[j], second[j])
            radius *= scale
            first[j], second[j] = radius * math.cos(angle), radius * math.sin(angle)
        return
    for j in range(count):
        radius = math.sqrt(-2.0 * _log(first[j])) * scale
        turn = second[j]
        first[j], second[j] = radius * _cos_turn(turn), radius * _cos_turn(turn - 0.25)


@compiled
def _log(x):  # pragma: no cover - compiled
    """log(x) of a positive float64 to some 1e-9, in operations that vectorise: x = m * 2^k, m from sqrt(1/2) on."""
    bits = np.float64(x).view(np.int64)
    k = (bits - np.int64(0x3FE6A09E667F3BCD)) >> np.int64(52)
    m = np.int64(bits - (k << np.int64(52))).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    q = s * s
    series = 1.0 / 11.0 + q * (1.0 / 13.0)
    series = 1.0 + q * (1.0 / 3.0 + q * (0.2 + q * (1.0 / 7.0 + q * (1.0 / 9.0 + q * series))))
    return 2.0 * s * series + np.float64(k) * 0.6931471805599453


@compiled
def _cos_turn(t):  # pragma: no cover - compiled
    """cos(2 pi t) for t in (-1, 1) to some 1e-9: |t| folded to a quarter turn, then the sine's series."""
    t = abs(t)
    t = abs(t - np.floor(t + 0.5))  # in [0, 0.5]
    x = (0.25 - t) * (2.0 * math.pi)  # cos(2 pi t) = sin(x), x in [-pi/2, pi/2]
    q = x * x
    tail = -1.0 / 39916800.0 + q * (1.0 / 6227020800.0)
    tail = 1.0 / 362880.0 + q * tail
    return x * (1.0 + q * (-1.0 / 6.0 + q * (1.0 / 120.0 + q * (-1.0 / 5040.0 + q * tail))))


@_entry
def fill(seeds, rows, steps, purpose, numbers):  # pragma: no cover - compiled
    """numbers (M, blocks, 4): uniform numbers for the M rows that (seeds, rows, steps), each (M,), say."""
    code = np.uint64(purpose)
    for m in range(len(rows)):
        seed, row, step = np.uint64(seeds[m]), np.uint64(rows[m]), np.uint64(steps[m])
        for block in range(np.uint64(numbers.shape[1])):
            w0, w1, w2, w3 = _philox_in_loop(seed, row, step, code, block)
            numbers[m, block, 0], numbers[m, block, 1] = uniform(w0), uniform(w1)
            numbers[m, block, 2], numbers[m, block, 3] = uniform(w2), uniform(w3)


@_entry
def to_normal(numbers):  # pragma: no cover - compiled
    """Pairs of uniform numbers to pairs of normal ones, in place."""
    for i in range(0, len(numbers), 2):
        radius, angle = _polar(numbers[i], numbers[i + 1])
        numbers[i], numbers[i + 1] = radius * math.cos(angle), radius * math.sin(angle)


@_entry
def add_normal(target, seeds, step, purpose, scales):  # pragma: no cover - compiled
    """target (runs, rows, columns), float64, += scale * normal, row by row of the draws."""
    runs, rows, columns = target.shape
    numbers = np.empty((1, (columns + 3) // 4, 4))
    noise = numbers.reshape(-1)
    seed, number, time = np.empty(1, np.int64), np.empty(1, np.int64), np.full(1, step, np.int64)
    rounded = np.empty(1, target.dtype)  # noise is rounded first, then added
    for run in range(runs):
        seed[0] = seeds[run]
        for row in range(rows):
            number[0] = row
            fill(seed, number, time, purpose, numbers)
            to_normal(noise)
            for column in range(columns):
                rounded[0] = noise[column] * scales[run]
                target[run, row, column] += rounded[0]


@_entry
def add_short_normal(target, seeds, step, purpose, scales):  # pragma: no cover - compiled
    """`add_normal` to float32, with the series of `_box_muller`."""
    runs, rows, columns = target.shape
    blocks = np.uint64((columns + 3) // 4)
    words = np.empty((4, blocks))
    time, code = np.uint64(step), np.uint64(purpose)
    for run in range(runs):
        seed, scale = np.uint64(seeds[run]), scales[run]
        for row in range(rows):
            u0, u1, u2, u3 = words[0], words[1], words[2], words[3]
            for block in range(blocks):
                w0, w1, w2, w3 = _philox_in_loop(seed, np.uint64(row), time, code, block)
                u0[block], u1[block], u2[block], u3[block] = uniform(w0), uniform(w1), uniform(w2), uniform(w3)
            _box_muller(u0, u1, blocks, scale, False)
            _box_muller(u2, u3, blocks, scale, False)
            out = target[run, row]
            for column in range(columns):
                out[column] += np.float32(words[column % 4, column // 4])
