"""Compiled draws for the CPU kernel: Philox words, dropout's masks, and the noise of shrink and perturb.

The layout of counters and keys is that of `neoteny.rng`; offsets are uint64, because a signed index may be negative and
the check for it keeps loops from being vectorised.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from neoteny.jit import compiler


def _compiler() -> Callable[..., Any]:
    found = compiler(cache=False)
    if found is None:
        raise ImportError("The CPU kernel needs numba: pip install numba.")
    return found


compiled = _compiler()

_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_MULTIPLIER0, _MULTIPLIER1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL0, _WEYL1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_UNIT = 2.0**-32


@compiled
def philox(seed, row, step, purpose, block):  # pragma: no cover - compiled
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


@compiled
def uniforms(seed, row, step, purpose, count, out):  # pragma: no cover - compiled
    """out[0] to out[count - 1]: uniform numbers of one row, float64."""
    four = np.uint64(4)
    for block in range((count + np.uint64(3)) // four):
        words = philox(seed, row, step, purpose, block)
        at = block * four
        out[at] = (np.float64(words[0]) + 0.5) * _UNIT
        out[at + np.uint64(1)] = (np.float64(words[1]) + 0.5) * _UNIT
        out[at + np.uint64(2)] = (np.float64(words[2]) + 0.5) * _UNIT
        out[at + np.uint64(3)] = (np.float64(words[3]) + 0.5) * _UNIT


@compiled
def _unit(word):  # pragma: no cover - compiled
    return (np.float64(word) + 0.5) * _UNIT


@compiled
def add_noise_to_vector(p, at, count, seed, step, purpose, scale, one):  # pragma: no cover - compiled
    """p[at + j] += scale * normal, row 0 of the draws; `one` is 1 in the parameters' type."""
    for block in range((count + np.uint64(3)) // np.uint64(4)):
        words = philox(seed, np.uint64(0), step, purpose, block)
        for pair in range(2):
            u, v = (_unit(words[0]), _unit(words[1])) if pair == 0 else (_unit(words[2]), _unit(words[3]))
            radius, angle = math.sqrt(-2.0 * math.log(u)), (2.0 * math.pi) * v
            j = block * np.uint64(4) + np.uint64(2 * pair)
            if j < count:
                p[at + j] += one * (radius * math.cos(angle) * scale)
            if j + np.uint64(1) < count:
                p[at + j + np.uint64(1)] += one * (radius * math.sin(angle) * scale)


@compiled
def add_noise_to_matrix(
    p, at, inputs, outputs, stride, seed, step, purpose, scale, one, words
):  # pragma: no cover - compiled
    """p[i, j] += scale * normal for a matrix (inputs, stride); row j, column i of the draws.

    `words` (4, stride) float64 is scratch: one row of four inputs at a time, so that the generator runs over outputs.
    """
    four = np.uint64(4)
    for block in range((inputs + np.uint64(3)) // four):
        for j in range(outputs):
            w0, w1, w2, w3 = philox(seed, j, step, purpose, block)
            words[0, j] = (np.float64(w0) + 0.5) * _UNIT
            words[1, j] = (np.float64(w1) + 0.5) * _UNIT
            words[2, j] = (np.float64(w2) + 0.5) * _UNIT
            words[3, j] = (np.float64(w3) + 0.5) * _UNIT
        for pair in range(2):
            first = np.uint64(2 * pair)
            _box_muller(words, first, outputs, scale, p.itemsize == 8)
            for k in range(2):
                i = block * four + first + np.uint64(k)
                if i < inputs:
                    row = at + i * stride
                    for j in range(outputs):
                        p[row + j] += one * words[first + np.uint64(k), j]


@compiled
def _box_muller(words, first, count, scale, exact):  # pragma: no cover - compiled
    """Rows `first` and `first + 1` of uniform numbers to normal ones times `scale`."""
    second = first + np.uint64(1)
    if exact:
        for j in range(count):
            radius = math.sqrt(-2.0 * math.log(words[first, j])) * scale
            angle = (2.0 * math.pi) * words[second, j]
            words[first, j], words[second, j] = radius * math.cos(angle), radius * math.sin(angle)
        return
    for j in range(count):
        radius = math.sqrt(-2.0 * _log(words[first, j])) * scale
        turn = words[second, j]
        words[first, j], words[second, j] = radius * _cos_turn(turn), radius * _cos_turn(turn - 0.25)


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
