"""The CPU kernel for narrow networks on inputs of zeros and ones: many runs side by side in the vector registers.

With five hidden units there is nothing to vectorise inside a run, so every number here is a row of `LANES` numbers, one
for each run of a group, and every loop over lanes is a few vector operations. Lanes never mix: a run's numbers do not
depend on the group. Groups that are not full are filled up with runs that nobody reads.
"""

from __future__ import annotations

import math

import numpy as np

from neoteny.backends.kernel.cpu.layers import exponential
from neoteny.backends.kernel.cpu.units import measure_inlined
from neoteny.draws.philox import compiled, philox, uniform

LANES = 64
_ZERO, _ONE, _TWO, _THREE, _FOUR = (np.uint64(k) for k in range(5))


@compiled
def forward_lanes(p, at, bias, inputs, outputs, x, from_, to):  # pragma: no cover - compiled
    """x[to + j] = bias + weights times x[from_ + i]."""
    for j in range(outputs):
        out = to + j
        for lane in range(LANES):
            x[out, lane] = p[bias + j, lane]
        i = _ZERO
        while i + _FOUR <= inputs:
            w = at + i * outputs + j
            b, c, d = w + outputs, w + _TWO * outputs, w + _THREE * outputs
            row = from_ + i
            for lane in range(LANES):
                x[out, lane] += (
                    p[w, lane] * x[row, lane]
                    + p[b, lane] * x[row + _ONE, lane]
                    + p[c, lane] * x[row + _TWO, lane]
                    + p[d, lane] * x[row + _THREE, lane]
                )
            i += _FOUR
        while i < inputs:
            w = at + i * outputs + j
            for lane in range(LANES):
                x[out, lane] += p[w, lane] * x[from_ + i, lane]
            i += _ONE


@compiled
def activate_lanes(kind, x, slope, first, count, one):  # pragma: no cover - compiled
    """x = the activation of x, and its derivative, for `count` rows; kinds as in `options.ACTIVATIONS`."""
    zero, two = one - one, one + one
    exact = x.itemsize == 8
    small = x.dtype.type(0.01)
    for j in range(first, first + count):
        if kind == 0:
            for lane in range(LANES):
                z = x[j, lane]
                slope[j, lane] = zero if z <= zero else one
                x[j, lane] = zero if z <= zero else z
        elif kind == 1:
            for lane in range(LANES):
                z = x[j, lane]
                slope[j, lane] = one if z > zero else small
                x[j, lane] = z if z > zero else small * z
        elif kind == 2:
            for lane in range(LANES):
                t = one - two / (exponential(two * x[j, lane], exact) + one)
                slope[j, lane] = one - t * t
                x[j, lane] = t
        elif kind == 3:
            for lane in range(LANES):
                s = one / (one + exponential(-x[j, lane], exact))
                slope[j, lane] = s * (one - s)
                x[j, lane] = s
        elif kind == 4:
            for lane in range(LANES):
                z = x[j, lane]
                e = exponential(zero if z > zero else z, exact)
                slope[j, lane] = one if z > zero else e
                x[j, lane] = z if z > zero else e - one
        else:
            for lane in range(LANES):
                z = x[j, lane]
                s = one / (one + exponential(-z, exact))
                slope[j, lane] = s + z * s * (one - s)
                x[j, lane] = z * s


@compiled
def back_lanes(p, at, inputs, outputs, g, slope, from_, to):  # pragma: no cover - compiled
    """g[from_ + i] = slope * (weights times g[to + j])."""
    for i in range(inputs):
        row = from_ + i
        for lane in range(LANES):
            g[row, lane] = p[at + i * outputs, lane] * g[to, lane]
        for j in range(_ONE, outputs):
            w = at + i * outputs + j
            for lane in range(LANES):
                g[row, lane] += p[w, lane] * g[to + j, lane]
        for lane in range(LANES):
            g[row, lane] *= slope[row, lane]


@compiled
def descend(p, at, inputs, outputs, x, from_, g, to, rate, weight_decay, scaled):  # pragma: no cover - compiled
    """Plain SGD on a matrix: the gradient of weight (i, j) is x[from_ + i] * g[to + j]."""
    for j in range(outputs):
        for lane in range(LANES):
            scaled[lane] = rate[lane] * g[to + j, lane]
        for i in range(inputs):
            w = at + i * outputs + j
            for lane in range(LANES):
                # Not (1 - weight_decay) * p: in float32 that would round what is weight_decay to a multiple of 6e-8.
                p[w, lane] -= weight_decay[lane] * p[w, lane] + x[from_ + i, lane] * scaled[lane]


@compiled
def descend_with_momentum(
    p, first, at, inputs, outputs, x, from_, g, to, rate, shrink, momentum
):  # pragma: no cover - compiled
    """SGD with momentum on a matrix."""
    for i in range(inputs):
        for j in range(outputs):
            w = at + i * outputs + j
            for lane in range(LANES):
                gradient = x[from_ + i, lane] * g[to + j, lane] + shrink[lane] * p[w, lane]
                first[w, lane] = momentum[lane] * first[w, lane] + gradient
            for lane in range(LANES):
                p[w, lane] -= rate[lane] * first[w, lane]


@compiled
def adam_lanes(
    p, first, second, at, inputs, outputs, x, from_, g, to, shrink, one_minus_beta1, one_minus_beta2, beta2, eps,
    step_scale, root_scale, by_input, input_step, by_output, output_step,
):  # pragma: no cover - compiled  # fmt: skip
    """Adam on a matrix; `step_scale` and `root_scale` as in `layers.adam_all`.

    Their rows are by_input + i * input_step and by_output + j * output_step: a step of 0 where all are of one age.
    """
    for i in range(inputs):
        row = by_input + i * input_step
        for j in range(outputs):
            w, column = at + i * outputs + j, by_output + j * output_step
            for lane in range(LANES):
                gradient = x[from_ + i, lane] * g[to + j, lane] + shrink[lane] * p[w, lane]
                m = first[w, lane]
                first[w, lane] = m + one_minus_beta1 * (gradient - m)
                second[w, lane] = beta2 * second[w, lane] + one_minus_beta2 * gradient * gradient
            for lane in range(LANES):
                size = max(step_scale[row, lane], step_scale[column, lane])
                root = math.sqrt(second[w, lane]) * max(root_scale[row, lane], root_scale[column, lane])
                p[w, lane] -= size * first[w, lane] / (root + eps)


@compiled
def add_sizes(p, at, inputs, outputs, incoming, outgoing, from_, to, wants_outgoing):  # pragma: no cover - compiled
    """incoming[to + j] and outgoing[from_ + i]: sums of |w| of one matrix."""
    for j in range(outputs):
        for lane in range(LANES):
            incoming[to + j, lane] = abs(p[at + j, lane])
        for i in range(_ONE, inputs):
            w = at + i * outputs + j
            for lane in range(LANES):
                incoming[to + j, lane] += abs(p[w, lane])
    if wants_outgoing:
        for i in range(inputs):
            for lane in range(LANES):
                outgoing[from_ + i, lane] = abs(p[at + i * outputs, lane])
            for j in range(_ONE, outputs):
                w = at + i * outputs + j
                for lane in range(LANES):
                    outgoing[from_ + i, lane] += abs(p[w, lane])


@compiled
def measure_lanes(
    terms, x, row, mean, utility, decay_power, own, decay, incoming, into, outgoing, out_of, instant, largest, one
):  # pragma: no cover - compiled
    """One tick of one unit of all runs: `units.measure` with a length that is known when it is compiled."""
    measure_inlined(
        terms, LANES, x, row, mean, utility, decay_power, own, _ZERO, decay, incoming, into, outgoing, out_of, instant,
        largest, one,
    )  # fmt: skip


@compiled
def release_lane(
    p, first, second, at, bias, outputs, j, lane, unit, mean, decay_power, compensate, tiny
):  # pragma: no cover
    """Take unit j of one lane out of its consumer, the matrix at `at`: its mean to the bias, its weights to zero."""
    share = mean[unit + j, lane] / max(p.dtype.type(1.0) - decay_power[unit + j, lane], tiny)
    for k in range(outputs):
        w = at + j * outputs + k
        if compensate:
            p[bias + k, lane] += p[w, lane] * share
        p[w, lane] = 0.0
        if first.size > 0:
            first[w, lane] = 0.0
        if second.size > 0:
            second[w, lane] = 0.0


@compiled
def renew_lane(
    p, first, second, at, bias, inputs, outputs, j, lane, unit, mean, utility, decay_power, born, bound, step, seed,
    purpose,
):  # fmt: skip
    """Give unit j of one lane new incoming weights, a zero bias, and no past."""
    for i in range(inputs):
        words = philox(seed, j, step, purpose, i // _FOUR)
        u = uniform(words[np.int64(i % _FOUR)])
        w = at + i * outputs + j
        p[w, lane] = (u * 2.0 - 1.0) * bound
        if first.size > 0:
            first[w, lane] = 0.0
        if second.size > 0:
            second[w, lane] = 0.0
    p[bias + j, lane] = 0.0
    if first.size > 0:
        first[bias + j, lane] = 0.0
    if second.size > 0:
        second[bias + j, lane] = 0.0
    mean[unit + j, lane] = 0.0
    utility[unit + j, lane] = 0.0
    decay_power[unit + j, lane] = 1.0
    born[unit + j, lane] = np.int64(step)
