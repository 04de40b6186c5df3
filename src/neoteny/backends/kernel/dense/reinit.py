"""Compiled selective reinitialisation of weights: measured one by one, the least useful of every layer redrawn.

The same arithmetic as `methods.selective_weight_reinit`. Of equal weights the first in the order (out, in) comes first.
"""

from __future__ import annotations

import math

import numpy as np

from neoteny.backends.kernel.dense.places import BIAS, INPUTS, OUTPUTS, PURPOSES, STRIDE, WEIGHT
from neoteny.backends.kernel.dense.units import write
from neoteny.draws.philox import compiled, philox, uniform

_ZERO, _ONE, _FOUR = np.uint64(0), np.uint64(1), np.uint64(4)


@compiled
def measure_weights(p, grad, worth, shape, options, decay, largest):  # pragma: no cover - compiled
    """One step of the average utility of every weight of the matrices."""
    for layer in range(np.uint64(shape.shape[1])):
        for k in range(shape[WEIGHT, layer], shape[BIAS, layer]):
            now = abs(p[k]) * abs(grad[k]) if options.by_gradient else abs(p[k])
            if now <= largest:
                worth[k] = now + decay * (worth[k] - now)


@compiled
def redraw_weights(
    run, shape, options, state, amount, worth, p, first, second, anchor, slow, step, seed, one
):  # pragma: no cover - compiled
    """Redraw the weights that are due; all utilities start again."""
    drawn = state.drawn[run]
    for layer in range(np.uint64(shape.shape[1])):
        at, stride = shape[WEIGHT, layer], shape[STRIDE, layer]
        inputs, outputs, purpose = shape[INPUTS, layer], shape[OUTPUTS, layer], shape[PURPOSES + 3, layer]
        limit, ties = _limit(worth, at, inputs, outputs, stride, options, amount, step, seed, purpose)
        for j in range(outputs):
            block, words = inputs, philox(seed, j, step, shape[PURPOSES + 2, layer], _ZERO)
            for i in range(inputs):
                value = np.float64(worth[at + i * stride + j])
                if value > limit or (value == limit and ties == 0):
                    continue
                ties -= 1 if value == limit else 0
                if i // _FOUR != block:
                    block = i // _FOUR
                    words = philox(seed, j, step, shape[PURPOSES + 2, layer], block)
                word = words[0]
                for k in range(1, 4):
                    word = words[k] if i % _FOUR == np.uint64(k) else word
                new = one * ((uniform(word) * 2.0 - 1.0) * state.bounds[layer])
                write(at + i * stride + j, new, p, first, second, anchor, slow)
                if drawn.size > 0:
                    drawn[at + i * stride + j] = np.int64(step)
                state.redrawn[run, 0] += 1
    worth[:] = one - one


@compiled
def ages_that_differ(options, oldest):  # pragma: no cover - compiled
    """How many ages of weights have corrections of their own: beyond, both are 1 to the last digit."""
    slowest = max(options.beta1, options.beta2, 1e-3)
    return min(np.int64(oldest), np.int64(54.0 * math.log(2.0) / -math.log(slowest)) + 1) + 1


@compiled
def fill_scales(options, scale1, scale2):  # pragma: no cover - compiled
    """For each age of a weight, in updates from 1 on, 1 / (1 - beta1^age) and 1 / sqrt(1 - beta2^age)."""
    power1, power2 = 1.0, 1.0
    for age in range(1, scale1.size):
        power1 *= options.beta1
        power2 *= options.beta2
        scale1[age], scale2[age] = 1.0 / (1.0 - power1), 1.0 / math.sqrt(1.0 - power2)


@compiled
def _limit(worth, at, inputs, outputs, stride, options, amount, step, seed, purpose):  # pragma: no cover - compiled
    """(the largest utility that is redrawn, how many of those that have exactly this one); none: (-1, 0)."""
    many = np.float64(inputs * outputs)
    total, most = 0.0, 0.0
    for i in range(inputs):
        for j in range(outputs):
            value = np.float64(worth[at + i * stride + j])
            total += value
            most = max(most, value)
    if not options.proportional:
        return amount * (total / many), np.int64(many)
    expected = amount * many
    wanted = math.floor(expected)
    wanted += 1.0 if uniform(philox(seed, _ZERO, step, purpose, _ZERO)[0]) < expected - wanted else 0.0
    if wanted < 1.0:
        return -1.0, np.int64(0)
    # The bits of numbers from 0 on are in the order of the numbers: the limit is found by halving the range of bits.
    low, high, below = np.int64(-1), np.float64(most).view(np.int64), 0.0
    while high - low > 1:
        middle = low + (high - low) // 2
        found, limit = 0.0, np.int64(middle).view(np.float64)
        for i in range(inputs):
            for j in range(outputs):
                found += 1.0 if np.float64(worth[at + i * stride + j]) <= limit else 0.0
        if found >= wanted:
            high = middle
        else:
            low, below = middle, found
    return np.int64(high).view(np.float64), np.int64(wanted - below)
