"""Compiled continual backpropagation for the CPU kernel: measure a layer's units, choose some, replace them.

The same arithmetic as `methods.continual_backprop` and `units`; sums of |w| come from the update's own pass.
"""

from __future__ import annotations

import numpy as np

from neoteny.draws.philox import compiled, inlined, philox, uniform, uniforms
from neoteny.units.utilities import ACTIVITY, CENTRED, INCOMING, OUTGOING, RANDOM

_ZERO, _ONE, _FOUR = np.uint64(0), np.uint64(1), np.uint64(4)


@compiled
def sum_matrix(p, at, inputs, stride, layer, incoming, outgoing):  # pragma: no cover - compiled
    """Sums of |w| over both axes of one matrix, from its weights."""
    zero = p[at] - p[at]
    for j in range(stride):
        incoming[layer, j] = zero
    for i in range(inputs):
        row = at + i * stride
        size = zero
        for j in range(stride):
            w = abs(p[row + j])
            size += w
            incoming[layer, j] += w
        if layer > _ZERO:
            outgoing[layer - _ONE, i] = size


def _measure(
    terms, count, h, row, mean, utility, decay_power, own, first, decay, incoming, into, outgoing, out_of, instant,
    largest, one,
):  # pragma: no cover - compiled  # fmt: skip
    """One tick of the running means and the utility of `count` numbers that lie side by side.

    They are the units of a layer of one run (`wide`) or one unit of many runs (`narrow`): row `row` of the activations
    and of the sums of |w|, row `own` of the statistics from place `first` on. `into` and `out_of` turn the sums into
    means, `terms` are the utility's (`units.utilities`).
    """
    zero = one - one
    for j in range(count):
        x, m = h[row, j], mean[own, first + j]
        seen = abs(x) <= largest
        decay_power[own, first + j] *= decay[j] if seen else one
        mean[own, first + j] = m + (one - decay[j]) * (x - m) if seen else m
    if terms & RANDOM:
        return
    if terms & CENTRED:
        for j in range(count):
            instant[j] = abs(h[row, j] - mean[own, first + j] / (one - decay_power[own, first + j]))
    elif terms & ACTIVITY:
        for j in range(count):
            instant[j] = abs(h[row, j])
    else:
        for j in range(count):
            instant[j] = one
    if terms & OUTGOING:
        for j in range(count):
            instant[j] *= outgoing[row, j] * out_of
    if terms & INCOMING:
        for j in range(count):
            size = incoming[row, j] * into
            value = instant[j] / size
            instant[j] = zero if size == zero else value
    for j in range(count):
        value, u = instant[j], utility[own, first + j]
        seen = abs(value) <= largest and abs(h[row, j]) <= largest
        utility[own, first + j] = u + (one - decay[j]) * (value - u) if seen else u


measure = compiled(_measure)
measure_inlined = inlined(_measure)
"""The same text put into its caller, which may know `count` when it is compiled."""


@compiled
def choose(
    terms, unit, outputs, utility, decay_power, born, run, due, threshold, step, seed, purpose, largest, score, draws,
    chosen, offset, one,
):  # pragma: no cover - compiled  # fmt: skip
    """Put the `due` eligible units of lowest utility, ties by index, into chosen[offset ...].

    Statistics are (runs, units); `narrow`, which keeps them the other way round, gives them transposed.
    """
    if terms & RANDOM:
        uniforms(seed, _ZERO, step, purpose, outputs, draws)
    infinite = largest * largest
    for j in range(outputs):
        value = one * draws[j] if terms & RANDOM else utility[run, unit + j] / (one - decay_power[run, unit + j])
        value = min(value, largest) if value == value else largest
        young = np.int64(step) - born[run, unit + j] <= threshold
        score[j] = infinite if young else value
    for k in range(due):
        best = _ZERO
        for j in range(outputs):
            if score[j] < score[best]:
                best = j
        chosen[offset + k] = best
        score[best] = np.inf


@compiled
def release(
    p, at, stride, unit, bias, outputs, scale, layer, j, mean, decay_power, run, compensate, first, second, incoming,
    peak, outgoing, tiny, one,
):  # pragma: no cover - compiled  # fmt: skip
    """Take unit j of a layer out of its consumer, the matrix at `at`: its mean to the bias, its weights to zero.

    `peak` keeps the largest that a sum was since it was last taken from the weights; see `has_collapsed`.
    """
    row = at + j * stride
    after = layer + _ONE
    share = mean[run, unit + j] / max(one - decay_power[run, unit + j], tiny) * scale
    for k in range(outputs):
        w = p[row + k]
        if compensate:
            p[bias + k] += w * share
        peak[after, k] = max(peak[after, k], incoming[after, k])
        incoming[after, k] -= abs(w)
        p[row + k] = one - one
        if first.size > 0:
            first[row + k] = one - one
        if second.size > 0:
            second[row + k] = one - one
    outgoing[layer, j] = one - one


@compiled
def has_collapsed(incoming, peak, layer, outputs):  # pragma: no cover - compiled
    """Whether so much was taken from some sum that what is left of it is mostly the rounding errors of before."""
    collapsed = False
    for k in range(outputs):
        collapsed |= incoming[layer, k] < peak[layer, k] * 0.125
    return collapsed


@compiled
def renew(
    p, at, stride, unit, bias, inputs, scale, bound, layer, j, mean, utility, decay_power, born, run, step, seed,
    purpose, first, second, incoming, peak, outgoing, one,
):  # pragma: no cover - compiled  # fmt: skip
    """Give unit j of a layer new incoming weights in the matrix at `at`, a zero bias, and no past."""
    zero = one - one
    size = zero
    for block in range((inputs + np.uint64(3)) // _FOUR):
        words = philox(seed, j, step, purpose, block)
        for k in range(4):
            i = block * _FOUR + np.uint64(k)
            if i >= inputs:
                break
            u = uniform(words[k])
            new = one * ((u * 2.0 - 1.0) * bound) / scale
            place = at + i * stride + j
            if layer > _ZERO:
                outgoing[layer - _ONE, i] += abs(new) - abs(p[place])
            size += abs(new)
            p[place] = new
            if first.size > 0:
                first[place] = zero
            if second.size > 0:
                second[place] = zero
    incoming[layer, j] = peak[layer, j] = size
    p[bias + j] = zero
    if first.size > 0:
        first[bias + j] = zero
    if second.size > 0:
        second[bias + j] = zero
    mean[run, unit + j] = zero
    utility[run, unit + j] = zero
    decay_power[run, unit + j] = one
    born[run, unit + j] = np.int64(step)
