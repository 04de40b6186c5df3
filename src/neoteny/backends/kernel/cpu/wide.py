"""One run of a network of any size, from the first update of a block to the last.

The loops over weights are in `layers`, continual backpropagation in `units`, normalisation in `norm`, draws in
`draws.philox`; `arguments` says what the tuples hold.
"""

from __future__ import annotations

import math

import numpy as np

from neoteny.backends.kernel.cpu.layers import (
    activate,
    adam_all,
    back,
    back_and_update,
    back_update_and_sum,
    cross_entropy,
    forward,
    list_rows,
    squared_error,
    update,
    update_all,
    update_and_sum,
    update_vector,
)
from neoteny.backends.kernel.cpu.norm import normalize, normalize_back
from neoteny.backends.kernel.cpu.units import choose, has_collapsed, measure, release, renew, sum_matrix
from neoteny.backends.kernel.options import FOLD
from neoteny.draws.philox import add_noise_to_matrix, add_noise_to_vector, compiled, inlined, uniforms

_ZERO, _ONE, _TWO = np.uint64(0), np.uint64(1), np.uint64(2)


@inlined
def train_run(
    run_number, shape, options, state, rates, inputs, due, step, start, stop, total, broken, unit_value
):  # pragma: no cover - compiled
    """One run's updates start to stop - 1 of a task; `step`: updates before them."""
    run = np.uint64(run_number)
    # Once, not in the loop: reading an array out of a tuple counts references.
    n_in, n_out, strides, weights, biases = shape.inputs, shape.outputs, shape.stride, shape.weight, shape.bias
    norm_scale, norm_shift, units = shape.scale, shape.shift, shape.unit
    order, starts, place, feature = inputs.order, inputs.start, inputs.place, inputs.feature
    level, levels, targets = inputs.level, inputs.values, inputs.target
    mean, utility, decay_power, born = state.mean_activation, state.utility, state.decay_power, state.born
    buffers, dropout_seed = state.buffers, state.dropout_seed
    one = unit_value[0]
    zero = one - one
    layers = np.uint64(len(n_in))
    last = layers - _ONE
    width = np.uint64(max(n_in.max(), strides.max()))
    p = state.parameters[run]
    first, second = state.first[run], state.second[run]
    size = (layers + _ONE, width)
    rows = np.zeros(size, np.uint64)
    values, z, h, slope, g = (
        np.zeros(size, p.dtype), np.zeros(size, p.dtype), np.zeros(size, p.dtype), np.zeros(size, p.dtype),
        np.zeros(size, p.dtype),
    )  # fmt: skip
    incoming, outgoing, peak = np.zeros(size, p.dtype), np.zeros(size, p.dtype), np.zeros(size, p.dtype)
    y, root, for_scale, for_shift = (
        np.zeros(size, p.dtype), np.zeros(size, p.dtype), np.zeros(size, p.dtype), np.zeros(size, p.dtype),
    )  # fmt: skip
    keep = 1.0 - rates.step_size[run] * rates.shrink[run]  # float64: 1 - 1e-8 is 1 in float32
    lazy = options.shrink and options.optimizer == 0 and not options.noise and keep > FOLD
    dense = options.optimizer > 0 or options.noise or (options.shrink and not lazy)
    replaces = options.utility != 0
    x = np.zeros(size, p.dtype)
    step_scale, root_scale = np.zeros((_TWO * layers, width), p.dtype), np.zeros((_TWO * layers, width), p.dtype)
    power1, power2 = np.zeros((_TWO * layers, width)), np.zeros((_TWO * layers, width))
    instant, score, returned = np.zeros(width, p.dtype), np.zeros(width, p.dtype), np.zeros(width, p.dtype)
    draws, words = np.zeros(width + np.uint64(4)), np.zeros((4, width))
    chosen, places = np.zeros(layers * width, np.uint64), np.zeros(layers + _ONE, np.int64)
    count, scale, scaling = np.zeros(layers, np.uint64), np.full(layers, one), np.full(layers, one)
    exact = np.ones(layers)  # the lazy scales in float64

    # A product with a float64 is a float64: constants take the parameters' type by way of an array.
    typed = np.empty(9, p.dtype)
    typed[0], typed[1], typed[2] = rates.step_size[run], rates.momentum[run], rates.shrink[run]
    typed[3], typed[4], typed[5] = 1.0 - options.beta1, 1.0 - options.beta2, options.beta2
    typed[6], typed[7], typed[8] = options.eps, rates.decay_rate[run], 1.0 / (1.0 - options.dropout)
    step_size, momentum, shrink, one_minus_beta1, one_minus_beta2, beta2, eps, decay, dropout_scale = (
        typed[0], typed[1], typed[2], typed[3], typed[4], typed[5], typed[6], typed[7], typed[8],
    )  # fmt: skip
    decays = np.full(width, decay)
    largest, tiny = np.finfo(p.dtype).max, np.finfo(p.dtype).tiny
    fan_in, fan_out = np.empty(layers, p.dtype), np.empty(layers, p.dtype)
    for layer in range(layers):
        fan_in[layer], fan_out[layer] = 1.0 / n_in[layer], 1.0 / n_out[layer]
    sums = replaces and not dense and (options.sums_in or options.sums_out)
    stream = np.uint64(inputs.stream[run])
    seed = np.uint64(state.seeds[run])

    if sums:
        for layer in range(layers):
            sum_matrix(p, weights[layer], n_in[layer], strides[layer], layer, incoming, outgoing)
    if options.optimizer == 2:
        for side in range(_TWO * layers):
            born_layer = np.int64(side // _TWO) - 1 + np.int64(side % _TWO)
            for j in range(width):
                age = np.int64(step)
                if replaces and 0 <= born_layer < np.int64(last) and j < n_out[born_layer]:
                    age -= born[run, units[born_layer] + j]
                power1[side, j], power2[side, j] = options.beta1**age, options.beta2**age

    any_due = np.zeros(stop - start, np.bool_)
    for layer in range(last if replaces else _ZERO):
        for k in range(stop - start):
            any_due[k] |= due[run, layer, k] > 0

    for k in range(start, stop):
        now = np.uint64(step + (k - start) + 1)
        example = order[stream, k]
        begin = np.uint64(starts[example])
        count[0] = np.uint64(starts[example + 1]) - begin
        for e in range(count[0]):
            rows[_ZERO, e] = np.uint64(place[stream, np.uint64(feature[begin + e])])
            values[_ZERO, e] = levels[level[begin + e]]

        for layer in range(layers):
            n = n_out[layer]
            forward(
                p, weights[layer], strides[layer], biases[layer], scale[layer], rows, values, count[layer],
                layer, z,
            )  # fmt: skip
            if layer == last:
                break
            unit = units[layer]
            if options.norm:
                scaling[layer] = normalize(
                    z, layer, n, unit, buffers, run, p, norm_scale[layer], norm_shift[layer],
                    one * options.forward_decay, one * options.norm_eps, y, root, one,
                )  # fmt: skip
            activate(options.activation, z, layer, strides[layer], h, slope, one)  # padding: whole vectors
            if options.dropout > 0.0:
                uniforms(
                    np.uint64(dropout_seed[run, layer]), _ZERO, now - _ONE, np.uint64(options.dropout_purpose), n,
                    draws,
                )  # fmt: skip
                for j in range(n):
                    factor = dropout_scale if draws[j] > options.dropout else zero
                    h[layer, j] = h[layer, j] * factor if factor > zero else zero
                    slope[layer, j] *= factor
            count[layer + _ONE] = list_rows(h, slope, layer, n, rows, values)

        target = targets[example]
        if options.loss == 0:
            loss = squared_error(z, last, n_out[last], target, g, one)
            total[run] += loss
        else:
            loss, right = cross_entropy(z, last, n_out[last], target, g, one)
            total[run] += 1.0 if right else 0.0
        if not abs(loss) <= largest:
            broken[run] = k
            break

        if dense:
            _fill(x, _ZERO, n_in[0], rows, values, count[0], zero)
        if options.optimizer == 2:
            _advance_corrections(
                power1, power2, step_scale, root_scale, step_size, options.beta1, options.beta2, n_in, strides
            )
        for backwards in range(layers):
            layer = last - backwards
            at, stride, n = weights[layer], strides[layer], count[layer]
            if options.norm and layer < last:
                normalize_back(
                    g, layer, n_out[layer], units[layer], buffers, run, p, norm_scale[layer],
                    scaling[layer], one * (1.0 - options.backward_decay), y, root, for_scale, for_shift, one,
                )  # fmt: skip
            if dense:
                if layer > _ZERO:
                    back(p, at, stride, rows, n, g, layer, returned)
                    _fill(x, layer, n_in[layer], rows, values, n, zero)
                if options.optimizer == 2:
                    adam_all(
                        p, first, second, at, n_in[layer], stride, x, g, layer, shrink, one_minus_beta1,
                        one_minus_beta2, beta2, eps, step_scale, root_scale,
                    )  # fmt: skip
                else:
                    update_all(
                        p, first, at, n_in[layer], stride, x, g, layer, step_size, shrink, momentum
                    )  # fmt: skip
            else:
                if lazy and exact[layer] * keep < FOLD:
                    _fold(p, at, n_in[layer] * stride, scale[layer])
                    scale[layer] = exact[layer] = one
                    if sums:
                        sum_matrix(p, at, n_in[layer], stride, layer, incoming, outgoing)
                before = scale[layer]
                if lazy:
                    exact[layer] *= keep
                    scale[layer] = exact[layer]
                factor = step_size / scale[layer]
                if layer == _ZERO:
                    if sums and options.sums_in:
                        update_and_sum(p, at, stride, rows, values, n, g, layer, factor, incoming)
                    else:
                        update(p, at, stride, rows, values, n, g, layer, factor)
                elif sums:
                    back_update_and_sum(
                        p, at, stride, rows, values, n, g, layer, factor, returned, incoming, outgoing
                    )  # fmt: skip
                else:
                    back_and_update(p, at, stride, rows, values, n, g, layer, factor, returned)
                for r in range(n if layer > _ZERO else _ZERO):
                    returned[r] *= before
            side = _TWO * layer + _ONE
            update_vector(
                p, first, second, biases[layer], n_out[layer], g, layer, options.optimizer, step_size, shrink,
                momentum, one_minus_beta1, one_minus_beta2, beta2, eps, step_scale, root_scale, side,
            )  # fmt: skip
            if options.norm and layer < last:
                update_vector(
                    p, first, second, norm_scale[layer], n_out[layer], for_scale, layer, options.optimizer, step_size,
                    shrink, momentum, one_minus_beta1, one_minus_beta2, beta2, eps, step_scale, root_scale, side,
                )  # fmt: skip
                update_vector(
                    p, first, second, norm_shift[layer], n_out[layer], for_shift, layer, options.optimizer, step_size,
                    shrink, momentum, one_minus_beta1, one_minus_beta2, beta2, eps, step_scale, root_scale, side,
                )  # fmt: skip
            if layer > _ZERO:
                above = layer - _ONE
                for j in range(strides[above]):
                    g[above, j] = zero
                for r in range(n):
                    j = rows[layer, r]
                    g[above, j] = returned[r] * slope[above, j]

        if options.noise and options.noise_first:
            _perturb(p, shape, options.norm, seed, now, rates.noise_std[run], one, words)
        if replaces:
            if dense and (options.sums_in or options.sums_out):
                for layer in range(layers):
                    sum_matrix(
                        p, weights[layer], n_in[layer], strides[layer], layer, incoming, outgoing
                    )  # fmt: skip
            for layer in range(last):
                measure(
                    options.utility, strides[layer], h, layer, mean, utility, decay_power, run, units[layer], decays,
                    incoming, scale[layer] * fan_in[layer], outgoing, scale[layer + _ONE] * fan_out[layer + _ONE],
                    instant, largest, one,
                )  # fmt: skip
            if any_due[k - start]:
                _replace(
                    run, shape, options, state, rates.maturity_threshold[run], due, k - start, now, seed, p, first,
                    second, scale, sums, incoming, peak, outgoing, power1, power2, largest, tiny, score, draws, chosen,
                    places, one,
                )  # fmt: skip
        if options.noise and not options.noise_first:
            _perturb(p, shape, options.norm, seed, now, rates.noise_std[run], one, words)

    if lazy:
        for layer in range(layers):
            _fold(p, weights[layer], n_in[layer] * strides[layer], scale[layer])


@compiled
def _fold(p, at, count, scale):  # pragma: no cover - compiled
    for j in range(count):
        p[at + j] *= scale


@compiled
def _fill(x, layer, inputs, rows, values, count, zero):  # pragma: no cover - compiled
    """x[layer] = the listed values, zero elsewhere."""
    for i in range(inputs):
        x[layer, i] = zero
    for k in range(count):
        x[layer, rows[layer, k]] = values[layer, k]


@compiled
def _advance_corrections(
    power1, power2, step_scale, root_scale, step_size, beta1, beta2, n_in, strides
):  # pragma: no cover - compiled
    """Adam's corrections one update later, for the units on both sides of every matrix."""
    for layer in range(np.uint64(len(n_in))):
        for half in range(2):
            side = _TWO * layer + np.uint64(half)
            units = n_in[layer] if half == 0 else strides[layer]
            for j in range(units):
                power1[side, j] *= beta1
                power2[side, j] *= beta2
                step_scale[side, j] = step_size / (1.0 - power1[side, j])
                root_scale[side, j] = 1.0 / math.sqrt(1.0 - power2[side, j])


@compiled
def _perturb(p, shape, norm, seed, step, noise_std, one, words):  # pragma: no cover - compiled
    for layer in range(np.uint64(len(shape.inputs))):
        outputs = shape.outputs[layer]
        add_noise_to_matrix(
            p, shape.weight[layer], shape.inputs[layer], outputs, shape.stride[layer], seed, step,
            shape.purposes[2, layer], noise_std, one, words,
        )  # fmt: skip
        add_noise_to_vector(p, shape.bias[layer], outputs, seed, step, shape.purposes[3, layer], noise_std, one)
        if norm and layer < np.uint64(len(shape.inputs)) - _ONE:
            add_noise_to_vector(p, shape.scale[layer], outputs, seed, step, shape.purposes[4, layer], noise_std, one)
            add_noise_to_vector(p, shape.shift[layer], outputs, seed, step, shape.purposes[5, layer], noise_std, one)


@compiled
def _replace(
    run, shape, options, state, threshold, due, k, step, seed, p, first, second, scale, sums, incoming, peak, outgoing,
    power1, power2, largest, tiny, score, draws, chosen, places, one,
):  # pragma: no cover - compiled  # fmt: skip
    """Choose the units that are due in every layer, then replace them, in forward order."""
    last = np.uint64(len(shape.inputs)) - _ONE
    for layer in range(last):
        places[layer + _ONE] = places[layer]
        if due[run, layer, k] == 0:
            continue
        choose(
            options.utility, shape.unit[layer], shape.outputs[layer], state.utility, state.decay_power, state.born, run,
            due[run, layer, k], threshold, step, seed, shape.purposes[1, layer], largest, score, draws, chosen,
            np.uint64(places[layer]), one,
        )  # fmt: skip
        places[layer + _ONE] += due[run, layer, k]
    for layer in range(last):
        after = layer + _ONE
        for c in range(places[layer], places[after]):
            j = chosen[np.uint64(c)]
            release(
                p, shape.weight[after], shape.stride[after], shape.unit[layer], shape.bias[after], shape.outputs[after],
                scale[after], layer, j, state.mean_activation, state.decay_power, run, options.compensate, first,
                second, incoming, peak, outgoing, tiny, one,
            )  # fmt: skip
        if sums and places[after] > places[layer] and has_collapsed(incoming, peak, after, shape.outputs[after]):
            sum_matrix(
                p, shape.weight[after], shape.inputs[after], shape.stride[after], after, incoming, outgoing
            )  # fmt: skip
            for j in range(shape.outputs[after]):
                peak[after, j] = incoming[after, j]
        for c in range(places[layer], places[after]):
            j = chosen[np.uint64(c)]
            renew(
                p, shape.weight[layer], shape.stride[layer], shape.unit[layer], shape.bias[layer], shape.inputs[layer],
                scale[layer], shape.bounds[layer], layer, j, state.mean_activation, state.utility, state.decay_power,
                state.born, run, step, seed, shape.purposes[0, layer], first, second, incoming, peak, outgoing, one,
            )  # fmt: skip
            if options.optimizer == 2:
                by_output, by_input = _TWO * layer + _ONE, _TWO * after
                power1[by_output, j] = power2[by_output, j] = 1.0
                power1[by_input, j] = power2[by_input, j] = 1.0
            state.replaced[run, layer] += 1
