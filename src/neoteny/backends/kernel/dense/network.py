"""Compiled passes through a network for a batch: forward, loss, backward to the gradient of every parameter.

Row layer * B + b of the work arrays belongs to example b in a layer. The inputs of a layer that are not zero, or whose
gradient is not, are listed (numbers `rows`, values `values`, how many `count`): others give neither a product nor a
gradient. The loops over outputs are those of `cpu.layers`.
"""

from __future__ import annotations

import math

import numpy as np

from neoteny.backends.kernel.cpu.layers import activate, cross_entropy, exponential, forward, squared_error
from neoteny.backends.kernel.dense.places import BIAS, GAIN, OFFSET, OUTPUTS, STRIDE, WEIGHT
from neoteny.backends.kernel.dense.terms import CRELU, LEAKY, SMOOTH_LEAKY
from neoteny.draws.philox import compiled

_ZERO, _ONE = np.uint64(0), np.uint64(1)
_BEYOND, _LEAKY, _SMOOTH_LEAKY, _CRELU = LEAKY, LEAKY, SMOOTH_LEAKY, CRELU


@compiled
def load(inputs, stream, k, batch, rows, values, count):  # pragma: no cover - compiled
    """List the inputs of update k that are not zero."""
    order, starts, place, feature = inputs.order, inputs.start, inputs.place, inputs.feature
    level, levels = inputs.level, inputs.values
    for b in range(batch):
        example = order[stream, np.uint64(k) * batch + b]
        begin = np.uint64(starts[example])
        count[b] = np.uint64(starts[example + 1]) - begin
        for e in range(count[b]):
            rows[b, e] = np.uint64(place[stream, np.uint64(feature[begin + e])])
            values[b, e] = levels[level[begin + e]]


@compiled
def forward_all(p, shape, options, work, one):  # pragma: no cover - compiled
    """z of every layer from the listed inputs, with what the backward pass needs."""
    batch = np.uint64(options.batch)
    rows, values, count, z, h, slope = work.rows, work.values, work.listed, work.z, work.h, work.slope
    normed, root, inverse = work.normed, work.root, work.inverse
    alpha, sharpness, eps = work.typed[0], work.typed[1], work.typed[2]
    last = np.uint64(shape.shape[1]) - _ONE
    for layer in range(last + _ONE):
        n, stride = shape[OUTPUTS, layer], shape[STRIDE, layer]
        for b in range(batch):
            r = layer * batch + b
            forward(p, shape[WEIGHT, layer], stride, shape[BIAS, layer], one, rows, values, count[r], r, z)
            if layer == last:
                continue
            if options.norm:
                _normalize(
                    p, shape[GAIN, layer], shape[OFFSET, layer], z, r, n, inverse[layer], eps, normed,
                    root, one,
                )  # fmt: skip
            if options.activation < _BEYOND:
                activate(options.activation, z, r, n, h, slope, one)
            else:
                _activate_more(options.activation, alpha, sharpness, z, r, n, h, slope, one)
            count[r + batch] = _list(h, slope, r, n * np.uint64(options.copies), rows, values, r + batch)


@compiled
def _normalize(p, gain, offset, z, r, n, inverse, eps, normed, root, one):  # pragma: no cover - compiled
    """Layer norm of z[r]; `normed` and `root` keep what the backward pass needs."""
    total = one - one
    for j in range(n):
        total += z[r, j]
    mean = total * inverse
    square = one - one
    for j in range(n):
        off = z[r, j] - mean
        normed[r, j] = off
        square += off * off
    root[r] = one / math.sqrt(square * inverse + eps)
    for j in range(n):
        normed[r, j] *= root[r]
        z[r, j] = normed[r, j] * p[gain + j] + p[offset + j]


@compiled
def _activate_more(kind, alpha, sharpness, z, r, n, h, slope, one):  # pragma: no cover - compiled
    """The activations that `cpu.layers.activate` has not, and their derivatives; CReLU's second half lies behind."""
    zero = one - one
    if kind == _LEAKY:
        for j in range(n):
            x = z[r, j]
            slope[r, j] = one if x > zero else alpha
            h[r, j] = x if x > zero else alpha * x
    elif kind == _SMOOTH_LEAKY:
        for j in range(n):
            x = z[r, j]
            s = one / (one + exponential(-sharpness * x, z.itemsize == 8))
            h[r, j] = x * (alpha + (one - alpha) * s)
            slope[r, j] = alpha + (one - alpha) * (s + sharpness * x * s * (one - s))
    else:
        for j in range(n):
            x = z[r, j]
            down, up = x <= zero, x >= zero  # not `x > zero`: a NaN must not become 0
            h[r, j], h[r, n + j] = zero if down else x, zero if up else -x
            slope[r, j], slope[r, n + j] = zero if down else one, zero if up else -one


@compiled
def _list(h, slope, r, features, rows, values, after):  # pragma: no cover - compiled
    number = _ZERO
    for j in range(features):
        rows[after, number] = j
        values[after, number] = h[r, j]
        number += _ONE if h[r, j] != 0.0 or slope[r, j] != 0.0 else _ZERO
    return number


@compiled
def losses(options, inputs, stream, k, last, outputs, work, one):  # pragma: no cover - compiled
    """(the batch's mean loss, its mean performance); the gradient of the former in g."""
    batch = np.uint64(options.batch)
    share = work.typed[3]
    total, right = 0.0, 0.0
    for b in range(batch):
        r = last * batch + b
        target = inputs.target[inputs.order[stream, np.uint64(k) * batch + b]]
        if options.loss == 0:
            loss = squared_error(work.z, r, outputs, target, work.g, one)
            total += loss
            right += loss
        else:
            loss, correct = cross_entropy(work.z, r, outputs, target, work.g, one)
            total += loss
            right += 1.0 if correct else 0.0
        for j in range(outputs):
            work.g[r, j] *= share
    return total / np.float64(batch), right / np.float64(batch)


@compiled
def backward_all(p, grad, shape, options, work, one):  # pragma: no cover - compiled
    """The gradient of every parameter, from that of the outputs in g."""
    batch, normed, root, inverse = np.uint64(options.batch), work.normed, work.root, work.inverse
    rows, values, count, g, slope = work.rows, work.values, work.listed, work.g, work.slope
    zero = one - one
    layers = np.uint64(shape.shape[1])
    grad[:] = zero
    for backwards in range(layers):
        layer = layers - _ONE - backwards
        at, bias, stride, n = shape[WEIGHT, layer], shape[BIAS, layer], shape[STRIDE, layer], shape[OUTPUTS, layer]
        for b in range(batch):
            r = layer * batch + b
            if options.norm and backwards > _ZERO:
                _normalize_back(
                    p, grad, shape[GAIN, layer], shape[OFFSET, layer], g, r, n, inverse[layer], normed,
                    root, one,
                )  # fmt: skip
            for j in range(n):
                grad[bias + j] += g[r, j]
            for e in range(count[r]):
                row, v = at + rows[r, e] * stride, values[r, e]
                for j in range(stride):
                    grad[row + j] += v * g[r, j]
            if layer == _ZERO:
                continue
            above, units = r - batch, shape[OUTPUTS, layer - _ONE]
            for j in range(units):
                g[above, j] = zero
            for e in range(count[r]):
                f = rows[r, e]
                row = at + f * stride
                total = zero
                for j in range(stride):
                    total += p[row + j] * g[r, j]
                g[above, f if f < units else f - units] += total * slope[above, f]


@compiled
def _normalize_back(p, grad, gain, offset, g, r, n, inverse, normed, root, one):  # pragma: no cover - compiled
    """g[r] from the gradient of the normalised value to that of what came in; those of gain and offset besides."""
    total = dot = one - one
    for j in range(n):
        grad[offset + j] += g[r, j]
        grad[gain + j] += g[r, j] * normed[r, j]
        g[r, j] *= p[gain + j]
        total += g[r, j]
        dot += g[r, j] * normed[r, j]
    mean, along = total * inverse, dot * inverse
    for j in range(n):
        g[r, j] = (g[r, j] - mean - normed[r, j] * along) * root[r]
