"""Compiled loops over weight matrices for the CPU kernel: forward, loss, backward and update.

A matrix is (inputs, stride) inside a run's parameters `p`, from offset `at`. A list of rows (numbers `rows`, values
`values`) holds the inputs that are not zero: for all others the forward product, the backward product (behind a ReLU
or a dropout mask) and the update are exactly zero, so that their weights are neither read nor written.
"""

from __future__ import annotations

import math

import numpy as np

from neoteny.draws.philox import compiled

_ZERO, _ONE, _TWO, _THREE, _FOUR, _EIGHT = (np.uint64(k) for k in (0, 1, 2, 3, 4, 8))
_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)


@compiled
def forward(p, at, stride, bias, scale, rows, values, count, layer, z):  # pragma: no cover - compiled
    """z[layer] = bias + scale * sum over the listed rows of value * weights."""
    if stride == _EIGHT:
        _forward_narrow(p, at, bias, scale, rows, values, count, layer, z)
        return
    zero = _nothing(scale)
    for j in range(stride):
        z[layer, j] = zero
    k = _ZERO
    while k + _FOUR <= count:
        a, b = at + rows[layer, k] * stride, at + rows[layer, k + _ONE] * stride
        c, d = at + rows[layer, k + _TWO] * stride, at + rows[layer, k + _THREE] * stride
        u, v = values[layer, k], values[layer, k + _ONE]
        x, y = values[layer, k + _TWO], values[layer, k + _THREE]
        for j in range(stride):
            z[layer, j] += u * p[a + j] + v * p[b + j] + x * p[c + j] + y * p[d + j]
        k += _FOUR
    while k < count:
        a, u = at + rows[layer, k] * stride, values[layer, k]
        for j in range(stride):
            z[layer, j] += u * p[a + j]
        k += _ONE
    for j in range(stride):
        z[layer, j] = z[layer, j] * scale + p[bias + j]


@compiled
def _nothing(scale):  # pragma: no cover - compiled
    """Zero of the same type."""
    return scale - scale


@compiled
def _forward_narrow(p, at, bias, scale, rows, values, count, layer, z):  # pragma: no cover - compiled
    """Eight columns: the sums stay in one vector register."""
    a = b = c = d = e = f = g = h = _nothing(scale)
    for k in range(count):
        row, v = at + rows[layer, k] * _EIGHT, values[layer, k]
        a += v * p[row]
        b += v * p[row + _ONE]
        c += v * p[row + _TWO]
        d += v * p[row + _THREE]
        e += v * p[row + _FOUR]
        f += v * p[row + np.uint64(5)]
        g += v * p[row + np.uint64(6)]
        h += v * p[row + np.uint64(7)]
    z[layer, _ZERO] = a * scale + p[bias]
    z[layer, _ONE] = b * scale + p[bias + _ONE]
    z[layer, _TWO] = c * scale + p[bias + _TWO]
    z[layer, _THREE] = d * scale + p[bias + _THREE]
    z[layer, _FOUR] = e * scale + p[bias + _FOUR]
    z[layer, np.uint64(5)] = f * scale + p[bias + np.uint64(5)]
    z[layer, np.uint64(6)] = g * scale + p[bias + np.uint64(6)]
    z[layer, np.uint64(7)] = h * scale + p[bias + np.uint64(7)]


@compiled
def update(p, at, stride, rows, values, count, g, layer, factor):  # pragma: no cover - compiled
    """weights -= factor * value * g, for the first layer, whose inputs need no gradient."""
    for k in range(count):
        row, v = at + rows[layer, k] * stride, factor * values[layer, k]
        for j in range(stride):
            p[row + j] -= v * g[layer, j]


@compiled
def update_and_sum(p, at, stride, rows, values, count, g, layer, factor, incoming):  # pragma: no cover - compiled
    """`update`, and the change of the sums over rows of |w| in `incoming`."""
    k = _ZERO
    while k + _FOUR <= count:
        a, b = at + rows[layer, k] * stride, at + rows[layer, k + _ONE] * stride
        c, d = at + rows[layer, k + _TWO] * stride, at + rows[layer, k + _THREE] * stride
        u, v = factor * values[layer, k], factor * values[layer, k + _ONE]
        q, r = factor * values[layer, k + _TWO], factor * values[layer, k + _THREE]
        for j in range(stride):
            e, f, x, y = p[a + j], p[b + j], p[c + j], p[d + j]
            gradient = g[layer, j]
            e1, f1, x1, y1 = e - u * gradient, f - v * gradient, x - q * gradient, y - r * gradient
            p[a + j], p[b + j], p[c + j], p[d + j] = e1, f1, x1, y1
            more = (abs(e1) + abs(f1)) + (abs(x1) + abs(y1))
            incoming[layer, j] += more - ((abs(e) + abs(f)) + (abs(x) + abs(y)))
        k += _FOUR
    while k < count:
        a, u = at + rows[layer, k] * stride, factor * values[layer, k]
        for j in range(stride):
            x = p[a + j]
            new = x - u * g[layer, j]
            p[a + j] = new
            incoming[layer, j] += abs(new) - abs(x)
        k += _ONE


@compiled
def back_and_update(p, at, stride, rows, values, count, g, layer, factor, back):  # pragma: no cover - compiled
    """back[k] = weights of row k times g, with the weights from before their update, which happens in the same pass."""
    for k in range(count):
        row, v = at + rows[layer, k] * stride, factor * values[layer, k]
        total = _nothing(factor)
        for j in range(stride):
            w = p[row + j]
            total += w * g[layer, j]
            p[row + j] = w - v * g[layer, j]
        back[k] = total


@compiled
def back_update_and_sum(
    p, at, stride, rows, values, count, g, layer, factor, back, incoming, outgoing
):  # pragma: no cover - compiled
    """`back_and_update`, and the sums of |w|: over rows by their change, over columns from the weights."""
    above = layer - _ONE
    k = _ZERO
    while k + _TWO <= count:
        i, o = rows[layer, k], rows[layer, k + _ONE]
        a, b = at + i * stride, at + o * stride
        u, v = factor * values[layer, k], factor * values[layer, k + _ONE]
        total = other = size = more = _nothing(factor)
        for j in range(stride):
            gradient = g[layer, j]
            x, y = p[a + j], p[b + j]
            total += x * gradient
            other += y * gradient
            x1, y1 = x - u * gradient, y - v * gradient
            p[a + j], p[b + j] = x1, y1
            size += abs(x1)
            more += abs(y1)
            incoming[layer, j] += (abs(x1) - abs(x)) + (abs(y1) - abs(y))
        back[k], back[k + _ONE] = total, other
        outgoing[above, i], outgoing[above, o] = size, more
        k += _TWO
    while k < count:
        i = rows[layer, k]
        a, u = at + i * stride, factor * values[layer, k]
        total = size = _nothing(factor)
        for j in range(stride):
            x = p[a + j]
            total += x * g[layer, j]
            x1 = x - u * g[layer, j]
            p[a + j] = x1
            size += abs(x1)
            incoming[layer, j] += abs(x1) - abs(x)
        back[k] = total
        outgoing[above, i] = size
        k += _ONE


@compiled
def back(p, at, stride, rows, count, g, layer, back):  # pragma: no cover - compiled
    """back[k] = weights of row k times g."""
    for k in range(count):
        row = at + rows[layer, k] * stride
        total = g[layer, _ZERO] - g[layer, _ZERO]
        for j in range(stride):
            total += p[row + j] * g[layer, j]
        back[k] = total


@compiled
def update_all(p, first, at, inputs, stride, x, g, layer, step_size, shrink, momentum):  # pragma: no cover - compiled
    """SGD on every row of a matrix; with momentum its velocity is `first` (empty: none)."""
    if first.size == 0:
        weight_decay = step_size * shrink
        for i in range(inputs):
            row, v = at + i * stride, step_size * x[layer, i]
            for j in range(stride):
                w = p[row + j]
                p[row + j] = w - weight_decay * w - v * g[layer, j]
        return
    for i in range(inputs):
        row, v = at + i * stride, x[layer, i]
        for j in range(stride):
            w = p[row + j]
            velocity = momentum * first[row + j] + (v * g[layer, j] + shrink * w)
            first[row + j] = velocity
            p[row + j] = w - step_size * velocity


@compiled
def adam_all(
    p, first, second, at, inputs, stride, x, g, layer, shrink, one_minus_beta1, one_minus_beta2, beta2, eps, step_scale,
    root_scale,
):  # pragma: no cover - compiled  # fmt: skip
    """Adam on every row of a matrix.

    `step_scale` and `root_scale` hold, for each unit, the corrected step size and the correction of the root for its
    own number of updates: row 2 * layer for the inputs, 2 * layer + 1 for the outputs; a weight takes the larger of its
    two.
    """
    by_input, by_output = _TWO * layer, _TWO * layer + _ONE
    for i in range(inputs):
        row, v = at + i * stride, x[layer, i]
        own_step_scale, own_root_scale = step_scale[by_input, i], root_scale[by_input, i]
        # Two loops, because compilers vectorise a loop over a few arrays only: they check for overlaps first.
        for j in range(stride):
            gradient = v * g[layer, j] + shrink * p[row + j]
            m = first[row + j]
            first[row + j] = m + one_minus_beta1 * (gradient - m)
            second[row + j] = beta2 * second[row + j] + one_minus_beta2 * gradient * gradient
        for j in range(stride):
            size = max(own_step_scale, step_scale[by_output, j])
            root = math.sqrt(second[row + j]) * max(own_root_scale, root_scale[by_output, j])
            p[row + j] -= size * first[row + j] / (root + eps)


@compiled
def update_vector(
    p, first, second, at, count, g, layer, optimizer, step_size, shrink, momentum, one_minus_beta1, one_minus_beta2,
    beta2, eps, step_scale, root_scale, by,
):  # pragma: no cover - compiled  # fmt: skip
    """The optimizer on a bias, or on a norm's scale or shift; `by`: the row of `step_scale` and `root_scale`."""
    for j in range(count):
        w = p[at + j]
        gradient = g[layer, j] + shrink * w
        if optimizer == 0:
            p[at + j] = w - step_size * gradient
        elif optimizer == 1:
            velocity = momentum * first[at + j] + gradient
            first[at + j] = velocity
            p[at + j] = w - step_size * velocity
        else:
            m = first[at + j]
            m += one_minus_beta1 * (gradient - m)
            square = beta2 * second[at + j] + one_minus_beta2 * gradient * gradient
            first[at + j], second[at + j] = m, square
            p[at + j] = w - step_scale[by, j] * m / (math.sqrt(square) * root_scale[by, j] + eps)


@compiled
def exponential(x, exact):  # pragma: no cover - compiled
    """e^x; where float32 will do, in operations that vectorise, to some 2e-7."""
    if exact:
        return math.exp(x)
    y = min(max(x, np.float32(-87.0)), np.float32(88.0))
    k = np.floor(y * _LOG2_E + np.float32(0.5))
    r = y - k * _LN2_HIGH - k * _LN2_LOW
    series = np.float32(1 / 24) + r * (np.float32(1 / 120) + r * np.float32(1 / 720))
    series = np.float32(1.0) + r * (np.float32(1.0) + r * (np.float32(0.5) + r * (np.float32(1 / 6) + r * series)))
    power = np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)
    return series * power + (x - x)  # a NaN stays one


@compiled
def activate(kind, z, layer, count, h, slope, one):  # pragma: no cover - compiled
    """h = the activation of z, and its derivative. The order of kinds is that of `options.ACTIVATIONS`."""
    zero = one - one
    two = one + one
    exact = z.itemsize == 8
    if kind == 0:
        for j in range(count):
            x = z[layer, j]
            inside = x <= zero  # not `x > zero`: a NaN must not become 0
            h[layer, j] = zero if inside else x
            slope[layer, j] = zero if inside else one
    elif kind == 1:
        small = one * 0.01
        for j in range(count):
            x = z[layer, j]
            slope[layer, j] = one if x > zero else small
            h[layer, j] = x if x > zero else small * x
    elif kind == 2:
        for j in range(count):
            t = one - two / (exponential(two * z[layer, j], exact) + one)
            h[layer, j] = t
            slope[layer, j] = one - t * t
    elif kind == 3:
        for j in range(count):
            s = one / (one + exponential(-z[layer, j], exact))
            h[layer, j] = s
            slope[layer, j] = s * (one - s)
    elif kind == 4:
        for j in range(count):
            x = z[layer, j]
            e = exponential(min(x, zero) if x == x else x, exact)
            h[layer, j] = x if x > zero else e - one
            slope[layer, j] = one if x > zero else e
    else:
        for j in range(count):
            x = z[layer, j]
            s = one / (one + exponential(-x, exact))
            h[layer, j] = x * s
            slope[layer, j] = s + x * s * (one - s)


@compiled
def list_rows(h, slope, layer, count, rows, values):  # pragma: no cover - compiled
    """List what the next layer has to look at: units that are not zero, or whose gradient is not."""
    number, after = _ZERO, layer + _ONE
    for j in range(count):
        rows[after, number] = j
        values[after, number] = h[layer, j]
        number += _ONE if h[layer, j] != 0.0 or slope[layer, j] != 0.0 else _ZERO
    return number


@compiled
def squared_error(z, layer, count, target, g, one):  # pragma: no cover - compiled
    """The mean squared error, and its gradient in g[layer]."""
    loss = one - one
    for j in range(count):
        off = z[layer, j] - one * target
        loss += off * off
        g[layer, j] = (off + off) / count
    return loss / count


@compiled
def cross_entropy(z, layer, count, target, g, one):  # pragma: no cover - compiled
    """(loss, whether the largest output is the target's); the gradient in g[layer]."""
    best = _ZERO
    for j in range(count):
        if z[layer, j] > z[layer, best]:
            best = j
    top = z[layer, best]
    total = one - one
    for j in range(count):
        e = exponential(z[layer, j] - top, z.itemsize == 8)
        g[layer, j] = e
        total += e
    for j in range(count):
        g[layer, j] /= total
    label = np.uint64(target)
    loss = math.log(total) + top - z[layer, label]
    g[layer, label] -= one
    return loss, best == label
